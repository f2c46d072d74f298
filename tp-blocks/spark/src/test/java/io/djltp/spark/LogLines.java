package io.djltp.spark;

import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Configurator;
import org.apache.logging.log4j.core.config.Property;

import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/** Keeps what a logger of the driver writes. */
final class LogLines extends AbstractAppender implements AutoCloseable {

    private final List<String> lines = new CopyOnWriteArrayList<>();
    private final org.apache.logging.log4j.core.Logger logger;

    private LogLines(Class<?> of) {
        super("lines", null, null, true, Property.EMPTY_ARRAY);
        Configurator.setLevel(of.getName(), Level.INFO);
        logger = ((LoggerContext) LogManager.getContext(false)).getLogger(of.getName());
        start();
        logger.addAppender(this);
    }

    static LogLines of(Class<?> logger) {
        return new LogLines(logger);
    }

    @Override
    public void append(LogEvent event) {
        lines.add(event.getMessage().getFormattedMessage());
    }

    List<String> all() {
        return lines;
    }

    @Override
    public void close() {
        logger.removeAppender(this);
    }
}

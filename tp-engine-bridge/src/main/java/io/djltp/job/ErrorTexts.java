package io.djltp.job;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.Collection;
import java.util.stream.Collectors;

/** The words of messages. */
final class ErrorTexts {

    private static final int MAX_CAUSES = 5;
    private static final int MAX_CAUSE_CHARS = 2000;

    private ErrorTexts() {}

    /** Writes a time as "60 s", "1.5 s" or "300 ms". */
    static String time(Duration time) {
        long millis = time.toMillis();
        if (millis < 1000) {
            return millis + " ms";
        }
        return millis % 1000 == 0 ? millis / 1000 + " s" : millis / 100 / 10.0 + " s";
    }

    /** Writes a throwable and its causes, in short, or that there is none. */
    static String causes(@Nullable Throwable throwable) {
        if (throwable == null) {
            return "no cause was given";
        }
        StringBuilder text = new StringBuilder();
        Throwable cause = throwable;
        for (int i = 0; i < MAX_CAUSES && cause != null; i++) {
            text.append(i == 0 ? "" : "; caused by ").append(cut(one(cause), MAX_CAUSE_CHARS));
            cause = cause.getCause();
        }
        return text.toString();
    }

    private static String one(Throwable throwable) {
        try {
            return throwable.toString();
        } catch (RuntimeException e) {
            // a message that cannot be made must not hide the failure
            return throwable.getClass().getName();
        }
    }

    /** Cuts a text so that it has at most so many characters. */
    static String cut(String text, int chars) {
        return text.length() <= chars ? text : text.substring(0, chars - 3) + "...";
    }

    /** Writes "process 2" or "processes 2, 3". */
    static String processes(Collection<Integer> numbers) {
        String list = numbers.stream().map(String::valueOf).collect(Collectors.joining(", "));
        return (numbers.size() == 1 ? "process " : "processes ") + list;
    }

    /** Writes "1 process" or "2 processes". */
    static String count(long number, String one, String many) {
        return number + " " + (number == 1 ? one : many);
    }

    /** Says in short why a connection failed. */
    static String reason(IOException e) {
        return e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
    }

    /** Writes a host and a port. */
    static String address(String host, int port) {
        return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
    }

    /** Writes an address as it is, without asking for its name. */
    static String address(InetSocketAddress address) {
        return address(address.getAddress().getHostAddress(), address.getPort());
    }
}

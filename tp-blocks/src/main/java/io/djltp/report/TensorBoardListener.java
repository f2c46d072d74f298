package io.djltp.report;

import ai.djl.training.Trainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;

/**
 * Writes the figures of a training for TensorBoard: the loss and the throughput of each step, and
 * what evaluators have found of each epoch. {@code tensorboard --logdir FOLDER} shows them while it
 * runs; a folder in which each training has a folder of its own compares them.
 *
 * <p>As {@link TrainingReport}, it comes after DJL's listeners, and {@link #addStep} serves loops
 * that notify none. A file that cannot be written to any more is a warning, once.
 */
public final class TensorBoardListener extends TrainingFigures {

    private static final Logger logger = LoggerFactory.getLogger(TensorBoardListener.class);

    private final Path folder;
    private EventFile file;
    private boolean failed;

    /**
     * Creates a listener. Its file is made with the first figure.
     *
     * @param folder the folder, which need not be there
     */
    public TensorBoardListener(Path folder) {
        this.folder = folder;
    }

    @Override
    void accept(String chart, String name, String unit, long step, double value) {
        if (failed) {
            return;
        }
        try {
            if (file == null) {
                file = new EventFile(folder);
            }
            file.add(chart + '/' + name, step, value);
        } catch (IOException e) {
            failed = true;
            logger.warn("The figures cannot be written to {}: {}", folder, e.toString());
        }
    }

    @Override
    void endStep(Trainer trainer, double seconds) {
        // accept has written all that there is
    }

    @Override
    void begin(Trainer trainer) {
        // nothing is measured between steps
    }

    /** Closes the file. */
    @Override
    public void close() {
        try {
            if (file != null) {
                file.close();
            }
        } catch (IOException e) {
            logger.warn("The figures in {} may not be complete: {}", folder, e.toString());
        }
        file = null;
        failed = true; // nothing comes after the end
    }
}

package io.djltp.examples.train;

import java.util.Map;

/** The options of a command that trains. */
public interface JobOptions {

    /** Checks everything that can be checked before anything is read or written. */
    void check();

    /**
     * Checks the files that are written, and those that would be in the way. It is for when the
     * processes have met: what one of them alone finds, the others are told.
     */
    void checkFiles();

    /**
     * Returns which ranks train.
     *
     * @return the ranks
     */
    JobRanks ranks();

    /**
     * Returns when the training is saved.
     *
     * @return the options
     */
    CheckpointOptions checkpoints();

    /**
     * Returns the options that all processes must have alike: all but those of checkpoints, those
     * that only process 0 uses, and --tp, which the job compares.
     *
     * @return the values by the name of the option
     */
    Map<String, String> alike();
}

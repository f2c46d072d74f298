package io.djltp.examples.train;

import java.util.Map;

/** The options of a command that trains. */
public interface JobOptions {

    /** Checks everything that can be checked before anything is read or written. */
    void check();

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

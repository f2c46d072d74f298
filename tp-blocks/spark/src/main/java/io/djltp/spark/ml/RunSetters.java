package io.djltp.spark.ml;

import org.apache.spark.ml.Estimator;

/** The setters of a {@link ParallelClassifier} for the job that trains it. */
abstract class RunSetters extends Estimator<ParallelClassificationModel> implements TrainingParams {

    private static final long serialVersionUID = 1L;

    abstract ParallelClassifier self();

    /**
     * Sets the number of ranks: over which the classes are cut.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setRanks(int value) {
        set(ranks(), value);
        return self();
    }

    /**
     * Sets the ranks of a task: 0 for one; on the master local, for all.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setRanksPerTask(int value) {
        set(ranksPerTask(), value);
        return self();
    }

    /**
     * Sets the folder for checkpoints: a path that all executors see, as on NFS. The training goes
     * on from the newest checkpoint that is there, if its settings and its rows are the same; those
     * of another training are refused.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setCheckpointFolder(String value) {
        set(checkpointFolder(), value);
        return self();
    }

    /**
     * Sets after how many steps a checkpoint is taken: 1 or more.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setCheckpointInterval(int value) {
        set(checkpointInterval(), value);
        return self();
    }

    /**
     * Sets how often the training may be started, the first time included, when executors are lost:
     * 1 or more. It goes on from the newest checkpoint, and without a folder for them begins anew.
     *
     * @param value the value
     * @return this classifier
     */
    public ParallelClassifier setMaxAttempts(int value) {
        set(maxAttempts(), value);
        return self();
    }
}

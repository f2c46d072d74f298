package io.djltp.spark.ml;

import org.apache.spark.ml.param.IntParam;
import org.apache.spark.ml.param.Param;
import org.apache.spark.ml.param.ParamValidators;
import org.apache.spark.ml.param.Params;

/** On what a classifier is trained, and how it goes on after an executor is lost. */
public interface RunParams extends Params {

    /**
     * Returns the number of ranks: over which the classes are cut.
     *
     * @return the parameter; default 2
     */
    default IntParam ranks() {
        return new IntParam(
                this,
                "ranks",
                "the number of ranks: over which the classes are cut",
                ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #ranks}.
     *
     * @return the value
     */
    default int getRanks() {
        return (Integer) getOrDefault(ranks());
    }

    /**
     * Returns the ranks of a task: 0 for one; on the master local, for all.
     *
     * @return the parameter; default 0
     */
    default IntParam ranksPerTask() {
        return new IntParam(
                this,
                "ranksPerTask",
                "the ranks of a task: 0 for one; on the master local, for all");
    }

    /**
     * Returns the value of {@link #ranksPerTask}.
     *
     * @return the value
     */
    default int getRanksPerTask() {
        return (Integer) getOrDefault(ranksPerTask());
    }

    /**
     * Returns the folder for checkpoints, which all executors see: {@code fit} goes on from the
     * newest one that is there.
     *
     * @return the parameter; default none
     */
    default Param<String> checkpointFolder() {
        return new Param<>(
                this,
                "checkpointFolder",
                "the folder for checkpoints, which all executors see: fit goes on from the newest"
                        + " one that is there");
    }

    /**
     * Returns the value of {@link #checkpointFolder}.
     *
     * @return the value
     */
    default String getCheckpointFolder() {
        return getOrDefault(checkpointFolder());
    }

    /**
     * Returns after how many steps a checkpoint is taken.
     *
     * @return the parameter; default 100
     */
    default IntParam checkpointInterval() {
        return new IntParam(
                this,
                "checkpointInterval",
                "after how many steps a checkpoint is taken",
                ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #checkpointInterval}.
     *
     * @return the value
     */
    default int getCheckpointInterval() {
        return (Integer) getOrDefault(checkpointInterval());
    }

    /**
     * Returns how often the training may be started, the first time included, when executors are
     * lost.
     *
     * @return the parameter; default 1
     */
    default IntParam maxAttempts() {
        return new IntParam(
                this,
                "maxAttempts",
                "how often the training may be started, the first time included, when executors"
                        + " are lost",
                ParamValidators.gt(0));
    }

    /**
     * Returns the value of {@link #maxAttempts}.
     *
     * @return the value
     */
    default int getMaxAttempts() {
        return (Integer) getOrDefault(maxAttempts());
    }

    /** Sets the defaults of these parameters. */
    default void setRunDefaults() {
        setDefault(ranks(), 2);
        setDefault(ranksPerTask(), 0);
        setDefault(checkpointFolder(), "");
        setDefault(checkpointInterval(), 100);
        setDefault(maxAttempts(), 1);
    }
}

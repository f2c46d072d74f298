package io.djltp.training;

import io.djltp.internal.Errors;
import io.djltp.internal.optimizer.LearningRates;
import io.djltp.internal.optimizer.LossScale;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.rank.RankPool;
import io.djltp.job.JobFailedException;
import io.djltp.rank.ParallelConfig;

import java.util.Map;

/**
 * What the next step of an open {@link ParallelTrainer} depends on, for who takes it away and puts
 * it back: the ranks with what they hold, and the trainer's own numbers. Beside what this names, it
 * is what the ranks' contexts have: the participants of steps and the seeds of random numbers.
 *
 * <p>To be used by the thread of the trainer, between two steps.
 */
public final class TrainerState {

    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final ParallelConfig config;
    private final OptimizerSettings optimizer;
    private final TrainingSteps steps;
    private final TrainedModel trained;
    private final ProcessAgreement agreement;

    TrainerState(
            RankPool ranks,
            ParallelParameters parameters,
            ParallelConfig config,
            OptimizerSettings optimizer,
            TrainingSteps steps,
            TrainedModel trained,
            ProcessAgreement agreement) {
        this.ranks = ranks;
        this.parameters = parameters;
        this.config = config;
        this.optimizer = optimizer;
        this.steps = steps;
        this.trained = trained;
        this.agreement = agreement;
    }

    /**
     * Checks that the trainer is between two steps: that no gradient is lost and no rank computes.
     *
     * @param user what is done there, as the first words of the error
     * @throws IllegalStateException if it is not, or was not initialized, or is closed
     */
    public void checkBetweenSteps(String user) {
        Errors.checkState(trained.isInitialized(), "%s comes after trainer.initialize(...)", user);
        Errors.checkState(!trained.isClosed(), "%s comes before trainer.close()", user);
        trained.checkOpen();
        Errors.checkState(
                !steps.isOpen(),
                "%s comes between two steps, after step() and before the next forward(...): a"
                        + " gradient that no step has used is not kept",
                user);
    }

    /**
     * Returns the ranks of this process.
     *
     * @return the ranks
     */
    public RankPool getRanks() {
        return ranks;
    }

    /**
     * Returns how the ranks are arranged.
     *
     * @return the configuration
     */
    public ParallelConfig getConfig() {
        return config;
    }

    /**
     * Returns what the ranks hold of the model.
     *
     * @return the parameters
     */
    public ParallelParameters getParameters() {
        return parameters;
    }

    /**
     * Returns the settings of the optimizer.
     *
     * @return the settings
     */
    public OptimizerSettings getOptimizer() {
        return optimizer;
    }

    /**
     * Returns what the optimizer keeps of a rank's parameters.
     *
     * @param localRank the place of the rank among those of this process
     * @return the state
     */
    public OptimizerState getOptimizerState(int localRank) {
        return steps.getOptimizerState(localRank);
    }

    /**
     * Returns the learning rates, with the number of updates of each parameter.
     *
     * @return the learning rates
     */
    public LearningRates getLearningRates() {
        return steps.getLearningRates();
    }

    /**
     * Returns what the loss is multiplied with where it is differentiated.
     *
     * @return the scale, and how it changes
     */
    public LossScale getLossScale() {
        return steps.getLossScale();
    }

    /**
     * Returns the number of steps done.
     *
     * @return the number, those before a checkpoint that was restored included
     */
    public long getStep() {
        return steps.count();
    }

    /**
     * Gives all ranks the buffers of rank 0 that blocks change in forward passes, such as running
     * means. All processes call it.
     */
    public void equalizeBuffers() {
        trained.equalizeBuffers();
    }

    /**
     * Adds what is run each time before weights and the state of the optimizer are changed or
     * freed: by the next step, by what restores another state, and by the close of the trainer.
     *
     * @param task what is run, in the thread of the trainer
     */
    public void addBeforeChange(Runnable task) {
        trained.addBeforeChange(task);
    }

    /**
     * Compares settings of the processes of a job, by one all-gather of one number; with one
     * process does nothing. All processes call it.
     *
     * @param what what they are, such as {@code the settings of a listener}
     * @param settings their values by name, in an order that is the same on all processes
     * @param remedy what is to be done if they differ
     * @throws JobFailedException on all processes, if two of them differ: it has the name of the
     *     first setting that does and both values
     */
    public void checkSame(String what, Map<String, String> settings, String remedy) {
        agreement.checkSame(what, settings, remedy);
    }

    /**
     * Replaces the state by another. All processes call it.
     *
     * @param step the number of steps that it comes from
     * @param change what replaces it
     */
    public void replace(long step, Runnable change) {
        trained.replace(step, change);
    }
}

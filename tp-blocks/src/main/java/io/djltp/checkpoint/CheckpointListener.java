package io.djltp.checkpoint;

import ai.djl.training.Trainer;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.util.Preconditions;

import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.util.LinkedHashMap;

/**
 * Saves a training every now and then, and lets another process go on where it ended, as if nothing
 * had been:
 *
 * <pre>{@code
 * CheckpointListener checkpoints =
 *         CheckpointListener.builder().setFolder(folder).optEverySteps(100).optKeep(3).build();
 * config.addTrainingListeners(TrainingListener.Defaults.basic())
 *         .addTrainingListeners(checkpoints); // the last one
 * try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
 *     trainer.initialize(shape);
 *     checkpoints.resume(trainer); // does nothing if there is no checkpoint yet
 *     EasyTrain.fit(
 *             trainer,
 *             checkpoints.remainingEpochs(epochs),
 *             checkpoints.resumed(trainingSet),
 *             validationSet);
 * }
 * }</pre>
 *
 * <p>A checkpoint is taken between two steps and written while training goes on. It has the state
 * of the trainer, the position in the data, evaluators, metrics, what DJL's listeners count, and
 * what is {@link Resumable}. A save that fails (a full disk, a state that throws) is logged, and
 * {@link #getFailure()} returns it; training goes on, the last good checkpoint stays, and the next
 * save is tried again.
 *
 * <p>In a training loop of the user's own, {@link #endStep()} comes after {@code trainer.step()};
 * {@link #getStep()} says how many steps are done.
 *
 * <p>One for a trainer. All processes of a job have one, with the same settings and a folder that
 * all of them see.
 */
public final class CheckpointListener extends TrainingListenerAdapter implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(CheckpointListener.class);

    private final RunSettings settings;
    private final TrainingProgress progress;
    private final SaveSchedule schedule;
    private ParallelTrainer trainer;
    private RunSaves saves; // null until the training begins
    private SavedProgress afterBatches; // the progress at the end of an epoch's batches
    private final ToldSteps told = new ToldSteps();

    CheckpointListener(CheckpointBuilder builder) {
        settings = RunSettings.of(builder);
        progress = new TrainingProgress(new LinkedHashMap<>(builder.states));
        schedule =
                new SaveSchedule(
                        builder.everySteps, builder.everyNanos, builder.when, builder.signals);
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static CheckpointBuilder builder() {
        return new CheckpointBuilder();
    }

    /**
     * Goes on from the newest checkpoint, or that of {@link CheckpointBuilder#optResumeFrom}, on
     * any number of ranks and any mesh. Comes after {@code trainer.initialize(...)} and {@code
     * trainer.setMetrics(...)}, and before the first step. All processes call it. What is frozen is
     * what was frozen at the checkpoint: freeze something else after this.
     *
     * @param trainer the trainer, of whose listeners this is the last
     * @return whether there was a checkpoint
     * @throws io.djltp.job.JobFailedException if the processes of a job have other settings
     * @throws IOException if another run uses the folder, or the checkpoint is damaged: the error
     *     says which older one is whole
     * @throws IllegalArgumentException if the checkpoint is of another network, optimizer or
     *     training, or of other evaluators or states; nothing is changed then, on any process
     */
    public boolean resume(Trainer trainer) throws IOException {
        if (trainer != this.trainer) {
            throw new IllegalArgumentException(
                    "The CheckpointListener has to be one of the listeners of the ParallelTrainer:"
                            + " config.addTrainingListeners(checkpoints)");
        }
        open(false);
        try {
            TrainingProgress.Saved saved =
                    saves.restore(settings.resumeFrom(), values -> progress.read(values, trainer));
            if (saved == null) {
                return false;
            }
            progress.restore(saved, trainer);
        } catch (IOException | RuntimeException e) {
            close();
            saves = null; // what is not resumed does not go on among its checkpoints
            throw e;
        }
        told.begin(getStep());
        logger.info("Resumed after step {} from {}", getStep(), settings.path());
        return true;
    }

    /**
     * Returns how many epochs are left, the running one included.
     *
     * @param epochs the number of epochs of the whole training
     * @return the number for {@code EasyTrain.fit}
     * @throws IllegalArgumentException if the training that was resumed is beyond them
     */
    public int remainingEpochs(int epochs) {
        return progress.position().remainingEpochs(epochs, settings.path());
    }

    /**
     * Returns a training set whose first epoch begins where the checkpoint was taken, or at its
     * beginning if there was none. Checkpoints are taken while training asks it for batches.
     *
     * @param trainingSet the training set; how it is made to go on is described at {@link
     *     ResumableDataset}
     * @return the training set for {@code EasyTrain.fit} or {@code trainer.iterateDataset}
     */
    public Dataset resumed(Dataset trainingSet) {
        return new ResumedData(trainingSet, this);
    }

    /**
     * Returns the number of the running epoch.
     *
     * @return the number, from 0
     */
    public long getEpoch() {
        return progress.position().epoch();
    }

    /**
     * {@return how many steps are done, those before a resume included}
     *
     * @throws IllegalStateException if no trainer has been made with this listener
     */
    public long getStep() {
        if (trainer == null) {
            throw new IllegalStateException(
                    "The CheckpointListener has no trainer yet: add it to the training configuration"
                            + " (addTrainingListeners) and make the ParallelTrainer first");
        }
        return trainer.getState().getStep();
    }

    /** {@return the folder of the checkpoints} */
    public Path getFolder() {
        return settings.path();
    }

    /**
     * Returns why the last save that ended has failed.
     *
     * @return the failure, or {@code null} if it is complete, or none has ended yet
     */
    public Throwable getFailure() {
        return saves == null ? null : saves.failure();
    }

    /**
     * Takes a checkpoint if one is due. For training loops of the user's own without {@link
     * #resumed}: comes after {@code trainer.step()}, on all processes.
     *
     * @throws IllegalStateException if this is closed
     * @throws TrainingStoppedException if a signal has asked to stop
     */
    public void endStep() {
        begin();
        long step = getStep();
        if (!told.add(step)) {
            return; // gradients of several batches are added up
        }
        SaveSchedule.Decision decision = schedule.afterStep(trainer, step);
        if (decision.save()) {
            save(progress.save(trainer));
        }
        if (decision.stop() != null) {
            stop(decision.stop());
        }
    }

    /**
     * Takes a checkpoint now, if there is none of this step: comes between two steps, on all
     * processes.
     *
     * @throws IllegalStateException if it does not, or if this is closed
     */
    public void save() {
        begin();
        save(progress.save(trainer));
    }

    /**
     * Waits until the last checkpoint is complete, or has failed.
     *
     * @return whether it is complete
     */
    public boolean await() {
        return saves != null && saves.await();
    }

    private void save(SavedProgress values) {
        saves.save(getStep(), values);
        schedule.restart();
    }

    private void stop(StopSignal signal) {
        boolean saved = saves.await();
        throw new TrainingStoppedException(signal, getStep(), settings.path(), saved);
    }

    /** Begins or resumes an epoch over the data. */
    DataPosition beginEpoch() {
        begin();
        told.expect();
        if (progress.position().isRunning()) {
            progress.endEpoch(trainer); // a loop of the user's own, which tells no listener
        }
        progress.restoreMetrics(trainer);
        afterBatches = null;
        return progress.position();
    }

    /** Notes that the batches of an epoch are done; validation follows. */
    void endBatches() {
        if (schedule.isStoppable()) {
            afterBatches = progress.save(trainer);
        }
    }

    /** {@inheritDoc} Refuses to go on if steps are made that it is not told of. */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        told.check(schedule, getStep());
    }

    /** {@inheritDoc} */
    @Override
    public void onValidationBatch(Trainer trainer, BatchData batchData) {
        if (afterBatches == null) {
            return;
        }
        StopSignal stop = schedule.stop(this.trainer);
        if (stop != null) {
            save(afterBatches); // a resumed run begins the validation anew
            stop(stop);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        afterBatches = null;
        told.endEpoch(schedule, getStep());
        progress.endEpoch(trainer);
        if (settings.everyEpoch()) {
            save();
        }
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingBegin(Trainer trainer) {
        if (!(trainer instanceof ParallelTrainer)) {
            throw new IllegalArgumentException(
                    "A CheckpointListener saves the state of a ParallelTrainer, and not of "
                            + trainer.getClass().getName());
        }
        Preconditions.checkArgument(
                this.trainer == null, "Each trainer needs a CheckpointListener of its own");
        this.trainer = (ParallelTrainer) trainer;
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingEnd(Trainer trainer) {
        close();
    }

    /** Begins a training that was not resumed: in an empty folder, not to mix two runs in one. */
    private void begin() {
        if (saves != null) {
            saves.checkOpen();
            return;
        }
        try {
            open(true);
        } catch (IOException e) {
            throw new IllegalStateException("No checkpoints can be written: " + e.getMessage(), e);
        }
    }

    private void open(boolean empty) throws IOException {
        if (saves != null) {
            throw new IllegalStateException("resume(trainer) comes once, before the first step");
        }
        EpochRecords.checkLast(this, trainer);
        settings.checkSame(trainer.getState());
        schedule.start();
        RunSaves opened = new RunSaves(settings, trainer);
        if (empty) {
            opened.checkEmpty();
        }
        saves = opened;
    }

    /** Waits until the last checkpoint is complete, and lets other runs use the folder. */
    @Override
    public void close() {
        schedule.close();
        if (saves != null) {
            saves.close();
        }
    }
}

package io.djltp.checkpoint;

import ai.djl.ndarray.NDManager;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListener.BatchData;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.translate.TranslateException;
import ai.djl.translate.TranslatorOptions;
import ai.djl.util.Preconditions;
import ai.djl.util.Progress;

import io.djltp.checkpoint.SaveSchedule.StopSignal;
import io.djltp.internal.Errors;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.function.BooleanSupplier;

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
 *     checkpoints.fit(trainer, epochs, trainingSet, validationSet); // resumes, if there is one
 * }
 * }</pre>
 *
 * <p>A checkpoint is taken between two steps and written while training goes on. It has the state
 * of the trainer, the position in the data, evaluators, metrics, what DJL's listeners count, and
 * what is {@link Resumable}. A save that fails (a full disk, a state that throws) is logged, and
 * {@link #getFailure()} returns it; training goes on, the last good checkpoint stays, and the next
 * save is tried again.
 *
 * <p>In a training loop of the user's own, {@link #resume} comes before the first step, and {@link
 * #endStep()} after {@code trainer.step()}; {@link #getStep()} says how many steps are done.
 *
 * <p>One for a trainer. All processes of a job have one, with the same settings and a folder that
 * all of them see.
 */
public final class CheckpointListener extends TrainingListenerAdapter implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(CheckpointListener.class);

    private final Path folder;
    private final int keep;
    private final @Nullable Long resumeFrom; // null for the newest
    private final boolean everyEpoch;
    private final Map<String, String> settings; // that all processes have alike
    private final TrainingProgress progress;
    private final SaveSchedule schedule;
    private @Nullable ParallelTrainer trainer;
    private @Nullable CheckpointRun run; // null until the training begins
    private TrainingProgress.@Nullable Noted
            afterBatches; // the progress at the end of an epoch's batches
    private long seen; // steps
    private boolean told; // of the steps of this epoch

    private CheckpointListener(Builder builder, Path folder) {
        this.folder = folder;
        keep = builder.keep;
        resumeFrom = builder.resumeFrom;
        everyEpoch = builder.everyEpoch;
        settings = builder.settings();
        progress =
                new TrainingProgress(
                        new LinkedHashMap<>(builder.states), new LinkedHashMap<>(builder.options));
        schedule =
                new SaveSchedule(
                        builder.everySteps, builder.everyNanos, builder.when, builder.signals);
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Trains a model as {@code EasyTrain.fit} does, with checkpoints: goes on from the newest one
     * if there is one, and begins otherwise. Comes after {@code trainer.initialize(...)} and {@code
     * trainer.setMetrics(...)}. All processes of a job call it.
     *
     * @param trainer the trainer, of whose listeners this is the last
     * @param epochs the number of epochs of the whole training, those before a resume included
     * @param trainingSet the training set, see {@link ResumableDataset}
     * @param validationSet the validation set, or {@code null}
     * @return whether the training went on from a checkpoint
     * @throws IOException if data or a checkpoint cannot be read, see {@link #resume}
     * @throws TranslateException if the data cannot be prepared
     * @throws IllegalArgumentException if the checkpoint is of another training, see {@link
     *     #resume}, or beyond so many epochs
     * @throws TrainingStoppedException if a signal has asked to stop
     */
    public boolean fit(
            Trainer trainer, int epochs, Dataset trainingSet, @Nullable Dataset validationSet)
            throws IOException, TranslateException {
        boolean resumed = run == null ? resume(trainer) : run.isResumed();
        EasyTrain.fit(trainer, remainingEpochs(epochs), resumed(trainingSet), validationSet);
        return resumed;
    }

    /**
     * Goes on from the newest checkpoint, or that of {@link Builder#optResumeFrom}, on any number
     * of ranks and any mesh. Comes after {@code trainer.initialize(...)} and {@code
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
        Errors.check(
                trainer == this.trainer,
                "The CheckpointListener has to be one of the listeners of the ParallelTrainer:"
                        + " config.addTrainingListeners(checkpoints)");
        CheckpointRun opened = open(false);
        try {
            TrainingProgress.Saved saved = opened.restore(resumeFrom, progress);
            if (saved == null) {
                return false;
            }
            progress.restore(saved, trainer);
        } catch (IOException | RuntimeException e) {
            close();
            run = null; // what is not resumed does not go on among its checkpoints
            throw e;
        }
        seen = getStep();
        logger.info("Resumed after step {} from {}", getStep(), folder);
        return true;
    }

    /**
     * Returns how many epochs are left, the running one included. {@link #fit} asks it.
     *
     * @param epochs the number of epochs of the whole training
     * @return the number
     * @throws IllegalArgumentException if the training that was resumed is beyond them
     */
    public int remainingEpochs(int epochs) {
        return progress.position().remainingEpochs(epochs, folder);
    }

    /**
     * Returns a training set whose first epoch begins where the checkpoint was taken, or at its
     * beginning if there was none. Checkpoints are taken while training asks it for batches.
     */
    Dataset resumed(Dataset trainingSet) {
        return new ResumedData(trainingSet);
    }

    /**
     * {@return how many steps are done, those before a resume included}
     *
     * @throws IllegalStateException if no trainer has been made with this listener
     */
    public long getStep() {
        return trainer().getState().getStep();
    }

    private ParallelTrainer trainer() {
        if (trainer == null) {
            throw new IllegalStateException(
                    "The CheckpointListener has no trainer yet: add it to the training configuration"
                            + " (addTrainingListeners) and make the ParallelTrainer first");
        }
        return trainer;
    }

    /**
     * Returns why the last save that ended has failed.
     *
     * @return the failure, or {@code null} if it is complete, or none has ended yet
     */
    public @Nullable Throwable getFailure() {
        return run == null ? null : run.failure();
    }

    /**
     * Takes a checkpoint if one is due. For training loops of the user's own: comes after {@code
     * trainer.step()}, on all processes.
     *
     * @throws IllegalStateException if this is closed
     * @throws TrainingStoppedException if a signal has asked to stop
     */
    public void endStep() {
        begin();
        long step = getStep();
        told = true;
        if (step == seen) {
            return; // gradients of several batches are added up
        }
        seen = step;
        SaveSchedule.Decision decision = schedule.afterStep(trainer(), step);
        if (decision.save()) {
            save(progress.save(trainer()));
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
        save(progress.save(trainer()));
    }

    /**
     * Waits until the last checkpoint is complete, or has failed.
     *
     * @return whether it is complete
     */
    public boolean await() {
        return run != null && run.await();
    }

    private void save(TrainingProgress.Noted values) {
        running().save(getStep(), values);
        schedule.restart();
    }

    private void stop(StopSignal signal) {
        throw new TrainingStoppedException(signal, getStep(), folder, running().await());
    }

    private CheckpointRun running() {
        if (run == null) {
            throw new IllegalStateException("The training has not begun");
        }
        return run;
    }

    /** Begins or resumes an epoch over the data. */
    private DataPosition beginEpoch() {
        begin();
        told = true;
        if (progress.position().isRunning()) {
            progress.position().endEpoch(); // a loop of the user's own, which tells no listener
        }
        progress.restoreMetrics(trainer());
        afterBatches = null;
        return progress.position();
    }

    /** Notes that the batches of an epoch are done; validation follows. */
    private void endBatches() {
        if (schedule.isStoppable()) {
            afterBatches = progress.save(trainer());
        }
    }

    /** {@inheritDoc} Throws IllegalStateException if steps were made that it was not told of. */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        checkTold();
    }

    /**
     * Checks that no step is missed. DJL tells its listeners of a batch before the step, and never
     * that a step is over: that comes from {@link #fit} or from a loop of the user's own. A
     * training that does neither would never be saved, without a word.
     *
     * @throws IllegalStateException if a step was made that nobody has told of, after which a
     *     checkpoint may be due
     */
    private void checkTold() {
        Errors.checkState(
                told || getStep() == seen || !schedule.isAfterSteps(),
                "The CheckpointListener is not told of the steps, and would save none of them:"
                        + " train with checkpoints.fit(...); a loop of your own calls"
                        + " checkpoints.endStep() after trainer.step()");
    }

    /**
     * Checks that this is the last listener: the others have to have counted when it saves.
     *
     * @throws IllegalArgumentException if it is not, or not the only one that saves
     */
    private void checkLast() {
        List<TrainingListener> all = TrainingProgress.listeners(trainer());
        Errors.check(
                all.stream().filter(CheckpointListener.class::isInstance).count() <= 1,
                "A trainer has one CheckpointListener, and this one has several: one saves all"
                        + " that the training is. Leave one in, and copy or prune its folder by a"
                        + " program of your own");
        TrainingListener last = all.get(all.size() - 1);
        Errors.check(
                last == this,
                "The CheckpointListener has to be the last listener, because it "
                        + "saves what the others know: add it after %s",
                last.getClass().getName());
    }

    /** {@inheritDoc} */
    @Override
    public void onValidationBatch(Trainer trainer, BatchData batchData) {
        if (afterBatches == null) {
            return;
        }
        StopSignal stop = schedule.stop(trainer());
        if (stop != null) {
            save(afterBatches); // a resumed run begins the validation anew
            stop(stop);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        afterBatches = null;
        checkTold();
        told = false; // the next one may be another loop's
        progress.position().endEpoch();
        if (everyEpoch) {
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
        if (run != null) {
            run.checkOpen();
            return;
        }
        try {
            open(true);
        } catch (IOException e) {
            throw new IllegalStateException("No checkpoints can be written: " + e.getMessage(), e);
        }
    }

    private CheckpointRun open(boolean empty) throws IOException {
        Errors.checkState(run == null, "resume(trainer) comes once, before the first step");
        checkLast();
        trainer()
                .getState()
                .checkSame(
                        "the settings of the CheckpointListeners",
                        settings,
                        "build them with the same settings on all processes");
        schedule.start();
        CheckpointRun opened = new CheckpointRun(folder, keep, trainer());
        if (empty) {
            opened.checkEmpty();
        }
        run = opened;
        return opened;
    }

    /** Waits until the last checkpoint is complete, and lets other runs use the folder. */
    @Override
    public void close() {
        schedule.close();
        if (run != null) {
            run.close();
        }
    }

    /**
     * A training set that goes on where a checkpoint was taken, and knows when the step of a batch
     * is over: when the next batch is asked for. DJL's listeners are told before the step.
     */
    private final class ResumedData implements Dataset {

        private final Dataset dataset;

        ResumedData(Dataset dataset) {
            this.dataset = dataset;
        }

        /** {@inheritDoc} */
        @Override
        public Iterable<Batch> getData(NDManager manager) throws IOException, TranslateException {
            return getData(manager, null);
        }

        /** {@inheritDoc} */
        @Override
        public Iterable<Batch> getData(NDManager manager, @Nullable ExecutorService executor)
                throws IOException, TranslateException {
            DataPosition position = beginEpoch();
            Iterator<Batch> batches = position.begin(dataset, manager, executor);
            Iterator<Batch> counted = new Counted(batches, position);
            return () -> counted; // once: its order is drawn
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(Progress progress) throws IOException, TranslateException {
            dataset.prepare(progress);
        }

        /** {@inheritDoc} */
        @Override
        public TranslatorOptions matchingTranslatorOptions() {
            return dataset.matchingTranslatorOptions();
        }

        /** The batches that are left. */
        private final class Counted implements Iterator<Batch> {

            private final Iterator<Batch> batches;
            private final DataPosition position;
            private boolean given; // a batch whose end was not told

            Counted(Iterator<Batch> batches, DataPosition position) {
                this.batches = batches;
                this.position = position;
            }

            @Override
            public boolean hasNext() {
                if (given) {
                    given = false;
                    endStep();
                }
                boolean more = batches.hasNext();
                if (!more) {
                    endBatches();
                }
                return more;
            }

            @Override
            public Batch next() {
                Batch batch = batches.next();
                position.add(batch);
                given = true;
                return batch;
            }
        }
    }

    /** The Builder to construct a {@link CheckpointListener}. */
    public static final class Builder {

        private static final double NANOS_OF_MINUTE = 60e9;

        private @Nullable Path path;
        private long everySteps;
        private long everyNanos;
        private boolean everyEpoch;
        private int keep = 3;
        private @Nullable Long resumeFrom; // null for the newest
        private BooleanSupplier when = () -> false;
        private List<String> signals = List.of();
        private Map<String, String> options = Map.of();
        private final Map<String, Resumable> states = new LinkedHashMap<>();

        private Builder() {}

        /**
         * Sets the folder of the checkpoints, which is made if there is none.
         *
         * @param path the folder; one that all processes of a job see, under whatever path
         * @return this builder
         */
        public Builder setFolder(Path path) {
            this.path = path;
            return this;
        }

        /**
         * Takes a checkpoint after every so many steps.
         *
         * @param steps the number of steps, 1 or more
         * @return this builder
         */
        public Builder optEverySteps(long steps) {
            Preconditions.checkArgument(
                    steps > 0, "The steps between checkpoints must be 1 or more, not " + steps);
            everySteps = steps;
            return this;
        }

        /**
         * Takes a checkpoint after every so many minutes, by the clock of the process of rank 0.
         *
         * @param minutes the number of minutes, above 0
         * @return this builder
         */
        public Builder optEveryMinutes(double minutes) {
            Preconditions.checkArgument(
                    minutes > 0, "The minutes between checkpoints must be above 0, not " + minutes);
            everyNanos = Math.max(1, (long) (minutes * Duration.ofMinutes(1).toNanos()));
            return this;
        }

        /**
         * Takes a checkpoint after every epoch and its validation.
         *
         * @param everyEpoch whether to do so; not, if this is not called
         * @return this builder
         */
        public Builder optEveryEpoch(boolean everyEpoch) {
            this.everyEpoch = everyEpoch;
            return this;
        }

        /**
         * Takes a checkpoint whenever this says so after a step, such as after the last one.
         *
         * @param when is asked after each step; says the same in all processes
         * @return this builder
         */
        public Builder optWhen(BooleanSupplier when) {
            this.when = when;
            return this;
        }

        /**
         * Sets how many checkpoints are kept, 3 if this is not called. Older ones are removed when
         * a new one is complete.
         *
         * @param keep the number, 1 or more
         * @return this builder
         */
        public Builder optKeep(int keep) {
            Preconditions.checkArgument(
                    keep > 0, "The checkpoints to keep must be 1 or more, not " + keep);
            this.keep = keep;
            return this;
        }

        /**
         * Lets {@link CheckpointListener#resume} go on from an older checkpoint than the newest,
         * such as when that is damaged. Newer ones are put aside, in folders of other names.
         *
         * @param step the step of the checkpoint
         * @return this builder
         */
        public Builder optResumeFrom(long step) {
            resumeFrom = step;
            return this;
        }

        /**
         * Sets the signals that end the training after the step at work with a checkpoint and a
         * {@link TrainingStoppedException}, whichever process of a job gets them. A second signal
         * ends the process at once. None, if this is not called. The processes of a job listen to
         * the same.
         *
         * @param names their names without SIG: TERM and INT (Ctrl-C), or others such as USR1
         * @return this builder
         */
        public Builder optSignals(String... names) {
            signals = List.of(names);
            return this;
        }

        /**
         * Sets options that make a training what it is, such as a seed or the size of a batch. They
         * are compared when the training is resumed.
         *
         * @param options the options by name
         * @return this builder
         */
        public Builder optOptions(Map<String, String> options) {
            this.options = options;
            return this;
        }

        /**
         * Adds something that goes on where the checkpoint found it. Listeners of the trainer that
         * are {@link Resumable} need not be added.
         *
         * @param name its name
         * @param state what goes on
         * @return this builder
         */
        public Builder optState(String name, Resumable state) {
            states.put(name, state);
            return this;
        }

        /**
         * Returns what the processes of a job must have alike, by the name of its setter. What
         * {@code optWhen} says is not known before it is asked. One folder may have several paths.
         */
        Map<String, String> settings() {
            Map<String, String> settings = new LinkedHashMap<>();
            settings.put("optEverySteps", positive(everySteps));
            settings.put("optEveryMinutes", positive(everyNanos / NANOS_OF_MINUTE));
            settings.put("optEveryEpoch", "" + everyEpoch);
            settings.put("optKeep", "" + keep);
            settings.put(
                    "optResumeFrom",
                    resumeFrom == null ? TrainingProgress.NOT_SET : "" + resumeFrom);
            settings.put("optSignals", "" + new TreeSet<>(signals)); // in any order
            new TreeMap<>(options)
                    .forEach((name, value) -> settings.put("optOptions " + name, value));
            settings.put("the names of optState", "" + new TreeSet<>(states.keySet()));
            return settings;
        }

        private static String positive(Number number) {
            return number.doubleValue() == 0 ? TrainingProgress.NOT_SET : "" + number;
        }

        /**
         * Builds the {@link CheckpointListener}.
         *
         * @return the listener
         */
        public CheckpointListener build() {
            String needs = "A CheckpointListener needs a folder: setFolder(path)";
            return new CheckpointListener(this, Errors.given(path, needs));
        }
    }
}

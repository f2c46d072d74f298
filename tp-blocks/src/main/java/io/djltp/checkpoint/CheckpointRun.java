package io.djltp.checkpoint;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.rank.RankPool;
import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/**
 * The checkpoints of a run in its folder: finds the one to go on from, writes new ones in the
 * background, and removes old ones.
 *
 * <p>The process of rank 0 opens the folder first and says which checkpoint is the newest, and the
 * others follow. If one of them cannot, none does, and each says whose folder it is.
 */
final class CheckpointRun implements AutoCloseable {

    static final String NOT_SET = "not set";

    private static final Logger logger = LoggerFactory.getLogger(CheckpointRun.class);

    static final String VALUES = "training"; // among those of a checkpoint
    private static final String OPTIONS = "options";
    private static final long NONE = -1;
    private static final int HEXADECIMAL = 16;

    private final ParallelTrainer trainer;
    private final Agreement agreement;
    private final boolean first; // whether this is the process of rank 0
    private final CheckpointFolder folder;
    private final int keep;
    private final Map<String, String> options; // that make one training another one
    private final TrainingState state;
    private PendingSave last;
    private boolean closed;
    private boolean resumed;
    private boolean lost; // another process
    private long newest = NONE; // the step of the last save that was begun, or resumed from
    private CompletableFuture<Void> ended = CompletableFuture.completedFuture(null);
    private volatile Throwable failure;

    private record Options(Map<String, String> options) {}

    /**
     * Opens the folder. All processes call it.
     *
     * @throws IOException if it cannot be used, or is not one folder, on all processes
     */
    CheckpointRun(Path path, int keep, Map<String, String> options, ParallelTrainer trainer)
            throws IOException {
        this.trainer = trainer;
        this.keep = keep;
        this.options = options;
        agreement = new Agreement(trainer.getState());
        RankPool ranks = trainer.getRanks();
        first = ranks.getContext(0).getRank() == 0;
        folder = openFolder(path);
        state = new TrainingState(trainer);
        trainer.getState().addBeforeChange(() -> lost = ranks.isOver() && ranks.isDistributed());
    }

    private CheckpointFolder openFolder(Path path) throws IOException {
        String use = "use the folder of the checkpoints";
        CheckpointFolder[] opened = new CheckpointFolder[1];
        try {
            agreement.run(use, () -> opened[0] = first ? CheckpointFolder.open(path) : null);
            double run = first ? Long.parseLong(opened[0].getRun(), HEXADECIMAL) : NONE;
            long running = (long) trainer.fromRankZero(run);
            agreement.run(use, () -> opened[0] = first ? opened[0] : join(path, running));
            return opened[0];
        } catch (IOException | RuntimeException e) {
            if (opened[0] != null) {
                opened[0].close();
            }
            throw e;
        }
    }

    private static CheckpointFolder join(Path path, long run) throws IOException {
        CheckpointFolder joined = null;
        CheckpointException why = null;
        try {
            joined = CheckpointFolder.join(path);
        } catch (CheckpointException e) { // there is no folder, or no run has opened it
            why = e;
        }
        if (joined == null || !joined.getRun().equals("%08x".formatted(run))) {
            throw new CheckpointException(
                    path.toAbsolutePath().normalize()
                            + " is not the folder that the process of rank 0 has opened: give all"
                            + " processes one folder that they share",
                    why);
        }
        return joined;
    }

    /**
     * Checks that there are no checkpoints, not to mix two runs in one folder; else this is closed.
     * All processes call it.
     *
     * @throws IllegalStateException if there are some
     */
    void checkEmpty() throws IOException {
        try {
            long step = find(null);
            if (step >= 0) {
                throw new IllegalStateException(
                        folder.getPath()
                                + " has checkpoints of another run, the newest of step "
                                + step
                                + ": resume(trainer) goes on from it; or choose another folder");
            }
        } catch (IOException | RuntimeException e) {
            close();
            throw e;
        }
    }

    /**
     * Puts back the state of the newest checkpoint, or of the one that the user names: newer ones
     * are put aside then. All processes call it.
     *
     * @param named the step that the user names, or null
     * @param progress reads and compares what else belongs to the training, before anything is
     *     changed
     * @return what it has read, or {@code null} if there is no checkpoint
     * @throws CheckpointException if it is damaged: with the newest older one that is whole
     */
    TrainingProgress.Saved restore(Long named, TrainingProgress progress) throws IOException {
        long step = find(named);
        if (step < 0) {
            return null;
        }
        try (Checkpoint checkpoint = open(step)) {
            TrainingProgress.Saved saved =
                    state.restore(
                            checkpoint,
                            () -> {
                                check(checkpoint);
                                return progress.read(checkpoint, trainer);
                            });
            newest = step;
            resumed = true;
            putAside(step);
            return saved;
        } catch (CheckpointException e) {
            throw explain(step, e);
        }
    }

    private void check(Checkpoint checkpoint) throws CheckpointException {
        if (!checkpoint.getValues().has(VALUES)) {
            throw new IllegalArgumentException(
                    checkpoint.getPath() + " was not written by a CheckpointListener");
        }
        Options saved = SavedValues.read(checkpoint, VALUES, Options.class);
        checkOptions(saved.options(), checkpoint.getStep());
    }

    /** Makes room for the checkpoints of the steps to come, now that all processes have read. */
    private void putAside(long step) throws IOException {
        List<Long> newer =
                agreement.get(
                        "put newer checkpoints aside",
                        () -> first ? folder.putAside(step) : List.of());
        if (!newer.isEmpty()) {
            logger.warn(
                    "The training goes on from step {}: its checkpoints of steps {} are put aside",
                    step,
                    newer);
        }
    }

    /**
     * Checks that checkpoints can be written, before one is due.
     *
     * @throws IllegalStateException if this is closed
     */
    void checkOpen() {
        if (closed) {
            throw new IllegalStateException(
                    "No checkpoint is taken, because the CheckpointListener of "
                            + folder.getPath()
                            + " is closed: close it, or the trainer that closes it, after the last"
                            + " step. To train on, resume(trainer) with a new trainer and listener");
        }
    }

    /** Returns whether the run has gone on from a checkpoint. */
    boolean isResumed() {
        return resumed;
    }

    Throwable failure() {
        return failure;
    }

    /** Begins to write a checkpoint, unless there is one of this step that has not failed. */
    void save(long step, TrainingProgress.Noted progress) {
        if (step == newest) {
            ended.join(); // then all processes know whether it has failed
            if (last == null || last.getFailure() == null) {
                return;
            }
        }
        JsonObject values = progress.values();
        JsonObject compared = new JsonObject();
        options.forEach(compared::addProperty);
        values.add(OPTIONS, compared);
        JsonObject all = new JsonObject();
        all.add(VALUES, values);
        PendingSave save = state.save(folder, all, progress.failure());
        newest = step;
        last = save;
        ended = save.toFuture().handle((done, why) -> end(save)); // in the writing thread
    }

    /** What follows a save: where it has failed, that is logged by now. */
    private Void end(PendingSave save) {
        failure = save.getFailure();
        if (failure == null && first) {
            try {
                folder.prune(keep);
            } catch (IOException e) {
                logger.warn("Old checkpoints cannot be removed: {}", e.getMessage());
            }
        }
        return null;
    }

    /** Waits for the last save; returns whether it is complete. */
    boolean await() {
        ended.join();
        return last == null ? newest >= 0 : last.await();
    }

    /**
     * Compares the options with those of a checkpoint.
     *
     * @throws IllegalArgumentException if some differ; it names them with both values
     */
    private void checkOptions(Map<String, String> saved, long step) {
        Set<String> names = new LinkedHashSet<>(options.keySet());
        names.addAll(saved.keySet());
        List<String> differences = new ArrayList<>();
        for (String name : names) {
            String mine = options.getOrDefault(name, NOT_SET);
            String before = saved.getOrDefault(name, NOT_SET);
            if (!mine.equals(before)) {
                differences.add(name + " was " + before + " and is " + mine);
            }
        }
        if (!differences.isEmpty()) {
            throw new IllegalArgumentException(
                    "The checkpoint of step "
                            + step
                            + " is of another training: "
                            + String.join(", ", differences)
                            + ". Resume with the options of the run before, or begin a new run in"
                            + " another folder");
        }
    }

    /**
     * Returns the step of the newest checkpoint, or of the one that the user names. All processes
     * call it.
     *
     * @param named the step that the user names, or null
     * @return the step, or -1 if there is none
     */
    private long find(Long named) throws IOException {
        long step = agreement.get("use its checkpoint", () -> first ? findHere(named) : NONE);
        return (long) trainer.fromRankZero(step);
    }

    private long findHere(Long named) throws IOException {
        try (Checkpoint checkpoint =
                named == null ? folder.openNewest().orElse(null) : folder.openStep(named)) {
            return checkpoint == null ? NONE : checkpoint.getStep();
        } catch (CheckpointException e) {
            throw explain(named, e);
        }
    }

    /** Says what can be done about a checkpoint that is there and cannot be used. */
    private IOException explain(Long named, CheckpointException error) {
        try {
            List<Long> steps = folder.getSteps();
            long step = named == null ? steps.get(steps.size() - 1) : named;
            return steps.contains(step) ? explain(step, error) : error;
        } catch (IOException e) {
            error.addSuppressed(e);
            return error;
        }
    }

    /** Opens a checkpoint. All processes call it. */
    private Checkpoint open(long step) throws IOException {
        Checkpoint[] opened = new Checkpoint[1];
        try {
            agreement.run("open the checkpoint", () -> opened[0] = folder.openStep(step));
            return opened[0];
        } catch (IOException | RuntimeException e) {
            if (opened[0] != null) {
                opened[0].close();
            }
            throw e;
        }
    }

    /**
     * Adds to the error of a checkpoint from which one a training can go on. It never does so by
     * itself: the steps between would be lost without a word.
     *
     * @param step the step of the checkpoint that cannot be used
     * @param error why not
     * @return the error to throw
     */
    private CheckpointException explain(long step, CheckpointException error) throws IOException {
        OptionalLong older = newestBefore(step);
        String remedy =
                older.isPresent()
                        ? String.format(
                                "Of step %d there is a whole one: optResumeFrom(%<d), which is"
                                        + " --resume-from %<d of tp, goes on from it and puts newer"
                                        + " ones aside",
                                older.getAsLong())
                        : "No older one in " + folder.getPath() + " is whole";
        return new CheckpointException(error.getMessage() + ". " + remedy, error);
    }

    /** Returns the newest one before a step of which every byte is as it was written. */
    private OptionalLong newestBefore(long step) throws IOException {
        List<Long> steps = folder.getSteps();
        for (int i = steps.size() - 1; i >= 0; i--) {
            if (steps.get(i) < step && isWhole(steps.get(i))) {
                return OptionalLong.of(steps.get(i));
            }
        }
        return OptionalLong.empty();
    }

    private boolean isWhole(long step) {
        try (Checkpoint checkpoint = folder.openStep(step)) {
            return checkpoint.verify().isEmpty();
        } catch (IOException e) {
            return false;
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        closed = true;
        if (!lost) {
            state.close();
            ended.join();
        } // else the parts of the lost process do not come, and the writing thread gives up later
        try {
            folder.close();
        } catch (IOException e) {
            logger.warn(
                    "{} still has the name of this run in it ({}). The next run can use it all"
                            + " the same",
                    folder.getPath(),
                    e.toString());
        }
    }
}

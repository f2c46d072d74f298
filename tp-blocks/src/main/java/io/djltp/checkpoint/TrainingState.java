package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.head.Margin;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.training.ParallelTrainer;
import io.djltp.training.TrainerState;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The state of a {@link ParallelTrainer}: everything that its next step depends on, written to
 * checkpoints while training goes on, and put back on any number of ranks and any mesh.
 *
 * <p>Used by the thread of the trainer, between two steps, in all processes alike. One for a
 * trainer, which is closed before it.
 */
public final class TrainingState implements AutoCloseable {

    /** The name of the values that belong to the trainer, among those of a checkpoint. */
    public static final String VALUES = "trainer";

    private static final String PARTICIPANTS = "participants";
    private static final String BLOCKS = "blocks";

    private final TrainerState state;
    private final Block network;
    private final StateLayout layout;
    private final OptimizerArrays optimizer;
    private final NetworkNames names;
    private final ParticipantStates participants;
    private final StateComparison comparison;
    private final Agreement agreement;
    private final StateWriter writer;

    /**
     * Creates the state of a trainer.
     *
     * @param trainer the trainer
     */
    public TrainingState(ParallelTrainer trainer) {
        state = trainer.getState();
        network = trainer.getModel().getBlock();
        layout = new StateLayout(state);
        optimizer = new OptimizerArrays(state, layout);
        names = new NetworkNames(network, state.getParameters());
        participants = new ParticipantStates(state, layout, names);
        comparison = new StateComparison(state, layout, optimizer.kinds());
        agreement = new Agreement(state);
        // other processes wait for this one's step in a collective operation
        writer = new StateWriter(state.getConfig().getTimeout().dividedBy(2));
        state.addBeforeChange(writer::awaitRead);
    }

    /**
     * Takes the state and begins to write it. Nothing of the size of a weight is copied: the next
     * forward and backward pass only read the weights, and the update after them waits until all
     * have gone to the files. These are synced, and the checkpoint is completed, while training
     * goes on. A failure ends the save and not the training, and so do weights that take more than
     * half of {@link io.djltp.rank.ParallelConfig#getTimeout()} to write.
     *
     * @param folder where it goes
     * @param values what else the checkpoint holds, under any name but {@link #VALUES}; only those
     *     of the process of rank 0 are kept
     * @return the save, to be asked or waited for
     * @throws IllegalStateException if the trainer is not initialized, or not between two steps, or
     *     this is closed
     */
    public PendingSave save(CheckpointFolder folder, JsonObject values) {
        return save(folder, values, null);
    }

    /**
     * Takes the state and begins to write it, or fails: with the other processes, which may not
     * know of it.
     *
     * @param folder where it goes
     * @param values what else the checkpoint holds
     * @param failure why it cannot be written, or {@code null}
     */
    PendingSave save(CheckpointFolder folder, JsonObject values, RuntimeException failure) {
        writer.checkOpen();
        state.checkBetweenSteps("A checkpoint");
        state.equalizeBuffers();
        JsonObject own = new JsonObject();
        String mesh = state.getConfig().getMesh().toString();
        JsonObject all = values.deepCopy();
        all.add(VALUES, own);
        TakenState taken = new TakenState(layout, state.getStep(), mesh);
        try {
            take(taken, own);
        } catch (RuntimeException | Error e) {
            taken.close();
            throw e;
        }
        return writer.write(taken, folder, all, failure);
    }

    /**
     * Returns the weights in a checkpoint: its tensors but what optimizers and blocks keep.
     *
     * @param checkpoint the checkpoint
     * @return the names of tensors by those of parameters; one that blocks share under each of its
     *     names, that of the first block first. Of a checkpoint that is not of a trainer those
     *     without a slash, since what is kept of a parameter is called {@code parameter/array}
     * @throws CheckpointException if what it says of the trainer is damaged
     */
    public static Map<String, String> getWeights(Checkpoint checkpoint) throws CheckpointException {
        SavedMembers values = SavedMembers.of(checkpoint);
        if (values.has(VALUES)) {
            return StateComparison.named(checkpoint, values.object(VALUES));
        }
        Map<String, String> weights = new LinkedHashMap<>();
        checkpoint.getTensors().keySet().stream()
                .filter(name -> !name.contains("/") && !name.isEmpty())
                .forEach(name -> weights.put(name, name));
        return weights;
    }

    /**
     * Returns the margins that heads were trained with, without which the logits of their weights
     * are others.
     *
     * @param checkpoint the checkpoint
     * @return the margins by the names of the weights' tensors; none of a checkpoint that is not of
     *     a trainer
     * @throws CheckpointException if what it says of the trainer is damaged
     */
    public static Map<String, Margin> getMargins(Checkpoint checkpoint) throws CheckpointException {
        SavedMembers values = SavedMembers.of(checkpoint);
        return values.has(VALUES) ? HeadMargins.read(values.object(VALUES)) : Map.of();
    }

    private void take(TakenState taken, JsonObject values) {
        JsonObject ofParticipants = new JsonObject();
        taken.add(participants.tensors(taken.getManager(), ofParticipants));
        JsonObject ofBlocks = new JsonObject();
        BlockStates blocks = new BlockStates(network);
        taken.add(blocks.tensors(taken.getManager(), layout.ranks(), ofBlocks));
        ParallelParameters parameters = state.getParameters();
        for (Parameter parameter : parameters.getAll()) {
            List<NDArray> held = new ArrayList<>();
            for (RankParameterStore store : parameters.getStores()) {
                held.add(store.getHeld(parameter));
            }
            taken.add(parameter, held);
        }
        taken.add(optimizer.tensors(taken.getManager()));
        comparison.take(network, values);
        HeadMargins.take(network, names, values);
        TrainerValues.take(state, values);
        values.add(PARTICIPANTS, ofParticipants);
        values.add(BLOCKS, ofBlocks);
        Generators.take(state, values);
    }

    /**
     * Puts back the state of a checkpoint, which ranks of another number, mesh or mode may have
     * written. Each rank reads the ranges that it holds. Comes after {@code
     * trainer.initialize(...)}, with the same network and optimizer.
     *
     * @param checkpoint the checkpoint
     * @throws IOException if it cannot be read, or is damaged, in any process: what was not read
     *     yet is as before, and the training can go on only from another checkpoint
     * @throws IllegalArgumentException if it is of another network or optimizer, in any process;
     *     nothing has been changed then
     * @throws IllegalStateException if the trainer is not initialized, or not between two steps, or
     *     another process cannot put it back
     */
    public void restore(Checkpoint checkpoint) throws IOException {
        restore(checkpoint, () -> null);
    }

    /**
     * Puts back the state of a checkpoint.
     *
     * @param checkpoint the checkpoint
     * @param other reads what else belongs to the training, and says by an exception that it does
     *     not fit
     * @return what else belongs to the training
     */
    <T> T restore(Checkpoint checkpoint, Agreement.Source<T> other) throws IOException {
        state.checkBetweenSteps("The restoring of a checkpoint");
        AtomicReference<T> more = new AtomicReference<>();
        SavedState saved =
                agreement.get(
                        "go on from the checkpoint",
                        () -> {
                            more.set(other.get());
                            return read(checkpoint);
                        });
        try {
            state.replace(checkpoint.getStep(), () -> putInAll(checkpoint, saved));
        } catch (UncheckedIOException e) {
            throw e.getCause();
        }
        return more.get();
    }

    private SavedState read(Checkpoint checkpoint) throws CheckpointException {
        SavedMembers values = SavedMembers.of(checkpoint);
        if (!values.has(VALUES)) {
            throw new IllegalArgumentException(
                    "The checkpoint "
                            + checkpoint.getPath()
                            + " holds weights and no state of a trainer");
        }
        SavedMembers own = values.object(VALUES);
        List<String> weights = comparison.check(checkpoint, own);
        HeadMargins.check(checkpoint, own, network, names);
        Map<String, List<String>> ofOptimizer = comparison.ofOptimizer(checkpoint);
        SavedState saved =
                new SavedState(
                        TrainerValues.read(
                                own,
                                weights,
                                ofOptimizer.keySet(),
                                checkpoint.getStep(),
                                state.getLearningRates().getLargestAfter(checkpoint.getStep())),
                        participants.read(checkpoint, own.object(PARTICIPANTS)),
                        BlockStates.read(checkpoint, own.object(BLOCKS)),
                        Generators.read(state, own));
        Set<String> tensors = new HashSet<>(weights);
        ofOptimizer.values().forEach(tensors::addAll);
        saved.checkTensors(checkpoint, own, tensors);
        return saved;
    }

    private void putInAll(Checkpoint checkpoint, SavedState saved) {
        try {
            agreement.run("read the checkpoint", () -> put(checkpoint, saved));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void put(Checkpoint checkpoint, SavedState saved) throws IOException {
        StateReader reader = new StateReader(state, layout, checkpoint, optimizer.kinds());
        agreement.runOnRanks(reader::read);
        for (int rank = 0; rank < layout.ranks(); rank++) {
            participants.restore(rank, checkpoint, saved.participants());
        }
        new BlockStates(network).restore(checkpoint, saved.blocks());
        TrainerValues.put(state, saved.numbers());
        Generators.put(saved.generator());
    }

    /** Waits until the last save is complete or has failed, and ends the writing thread. */
    @Override
    public void close() {
        writer.close();
    }
}

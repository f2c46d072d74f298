package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.training.ParallelTrainer;
import io.djltp.training.TrainerState;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

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
        NetworkNames names = new NetworkNames(network, state.getParameters());
        participants = new ParticipantStates(state, layout, names);
        comparison = new StateComparison(state, layout, optimizer.kinds());
        agreement = new Agreement(state);
        // other processes wait for this one's step in a collective operation
        writer = new StateWriter(state.getConfig().getTimeout().dividedBy(2));
        state.setReader(writer);
    }

    /**
     * Takes the state and begins to write it. Nothing of the size of a weight is copied: the next
     * step waits, before it changes a row, until that row has gone to the files; these are synced
     * and the checkpoint completed while training goes on. A failure ends the save and not the
     * training, and so do weights that take more than half of {@link
     * io.djltp.rank.ParallelConfig#getTimeout()} to write.
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
     */
    public static Map<String, String> getWeights(Checkpoint checkpoint) {
        JsonObject values = checkpoint.getValues().getAsJsonObject(VALUES);
        if (values != null) {
            return StateComparison.named(values);
        }
        Map<String, String> weights = new LinkedHashMap<>();
        checkpoint.getTensors().keySet().stream()
                .filter(name -> !name.contains("/") && !name.isEmpty())
                .forEach(name -> weights.put(name, name));
        return weights;
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
        taken.order(participants.parameters());
        comparison.take(network, values);
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
        restore(checkpoint, () -> {});
    }

    /**
     * Puts back the state of a checkpoint.
     *
     * @param checkpoint the checkpoint
     * @param check says by an exception that what else belongs to the training does not fit it
     */
    void restore(Checkpoint checkpoint, Agreement.Task check) throws IOException {
        state.checkBetweenSteps("The restoring of a checkpoint");
        try {
            restoreInAll(checkpoint, check);
        } catch (UncheckedIOException e) {
            throw e.getCause();
        }
    }

    private void restoreInAll(Checkpoint checkpoint, Agreement.Task check) throws IOException {
        JsonObject values = checkpoint.getValues().getAsJsonObject(VALUES);
        agreement.run(
                "go on from the checkpoint",
                () -> {
                    if (values == null) {
                        throw new IllegalArgumentException(
                                "The checkpoint "
                                        + checkpoint.getPath()
                                        + " holds weights and no state of a trainer");
                    }
                    check.run();
                    comparison.check(checkpoint, values);
                });
        state.replace(checkpoint.getStep(), () -> putInAll(checkpoint, values));
    }

    private void putInAll(Checkpoint checkpoint, JsonObject values) {
        try {
            agreement.run("read the checkpoint", () -> put(checkpoint, values));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private void put(Checkpoint checkpoint, JsonObject values) throws IOException {
        StateReader reader = new StateReader(state, layout, checkpoint, optimizer.kinds());
        agreement.runOnRanks(reader::read);
        for (int rank = 0; rank < layout.ranks(); rank++) {
            participants.restore(rank, checkpoint, values.getAsJsonObject(PARTICIPANTS));
        }
        new BlockStates(network).restore(checkpoint, values.getAsJsonObject(BLOCKS));
        TrainerValues.put(state, values);
        Generators.put(state, values);
    }

    /** Waits until the last save is complete or has failed, and ends the writing thread. */
    @Override
    public void close() {
        writer.close();
    }
}

package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.StateWriter.PendingSave;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.optimizer.OptimizerState;
import io.djltp.internal.optimizer.StateKind;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.parameters.StatefulBlock;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.training.ParallelTrainer;
import io.djltp.training.TrainerState;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;

/**
 * The state of a {@link ParallelTrainer}: everything that its next step depends on, written to
 * checkpoints while training goes on, and put back on any number of ranks and any mesh.
 *
 * <p>Used by the thread of the trainer, between two steps, in all processes alike. One for a
 * trainer, which is closed before it.
 */
final class TrainingState implements AutoCloseable {

    /** Of weights, which change in steps, trained or frozen; others are buffers of a block. */
    private static final Set<Parameter.Type> WEIGHTS =
            Set.of(
                    Parameter.Type.WEIGHT,
                    Parameter.Type.BIAS,
                    Parameter.Type.GAMMA,
                    Parameter.Type.BETA);

    private static final DataType[] STATE_TYPES = {null, DataType.FLOAT32, DataType.FLOAT64};

    private final TrainerState state;
    private final ParallelParameters parameters;
    private final Block network;
    private final StateLayout layout;
    private final List<StateKind> kinds; // what the optimizer keeps of each parameter
    private final ParticipantStates participants;
    private final TrainerValues values;
    private final Agreement agreement;
    private final StateWriter writer;

    /**
     * A tensor of the state.
     *
     * @param tensor what the whole is, and which ranges each part has
     * @param arrays what each rank of this process has of it
     */
    record Tensor(CutTensor tensor, List<NDArray> arrays) {}

    /**
     * The state after a step: views of what changes in steps alone, copies of what forward passes
     * change.
     *
     * @param manager the manager of views and copies: not the trainer's, which it may outlive
     * @param values the values of the checkpoint
     * @param failure why it cannot be written, or {@code null}
     */
    record TakenState(
            long step,
            NDManager manager,
            List<Tensor> tensors,
            JsonObject values,
            @Nullable RuntimeException failure)
            implements AutoCloseable {

        @Override
        public void close() {
            manager.close();
        }
    }

    TrainingState(ParallelTrainer trainer) {
        state = trainer.getState();
        parameters = state.getParameters();
        network = trainer.getModel().getBlock();
        layout = new StateLayout(state, network);
        kinds = StateKind.of(state.getOptimizer());
        participants = new ParticipantStates(state, layout);
        agreement = new Agreement(state);
        values = new TrainerValues(state, network, layout, agreement);
        writer =
                new StateWriter(
                        layout,
                        state.getConfig().getMesh().toString(),
                        // other processes wait for this one's step in a collective operation
                        state.getConfig().getTimeout().dividedBy(2));
        state.addBeforeChange(writer::awaitRead);
    }

    /** Returns why the last save that ended has failed; {@code null} if it has not. */
    @Nullable Throwable failure() {
        return writer.failure();
    }

    /**
     * Takes the state and begins to write it. Nothing of the size of a weight is copied: the next
     * forward and backward pass only read the weights, and the update after them waits until all
     * have gone to the files. These are synced, and the checkpoint is completed, while training
     * goes on. A failure ends the save and not the training, and so do weights that take more than
     * half of {@link io.djltp.rank.ParallelConfig#getTimeout()} to write.
     *
     * @param folder where it goes
     * @param keep how many checkpoints stay when it is complete
     * @param more what else the checkpoint holds, under any name but {@link TrainerValues#NAME};
     *     only those of the process of rank 0 are kept
     * @param failure why it cannot be written, or {@code null}: it then fails in all processes
     * @return the save, to be asked or waited for
     * @throws IllegalStateException if the trainer is not initialized, or not between two steps, or
     *     this is closed
     */
    PendingSave save(
            CheckpointFolder folder,
            int keep,
            JsonObject more,
            @Nullable RuntimeException failure) {
        state.checkBetweenSteps("A checkpoint");
        state.equalizeBuffers();
        TakenState taken =
                new TakenState(
                        state.getStep(),
                        NDManager.newBaseManager(),
                        new ArrayList<>(),
                        more.deepCopy(),
                        failure);
        try {
            taken.values().add(TrainerValues.NAME, CheckpointIndex.toJson(take(taken)));
        } catch (RuntimeException | Error e) {
            taken.close();
            throw e;
        }
        return writer.write(taken, folder, keep);
    }

    private TrainerValues.Saved take(TakenState taken) {
        List<Tensor> tensors = taken.tensors();
        Map<String, Map<String, ParticipantStates.SavedCut>> ofParticipants = new LinkedHashMap<>();
        tensors.addAll(participants.tensors(taken.manager(), ofParticipants));
        Map<String, List<String>> ofBlocks = new LinkedHashMap<>();
        takeBlocks(taken, ofBlocks);
        for (Parameter parameter : parameters.getAll()) {
            boolean changes = // in forward passes, as buffers of a block do
                    !parameter.requiresGradient() && !WEIGHTS.contains(parameter.getType());
            List<NDArray> held = new ArrayList<>();
            for (RankParameterStore store : parameters.getStores()) {
                NDArray view = Autograd.detach(store.getHeld(parameter), taken.manager());
                boolean copied = changes || !TensorView.of(view).isContiguous();
                held.add(copied ? view.duplicate() : view);
            }
            tensors.add(new Tensor(layout.ofWeight(parameter), held));
        }
        takeOptimizer(taken);
        return values.take(ofParticipants, ofBlocks);
    }

    /** Takes what blocks keep that is the same on all ranks, such as the number of masks. */
    private void takeBlocks(TakenState taken, Map<String, List<String>> names) {
        StatefulBlock.of(network)
                .forEach(
                        (path, block) -> {
                            Map<String, NDArray> arrays =
                                    new TreeMap<>(block.getTrainingState(taken.manager()));
                            names.put(path, List.copyOf(arrays.keySet()));
                            arrays.forEach(
                                    (name, array) ->
                                            taken.tensors().add(ofBlock(path + "/" + name, array)));
                        });
    }

    private Tensor ofBlock(String name, NDArray array) {
        CutTensor tensor = CutTensor.whole(name, array.getDataType(), array.getShape());
        return new Tensor(tensor, Collections.nCopies(layout.ranks(), array));
    }

    /**
     * Takes what the optimizer keeps of each parameter, as tensors of the parameter's shape
     * (momentum, means) or with one number for each of its rows.
     *
     * <p>A rank has no state of a weight for which it has never had a gradient, such as a table of
     * which no row was used; another rank may have. So the ranks first agree on what there is, and
     * who has none makes one of zeros, which stands for the same. All processes call it: one
     * all-gather.
     */
    private void takeOptimizer(TakenState taken) {
        if (kinds.isEmpty()) {
            return;
        }
        List<Parameter> all = parameters.getAll();
        List<List<Tensor>> ofRanks =
                state.getRanks().run(context -> takeOptimizer(context, all, taken.manager()));
        for (int i = 0; i < ofRanks.get(0).size(); i++) {
            int number = i;
            List<NDArray> arrays =
                    ofRanks.stream().map(each -> each.get(number).arrays().get(0)).toList();
            taken.tensors().add(new Tensor(ofRanks.get(0).get(i).tensor(), arrays));
        }
    }

    /** Takes that of one rank. What ranks share out is gathered, for the one that writes it. */
    private List<Tensor> takeOptimizer(
            ParallelContext context, List<Parameter> all, NDManager manager) {
        int rank = context.getLocalIndex();
        OptimizerState held = state.getOptimizerState(rank);
        int[] types = agree(context, all);
        boolean writes = layout.writers().containsValue(rank);
        List<Tensor> taken = new ArrayList<>();
        for (int i = 0; i < types.length; i++) {
            if (types[i] == 0) {
                continue;
            }
            String name = layout.nameOf(all.get(i));
            NDManager scope = manager.newSubManager();
            Map<String, NDArray> whole = held.getWhole(name, scope); // [rows, elements of a row]
            for (StateKind kind : kinds) {
                CutTensor tensor = layout.ofState(all.get(i), kind, STATE_TYPES[types[i]]);
                NDArray array = Objects.requireNonNull(whole.get(kind.name()), kind.name());
                Shape shape = tensor.getShardShape(layout.partOf(rank));
                taken.add(new Tensor(tensor, List.of(array.reshape(shape))));
            }
            if (!writes) {
                scope.close(); // nobody reads it
            }
        }
        return taken;
    }

    /** Returns the type of the state of each parameter, 0 where no rank has one. */
    private int[] agree(ParallelContext context, List<Parameter> all) {
        OptimizerState held = state.getOptimizerState(context.getLocalIndex());
        NDManager manager = parameters.getStore(context).getManager();
        long[] own = new long[all.size()];
        Arrays.setAll(own, i -> typeOf(held, layout.nameOf(all.get(i)), manager));
        long[] ofAll =
                GatheredNumbers.of(context.getWorld(), manager, own, "the state of the optimizer");
        int[] types = new int[own.length];
        for (int i = 0; i < ofAll.length; i++) {
            types[i % own.length] = Math.max(types[i % own.length], (int) ofAll[i]);
        }
        for (int i = 0; i < own.length; i++) {
            if (own[i] == 0 && types[i] > 0) {
                held.prepare(layout.nameOf(all.get(i)), STATE_TYPES[types[i]]);
            }
        }
        return types;
    }

    private static int typeOf(OptimizerState held, String name, NDManager manager) {
        try (NDManager scope = manager.newSubManager()) {
            return held.get(name, scope).values().stream()
                    .map(array -> Arrays.asList(STATE_TYPES).indexOf(array.getDataType()))
                    .findFirst()
                    .orElse(0);
        }
    }

    /**
     * Puts back the state of a checkpoint, which ranks of another number, mesh or mode may have
     * written. Each rank reads the ranges that it holds. Comes after {@code
     * trainer.initialize(...)}, with the same network and optimizer.
     *
     * @param checkpoint the checkpoint
     * @param other reads what else belongs to the training, and says by an exception that it does
     *     not fit
     * @return what else belongs to the training
     * @throws IOException if it cannot be read, or is damaged, in any process: what was not read
     *     yet is as before, and the training can go on only from another checkpoint
     * @throws IllegalArgumentException if it is of another network or optimizer, in any process;
     *     nothing has been changed then
     * @throws IllegalStateException if the trainer is not initialized, or not between two steps, or
     *     another process cannot put it back
     */
    <T> T restore(Checkpoint checkpoint, Callable<T> other) throws IOException {
        state.checkBetweenSteps("The restoring of a checkpoint");
        List<T> more = new ArrayList<>(1);
        TrainerValues.Saved saved =
                agreement.run(
                        "go on from the checkpoint",
                        () -> {
                            more.add(other.call());
                            return read(checkpoint);
                        });
        try {
            state.replace(checkpoint.getStep(), () -> putInAll(checkpoint, saved));
        } catch (UncheckedIOException e) {
            throw e.getCause();
        }
        return more.get(0);
    }

    private static NDArray array(
            OptimizerState held, String name, StateKind kind, NDManager manager) {
        return Objects.requireNonNull(held.get(name, manager).get(kind.name()), kind.name());
    }

    private TrainerValues.Saved read(Checkpoint checkpoint) throws CheckpointException {
        TrainerValues.Saved saved = TrainerValues.read(checkpoint);
        if (saved == null) {
            throw Errors.argument(
                    "The checkpoint %s holds weights and no state of a trainer",
                    checkpoint.getPath());
        }
        values.check(checkpoint, saved);
        return saved;
    }

    private void putInAll(Checkpoint checkpoint, TrainerValues.Saved saved) {
        try {
            agreement.run("read the checkpoint", () -> put(checkpoint, saved));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private Void put(Checkpoint checkpoint, TrainerValues.Saved saved) throws IOException {
        agreement.runOnRanks(context -> read(context, checkpoint));
        for (int rank = 0; rank < layout.ranks(); rank++) {
            participants.restore(rank, checkpoint, saved.participants());
        }
        try (NDManager scope = NDManager.newBaseManager()) {
            for (Map.Entry<String, StatefulBlock> block : StatefulBlock.of(network).entrySet()) {
                Map<String, NDArray> arrays = new TreeMap<>();
                for (String name : saved.blocks().getOrDefault(block.getKey(), List.of())) {
                    arrays.put(name, checkpoint.read(block.getKey() + "/" + name, scope));
                }
                block.getValue().setTrainingState(arrays);
            }
        }
        values.put(saved);
        return null;
    }

    /**
     * Reads what a rank holds, in its thread, into the arrays that it has: the ranges that it holds
     * by the cuts of its own mesh, one tensor after another.
     */
    private void read(ParallelContext context, Checkpoint checkpoint) throws IOException {
        OptimizerState held = state.getOptimizerState(context.getLocalIndex());
        NDManager manager = parameters.getStore(context).getManager();
        for (Parameter parameter : parameters.getAll()) {
            NDArray value = parameters.getStore(context).getHeld(parameter);
            read(context, checkpoint, layout.ofWeight(parameter), value, null);
            String name = layout.nameOf(parameter);
            held.free(name);
            for (StateKind kind : kinds) {
                CutTensor stored = checkpoint.getTensors().get(layout.nameOf(parameter, kind));
                if (stored != null) {
                    held.prepare(name, stored.type());
                    CutTensor own = layout.ofState(parameter, kind, stored.type());
                    try (NDManager scope = manager.newSubManager()) {
                        NDArray array = array(held, name, kind, scope);
                        read(context, checkpoint, own, array, held.getRange(name));
                    }
                }
            }
        }
    }

    /**
     * Reads a rank's part, or a range of its elements, into its memory, where it may have another
     * shape.
     */
    @SuppressWarnings("try") // a scope is used by being open
    private void read(
            ParallelContext context,
            Checkpoint checkpoint,
            CutTensor tensor,
            NDArray target,
            @Nullable ShardRange range)
            throws IOException {
        List<ShardRange> ranges = layout.rangesOf(tensor, context.getLocalIndex());
        TensorView view = TensorView.of(target);
        if (range == null
                && target.getDataType() == tensor.type()
                && view.isContiguous()
                && !view.getDevice().isGpu()) {
            checkpoint.readInto(tensor.name(), tensor.axis(), ranges, target);
            return;
        }
        NDManager manager = parameters.getStore(context).getManager();
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = manager.newSubManager()) {
            NDArray part = checkpoint.read(tensor.name(), tensor.axis(), ranges, scope);
            if (range != null) {
                part = part.reshape(-1).get("{}:{}", range.start(), range.end());
            }
            if (part.size() > 0) {
                target.set(new NDIndex("..."), part.reshape(target.getShape()));
            }
        }
    }

    /** Waits until the last save is complete or has failed, and ends the writing thread. */
    @Override
    public void close() {
        writer.close();
    }
}

package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointException;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.checkpoint.store.CheckpointWriter;
import io.djltp.checkpoint.store.CutTensor;
import io.djltp.collective.GatheredNumbers;
import io.djltp.cut.ShardRange;
import io.djltp.head.Margin;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.optimizer.OptimizerState;
import io.djltp.optimizer.StateKind;
import io.djltp.parameters.BlockWalk;
import io.djltp.parameters.ParallelParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.StatefulBlock;
import io.djltp.rank.ParallelContext;
import io.djltp.training.ParallelTrainer;
import io.djltp.training.TrainerState;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;

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

    /** Of weights, which change in steps, trained or frozen; others are buffers of a block. */
    private static final Set<Parameter.Type> WEIGHTS =
            Set.of(
                    Parameter.Type.WEIGHT,
                    Parameter.Type.BIAS,
                    Parameter.Type.GAMMA,
                    Parameter.Type.BETA);

    private static final Logger logger = LoggerFactory.getLogger(TrainingState.class);

    private final TrainerState state;
    private final Block network;
    private final StateLayout layout;
    private final OptimizerArrays optimizer;
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
     */
    private record TakenState(long step, NDManager manager, List<Tensor> tensors)
            implements AutoCloseable {

        @Override
        public void close() {
            manager.close();
        }
    }

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
        Map<Object, String> paths = new IdentityHashMap<>();
        BlockWalk.of(network, (block, path, certain) -> paths.put(block, path));
        Function<Object, String> names =
                part ->
                        part instanceof Parameter parameter
                                ? state.getParameters().nameOf(parameter)
                                : paths.get(part);
        participants = new ParticipantStates(state, layout, names);
        agreement = new Agreement(state);
        values = new TrainerValues(state, network, layout, agreement, optimizer.kinds(), names);
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
     * @param more what else the checkpoint holds, under any name but {@link #VALUES}; only those of
     *     the process of rank 0 are kept
     * @return the save, to be asked or waited for
     * @throws IllegalStateException if the trainer is not initialized, or not between two steps, or
     *     this is closed
     */
    public PendingSave save(CheckpointFolder folder, JsonObject more) {
        return save(folder, more, null);
    }

    /**
     * Takes the state and begins to write it, or fails: with the other processes, which may not
     * know of it.
     *
     * @param folder where it goes
     * @param more what else the checkpoint holds
     * @param failure why it cannot be written, or {@code null}
     */
    PendingSave save(CheckpointFolder folder, JsonObject more, RuntimeException failure) {
        writer.checkOpen();
        state.checkBetweenSteps("A checkpoint");
        state.equalizeBuffers();
        JsonObject all = more.deepCopy();
        TakenState taken =
                new TakenState(state.getStep(), NDManager.newBaseManager(), new ArrayList<>());
        try {
            all.add(VALUES, SavedValues.toJson(take(taken)));
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
        if (checkpoint.getValues().has(VALUES)) {
            return TrainerValues.read(checkpoint).named();
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
        return checkpoint.getValues().has(VALUES)
                ? TrainerValues.read(checkpoint).margins()
                : Map.of();
    }

    private TrainerValues.Saved take(TakenState taken) {
        Map<String, Map<String, ParticipantStates.SavedCut>> ofParticipants = new LinkedHashMap<>();
        taken.tensors().addAll(participants.tensors(taken.manager(), ofParticipants));
        Map<String, List<String>> ofBlocks = new LinkedHashMap<>();
        taken.tensors().addAll(blockTensors(taken.manager(), ofBlocks));
        ParallelParameters parameters = state.getParameters();
        for (Parameter parameter : parameters.getAll()) {
            boolean changes = // in forward passes, as buffers of a block do
                    !parameter.requiresGradient() && !WEIGHTS.contains(parameter.getType());
            List<NDArray> held = new ArrayList<>();
            for (RankParameterStore store : parameters.getStores()) {
                NDArray view = Autograd.detach(store.getHeld(parameter), taken.manager());
                boolean copied = changes || !TensorView.of(view).isContiguous();
                held.add(copied ? view.duplicate() : view);
            }
            taken.tensors().add(new Tensor(layout.ofWeight(parameter), held));
        }
        taken.tensors().addAll(optimizer.tensors(taken.manager()));
        return values.take(ofParticipants, ofBlocks);
    }

    /** Returns what blocks keep that is the same on all ranks, such as the number of masks. */
    private List<Tensor> blockTensors(NDManager manager, Map<String, List<String>> names) {
        List<Tensor> tensors = new ArrayList<>();
        StatefulBlock.of(network)
                .forEach(
                        (path, block) -> {
                            List<String> own = new ArrayList<>();
                            new TreeMap<>(block.getTrainingState(manager))
                                    .forEach(
                                            (name, array) -> {
                                                own.add(name);
                                                tensors.add(tensorOf(path + "/" + name, array));
                                            });
                            names.put(path, own);
                        });
        return tensors;
    }

    private Tensor tensorOf(String name, NDArray array) {
        return new Tensor(
                CutTensor.whole(name, array.getDataType(), array.getShape()),
                Collections.nCopies(layout.ranks(), array));
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
        TrainerValues.Saved saved =
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

    private TrainerValues.Saved read(Checkpoint checkpoint) throws CheckpointException {
        if (!checkpoint.getValues().has(VALUES)) {
            throw new IllegalArgumentException(
                    "The checkpoint "
                            + checkpoint.getPath()
                            + " holds weights and no state of a trainer");
        }
        TrainerValues.Saved saved = TrainerValues.read(checkpoint);
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

    private void put(Checkpoint checkpoint, TrainerValues.Saved saved) throws IOException {
        agreement.runOnRanks(context -> read(context, checkpoint));
        for (int rank = 0; rank < layout.ranks(); rank++) {
            participants.restore(rank, checkpoint, saved.participants());
        }
        restoreBlocks(checkpoint, saved.blocks());
        values.put(saved);
    }

    /**
     * Reads what a rank holds, in its thread, into the arrays that it has: the ranges that it holds
     * by the cuts of its own mesh, one tensor after another.
     */
    private void read(ParallelContext context, Checkpoint checkpoint) throws IOException {
        ParallelParameters parameters = state.getParameters();
        OptimizerState held = state.getOptimizerState(context.getLocalIndex());
        for (Parameter parameter : parameters.getAll()) {
            NDArray value = parameters.getStore(context).getHeld(parameter);
            read(context, checkpoint, layout.ofWeight(parameter), value);
            String name = parameters.nameOf(parameter);
            held.free(name);
            List<StateKind> kinds = optimizer.kinds();
            if (!kinds.isEmpty()
                    && checkpoint
                            .getTensors()
                            .containsKey(layout.nameOf(parameter, kinds.get(0)))) {
                readState(context, checkpoint, parameter, held);
            }
        }
    }

    private void readState(
            ParallelContext context,
            Checkpoint checkpoint,
            Parameter parameter,
            OptimizerState held)
            throws IOException {
        String name = state.getParameters().nameOf(parameter);
        try (NDManager scope =
                state.getParameters().getStore(context).getManager().newSubManager()) {
            for (StateKind kind : optimizer.kinds()) {
                CutTensor stored = checkpoint.getTensors().get(layout.nameOf(parameter, kind));
                held.prepare(name, stored.type());
                Map<String, NDArray> arrays = held.get(name, scope);
                CutTensor own = layout.ofState(parameter, kind, stored.type());
                read(context, checkpoint, own, arrays.get(kind.name()));
            }
        }
    }

    /** Reads a rank's part into its memory, where it may have another shape. */
    @SuppressWarnings("try") // a scope is used by being open
    private void read(
            ParallelContext context, Checkpoint checkpoint, CutTensor tensor, NDArray target)
            throws IOException {
        List<ShardRange> ranges = layout.rangesOf(tensor, context.getLocalIndex());
        TensorView view = TensorView.of(target);
        if (target.getDataType() == tensor.type()
                && view.isContiguous()
                && !view.getDevice().isGpu()) {
            checkpoint.readInto(tensor.name(), tensor.axis(), ranges, target);
            return;
        }
        NDManager manager = state.getParameters().getStore(context).getManager();
        try (Autograd.GradMode mode = Autograd.gradMode(false);
                NDManager scope = manager.newSubManager()) {
            NDArray part = checkpoint.read(tensor.name(), tensor.axis(), ranges, scope);
            if (part.size() > 0) {
                target.set(new NDIndex("..."), part.reshape(target.getShape()));
            }
        }
    }

    private void restoreBlocks(Checkpoint checkpoint, Map<String, List<String>> names)
            throws IOException {
        try (NDManager scope = NDManager.newBaseManager()) {
            for (Map.Entry<String, StatefulBlock> block : StatefulBlock.of(network).entrySet()) {
                Map<String, NDArray> state = new TreeMap<>();
                for (String name : names.getOrDefault(block.getKey(), List.of())) {
                    state.put(name, checkpoint.read(block.getKey() + "/" + name, scope));
                }
                block.getValue().setTrainingState(state);
            }
        }
    }

    /** Waits until the last save is complete or has failed, and ends the writing thread. */
    @Override
    public void close() {
        writer.close();
    }

    /**
     * What the optimizer keeps of each parameter, as tensors of the parameter's shape (momentum,
     * means) or with one number for each of its rows.
     *
     * <p>A rank has no state of a weight for which it has never had a gradient, such as a table of
     * which no row was used; another rank may have. So the ranks first agree on what there is, and
     * who has none makes one of zeros, which stands for the same.
     */
    private static final class OptimizerArrays {

        private static final DataType[] TYPES = {null, DataType.FLOAT32, DataType.FLOAT64};

        private final TrainerState state;
        private final StateLayout layout;
        private final List<StateKind> kinds;

        OptimizerArrays(TrainerState state, StateLayout layout) {
            this.state = state;
            this.layout = layout;
            kinds = StateKind.of(state.getOptimizer());
        }

        /** Returns what the optimizer keeps of a weight. */
        List<StateKind> kinds() {
            return kinds;
        }

        /**
         * Returns the tensors. All processes call it: one all-gather.
         *
         * @param manager the manager of the views
         */
        List<Tensor> tensors(NDManager manager) {
            List<Tensor> tensors = new ArrayList<>();
            if (kinds.isEmpty()) {
                return tensors;
            }
            ParallelParameters parameters = state.getParameters();
            List<Parameter> all = parameters.getAll();
            int[] types = state.getRanks().run(context -> agree(context, all)).get(0);
            for (int i = 0; i < types.length; i++) {
                if (types[i] > 0) {
                    String name = parameters.nameOf(all.get(i));
                    for (StateKind kind : kinds) {
                        CutTensor tensor = layout.ofState(all.get(i), kind, TYPES[types[i]]);
                        tensors.add(new Tensor(tensor, views(name, kind, tensor, manager)));
                    }
                }
            }
            return tensors;
        }

        /** Returns the type of the state of each parameter, 0 where no rank has one. */
        private int[] agree(ParallelContext context, List<Parameter> all) {
            ParallelParameters parameters = state.getParameters();
            OptimizerState held = state.getOptimizerState(context.getLocalIndex());
            NDManager manager = parameters.getStore(context).getManager();
            long[] own = new long[all.size()];
            Arrays.setAll(own, i -> typeOf(held, parameters.nameOf(all.get(i)), manager));
            long[] ofAll =
                    GatheredNumbers.of(
                            context.getWorld(), manager, own, "the state of the optimizer");
            int[] types = new int[own.length];
            for (int i = 0; i < ofAll.length; i++) {
                types[i % own.length] = Math.max(types[i % own.length], (int) ofAll[i]);
            }
            for (int i = 0; i < own.length; i++) {
                if (own[i] == 0 && types[i] > 0) {
                    held.prepare(parameters.nameOf(all.get(i)), TYPES[types[i]]);
                }
            }
            return types;
        }

        private static int typeOf(OptimizerState held, String name, NDManager manager) {
            try (NDManager scope = manager.newSubManager()) {
                Map<String, NDArray> arrays = held.get(name, scope);
                return arrays.isEmpty()
                        ? 0
                        : Arrays.asList(TYPES)
                                .indexOf(arrays.values().iterator().next().getDataType());
            }
        }

        /** The optimizer keeps [rows, elements of a row] of any weight. */
        private List<NDArray> views(
                String name, StateKind kind, CutTensor tensor, NDManager manager) {
            List<NDArray> views = new ArrayList<>();
            for (int rank = 0; rank < state.getRanks().size(); rank++) {
                NDArray view = state.getOptimizerState(rank).get(name, manager).get(kind.name());
                views.add(view.reshape(tensor.getShardShape(layout.partOf(rank))));
            }
            return views;
        }
    }

    /**
     * Writes states in a thread of its own, one after the other. Before weights are changed, {@link
     * #awaitRead()} waits until that thread has read them.
     */
    private final class StateWriter implements AutoCloseable {

        private final Duration limit;
        private final ExecutorService thread =
                Executors.newSingleThreadExecutor(
                        task -> {
                            Thread writing = new Thread(task, "checkpoint");
                            writing.setDaemon(true); // a disk that hangs does not keep the process
                            return writing;
                        });
        private PendingSave last;

        /**
         * Creates a writer.
         *
         * @param limit how long a step waits for the weights to be written
         */
        StateWriter(Duration limit) {
            this.limit = limit;
        }

        /**
         * Begins to write a state, which this closes, whatever happens.
         *
         * @param taken the state
         * @param folder where it goes
         * @param values the values of the checkpoint
         * @param failure why there will be no checkpoint, or {@code null}
         */
        PendingSave write(
                TakenState taken,
                CheckpointFolder folder,
                JsonObject values,
                RuntimeException failure) {
            PendingSave save = new PendingSave(taken.step());
            if (last != null && last.isGivenUp() && !last.isDone()) {
                taken.close();
                save.fail(
                        new CheckpointException(
                                "the checkpoint of step "
                                        + last.getStep()
                                        + " was given up, and is still being written: is the disk of "
                                        + folder.getPath()
                                        + " there?"));
                return save;
            }
            awaitRead(); // of a save without a step between
            last = save;
            try {
                thread.execute(() -> write(save, taken, folder, values, failure));
            } catch (RuntimeException | Error e) { // no thread to be had: nobody will read it
                taken.close();
                save.fail(e);
            }
            return save;
        }

        /**
         * Checks that states can be written, before one is taken.
         *
         * @throws IllegalStateException if this is closed
         */
        void checkOpen() {
            if (thread.isShutdown()) {
                throw new IllegalStateException(
                        "No checkpoint is taken, because the TrainingState is closed: close it after"
                                + " the last save, or make another one of the trainer");
            }
        }

        private void write(
                PendingSave save,
                TakenState taken,
                CheckpointFolder folder,
                JsonObject values,
                RuntimeException failure) {
            try (taken;
                    CheckpointWriter writer = begin(taken, folder)) {
                if (failure != null) {
                    throw failure; // the other processes hear of it from the writer
                }
                writer.stream();
                if (!save.endReading()) {
                    throw new CheckpointException(
                            "the weights were not written before the next step had to change them");
                }
                taken.close(); // the trainer may free its weights while files are synced
                writer.finish(values);
            } catch (IOException | RuntimeException | Error e) {
                save.fail(e);
                return;
            }
            save.complete();
        }

        private CheckpointWriter begin(TakenState taken, CheckpointFolder folder)
                throws IOException {
            String mesh = state.getConfig().getMesh().toString();
            CheckpointWriter writer =
                    folder.begin(taken.step(), mesh, layout.parts(), layout.ownParts());
            try {
                for (Tensor each : taken.tensors()) {
                    writer.declare(each.tensor());
                    for (int rank = 0; rank < layout.ranks(); rank++) {
                        if (layout.isWriter(rank)) {
                            writer.put(
                                    each.tensor().name(),
                                    layout.partOf(rank),
                                    each.arrays().get(rank));
                        }
                    }
                }
                return writer;
            } catch (RuntimeException | Error e) {
                writer.close();
                throw e;
            }
        }

        /** Waits until the last state was read, or gives its save up. */
        void awaitRead() {
            if (last != null && !last.isGivenUp() && !last.awaitRead(limit)) {
                logger.warn(
                        "The checkpoint of step {} is given up: the weights were not written within {}."
                                + " Training goes on",
                        last.getStep(),
                        limit);
            }
        }

        /** Ends the thread after the last save. */
        @Override
        public void close() {
            thread.shutdown();
            awaitRead(); // or gives it up
            boolean interrupted = Thread.interrupted();
            try {
                if (last != null && !last.isGivenUp()) {
                    last.await();
                }
                if (!thread.awaitTermination(1, TimeUnit.SECONDS)) {
                    thread.shutdownNow(); // closes a channel that hangs
                }
            } catch (InterruptedException e) {
                interrupted = true;
                thread.shutdownNow();
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

package io.djltp.internal.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.collective.Communicator;
import io.djltp.internal.collective.CollectiveCall;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.io.DataOutputStream;
import java.io.IOException;
import java.io.OutputStream;

/**
 * Where the whole of a parameter comes from while the ranks hold its shards: they are put together
 * in the model, for a while, to be saved, or for good. In a job of several processes all of them
 * call the same.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class WeightSource {

    /** The issuer of what the save of a model calls. */
    public static final String SAVE = "the save of the model, which all processes call";

    private static final String GATHERING = ", gathering ";

    private final NDManager modelManager;
    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final ParameterShards shards;
    private Runnable beforeSave = () -> {};
    private @Nullable Parameter whole; // gathered for its rows
    private boolean ended; // the model has its values again
    private int gathered; // in this save
    private int skipped; // gathered already, where a save is repeated

    WeightSource(
            NDManager modelManager,
            RankPool ranks,
            ParallelParameters parameters,
            ParameterShards shards) {
        this.modelManager = modelManager;
        this.ranks = ranks;
        this.parameters = parameters;
        this.shards = shards;
    }

    /** Writes a model. */
    @FunctionalInterface
    public interface Writer {

        /**
         * Writes the model, whose parameters are gathered on the way.
         *
         * @throws IOException if it cannot be written
         */
        void write() throws IOException;
    }

    /** Sets what is done before a parameter is gathered for saving. */
    void setSaving(Runnable check) {
        beforeSave = check;
    }

    /**
     * Saves a model in the process that writes it. If it cannot be written, the parameters that are
     * left are gathered nevertheless, because the other processes do so.
     */
    void save(Block block, Writer writer) throws IOException {
        gathered = 0;
        try {
            writer.write();
        } catch (IOException | RuntimeException e) {
            if (ranks.isDistributed() && !ranks.isOver()) {
                joinTheRest(block, e);
            }
            throw e;
        }
    }

    private void joinTheRest(Block block, Exception failure) {
        skipped = gathered;
        try {
            join(block);
        } catch (IOException | RuntimeException e) {
            failure.addSuppressed(e);
        } finally {
            skipped = 0;
        }
    }

    /** Takes part in a save that another process writes. */
    void join(Block block) throws IOException {
        block.saveParameters(new DataOutputStream(OutputStream.nullOutputStream()));
    }

    /** Saves a parameter that is sharded, gathered for this. */
    synchronized void save(Parameter parameter, DataOutputStream os) throws IOException {
        DjlFormat.check(parameter.getName(), parameter);
        if (ended) { // while the file was written: what is left is in the model
            HeldParameters.checkWhole(parameter, "What is saved");
            parameter.save(os);
            return;
        }
        gather(parameter);
        try {
            parameter.save(os);
        } finally {
            release(parameter);
        }
    }

    /** Gathers a parameter in the model for a while. */
    private void gather(Parameter parameter) {
        beforeSave.run();
        if (skipped > 0) {
            skipped--;
            return;
        }
        gathered++;
        gather(parameter, SAVE + GATHERING);
    }

    /** Gathers a parameter in the model for good. */
    void gatherToClose(Parameter parameter) {
        gather(parameter, CollectiveCall.CLOSE + GATHERING);
    }

    private void gather(Parameter parameter, String issuer) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            NDArray old = parameter.getArray();
            NDArray values = modelManager.create(old.getShape(), old.getDataType());
            if (ranks.isDistributed()) {
                ranks.runAll(
                        context -> {
                            exchange(context, issuer, parameter, values);
                        });
            } else {
                shards.gatherRows(parameter, values, 0, values.getShape());
            }
            Placeholder.replace(parameter, values);
        }
    }

    /** Each rank's shard goes to all, and in each process one of them puts it in its place. */
    private void exchange(
            ParallelContext context, String issuer, Parameter parameter, NDArray values) {
        ShardingStrategy strategy = shards.of(parameter);
        NDArray shard = parameters.getStore(context).getHeld(parameter);
        Communicator group = context.getTensorGroup();
        group.setIssuer(issuer + parameters.nameOf(parameter));
        for (int root = 0; root < group.getSize(); root++) {
            Shape shape = strategy.shardShape(values.getShape(), root, group.getSize());
            try (Autograd.GradMode mode = Autograd.gradMode(false);
                    NDManager scope = shard.getManager().newSubManager()) {
                NDArray part =
                        root == group.getRank()
                                ? Autograd.detach(shard, scope)
                                : scope.create(shape, shard.getDataType());
                if (shape.size() > 0) {
                    group.broadcast(TensorView.of(part), root).await();
                }
                if (context.getLocalIndex() == 0) {
                    strategy.gather(part, values, root, group.getSize());
                }
            }
        }
    }

    /**
     * Returns consecutive rows of a parameter, as they are after the last step. Rows of one
     * parameter are asked for until it is {@linkplain #release released}.
     *
     * @param parameter the parameter, sharded or not
     * @param firstRow the first of the rows (indices of axis 0)
     * @param count how many
     * @param manager the manager of the rows, whose device they get
     * @return the rows, which may be the memory of the weight itself
     */
    public synchronized NDArray rows(
            Parameter parameter, long firstRow, long count, NDManager manager) {
        if (ended) {
            HeldParameters.checkWhole(parameter, "What is written");
            return view(parameter.getArray(), firstRow, count, manager);
        }
        beforeSave.run();
        boolean sharded = shards.contains(parameter);
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            if (sharded && !ranks.isDistributed()) {
                Shape shape = parameter.getArray().getShape();
                DataType type = parameter.getArray().getDataType();
                long[] part = shape.getShape().clone();
                part[0] = count;
                NDArray rows = manager.create(new Shape(part), type);
                shards.gatherRows(parameter, rows, firstRow, shape);
                return rows;
            }
            if (sharded && whole != parameter) {
                gather(parameter);
                whole = parameter;
            }
            NDArray values =
                    sharded
                            ? parameter.getArray()
                            : parameters.getStores().get(0).getHeld(parameter);
            return view(values, firstRow, count, manager);
        }
    }

    private static NDArray view(NDArray values, long firstRow, long count, NDManager manager) {
        try (NDArray view = values.get(new NDIndex().addSliceDim(firstRow, firstRow + count))) {
            NDArray rows = Autograd.detach(view, manager);
            NDArray moved = rows.toDevice(manager.getDevice(), false); // the same if there
            moved.attach(manager);
            return moved;
        }
    }

    /** Says that the model has its values again, or has lost them. */
    void end() {
        ended = true;
    }

    boolean isEnded() {
        return ended;
    }

    /**
     * Frees what was gathered of a parameter.
     *
     * @param parameter the parameter
     */
    public synchronized void release(Parameter parameter) {
        whole = null;
        if (!ended && shards.contains(parameter)) {
            Placeholder.put(modelManager, parameter);
        }
    }
}

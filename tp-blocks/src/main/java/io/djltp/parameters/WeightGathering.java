package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.rank.RankPool;
import io.djltp.torch.Autograd;

import java.util.function.Consumer;

/** Puts the shards of a parameter together in the model: for a while, to be saved, or for good. */
@SuppressWarnings("try") // a scope is used by being open
final class WeightGathering implements WeightSource {

    private final NDManager modelManager;
    private final RankPool ranks;
    private final ParallelParameters parameters;
    private final ParameterShards shards;
    private Runnable beforeSave = () -> {};
    private Parameter whole; // whose rows other processes have sent, or null
    private RemoteShards remote; // or null: no other process sends its shards when asked

    WeightGathering(
            NDManager modelManager,
            RankPool ranks,
            ParallelParameters parameters,
            ParameterShards shards) {
        this.modelManager = modelManager;
        this.ranks = ranks;
        this.parameters = parameters;
        this.shards = shards;
    }

    /** Sets what is done before a parameter is gathered for saving. */
    void setSaving(Runnable check) {
        beforeSave = check;
    }

    /** Sets where the shards of other processes come from when one process saves. */
    void setRemoteShards(RemoteShards source) {
        remote = source;
    }

    /** {@inheritDoc} */
    @Override
    public void gather(Parameter parameter) {
        beforeSave.run();
        if (shards.contains(parameter)) {
            fill(
                    parameter,
                    values -> {
                        if (remote != null) {
                            remote.gather(parameter, values);
                        } else {
                            shards.gather(parameter, values);
                        }
                    });
        }
    }

    /** Gathers a parameter for good. All processes do. */
    void gatherInAll(Parameter parameter) {
        fill(
                parameter,
                values -> {
                    if (ranks.isDistributed()) {
                        new ShardExchange(ranks)
                                .gather(
                                        parameters.nameOf(parameter),
                                        shards.strategyOf(parameter),
                                        context ->
                                                parameters
                                                        .getStore(context)
                                                        .getValue(parameter, null, true),
                                        values);
                    } else {
                        shards.gather(parameter, values);
                    }
                });
    }

    /** {@inheritDoc} */
    @Override
    public NDArray rows(Parameter parameter, long firstRow, long count, NDManager manager) {
        beforeSave.run();
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            if (shards.contains(parameter) && remote == null) {
                Shape whole = parameter.getArray().getShape();
                long[] shape = whole.getShape().clone();
                shape[0] = count;
                DataType type = parameter.getArray().getDataType();
                NDArray rows = manager.create(new Shape(shape), type);
                shards.gatherRows(parameter, rows, firstRow, whole);
                return rows;
            }
            NDArray values =
                    shards.contains(parameter)
                            ? gathered(parameter)
                            : parameters.getStores().get(0).getHeld(parameter);
            try (NDArray view = values.get(new NDIndex().addSliceDim(firstRow, firstRow + count))) {
                NDArray rows = Autograd.detach(view, manager);
                NDArray moved = rows.toDevice(manager.getDevice(), false); // the same if there
                moved.attach(manager);
                return moved;
            }
        }
    }

    /** Other processes send a parameter as a whole: it stays until it is released. */
    private NDArray gathered(Parameter parameter) {
        if (whole != parameter) {
            gather(parameter);
            whole = parameter;
        }
        return parameter.getArray();
    }

    private void fill(Parameter parameter, Consumer<NDArray> gathering) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            NDArray old = parameter.getArray();
            NDArray values = modelManager.create(old.getShape(), old.getDataType());
            gathering.accept(values);
            Placeholder.replace(parameter, values);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void release(Parameter parameter) {
        whole = null;
        if (shards.contains(parameter)) {
            Placeholder.put(modelManager, parameter);
        }
    }
}

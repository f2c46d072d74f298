package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
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
                    whole -> {
                        if (remote != null) {
                            remote.gather(parameter, whole);
                        } else {
                            shards.gather(parameter, whole);
                        }
                    });
        }
    }

    /** Gathers a parameter for good. All processes do. */
    void gatherInAll(Parameter parameter) {
        fill(
                parameter,
                whole -> {
                    if (ranks.isDistributed()) {
                        new ShardExchange(ranks)
                                .gather(
                                        parameters.nameOf(parameter),
                                        shards.strategyOf(parameter),
                                        context ->
                                                parameters
                                                        .getStore(context)
                                                        .getValue(parameter, null, true),
                                        whole);
                    } else {
                        shards.gather(parameter, whole);
                    }
                });
    }

    private void fill(Parameter parameter, Consumer<NDArray> gathering) {
        try (Autograd.GradMode mode = Autograd.gradMode(false)) {
            NDArray old = parameter.getArray();
            NDArray whole = modelManager.create(old.getShape(), old.getDataType());
            gathering.accept(whole);
            Placeholder.replace(parameter, whole);
        }
    }

    /** {@inheritDoc} */
    @Override
    public void release(Parameter parameter) {
        if (shards.contains(parameter)) {
            NDArray whole = parameter.getArray();
            Placeholder.replace(
                    parameter, Placeholder.of(modelManager, whole.getShape(), whole.getDataType()));
        }
    }
}

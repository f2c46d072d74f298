package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;

import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The projections to queries, keys and values. Those of one input enter its region together, so
 * that its gradient is one all-reduce: the sum over the ranks of the sum over the projections.
 */
final class HeadProjections {

    private final AttentionShape shape;
    private final boolean crossed;
    private final boolean bias;
    private final boolean sequenceParallel;
    private final Precision precision;
    private final Map<String, ColumnParallelLinear> layers = new LinkedHashMap<>();

    /**
     * Queries, keys and values of a rank's heads.
     *
     * @param query [B, T, heads, d]
     * @param key [B, S, key/value heads, d]
     * @param value [B, S, key/value heads, d]
     */
    record Heads(NDArray query, NDArray key, NDArray value) {}

    HeadProjections(AttentionShape shape, AttentionBuilder<?> builder) {
        this.shape = shape;
        crossed = builder.crossAttention;
        bias = builder.bias;
        sequenceParallel = builder.sequenceParallel;
        precision = builder.precision;
        int heads = shape.heads();
        int groups = shape.keyValueHeads();
        long dim = shape.headDim();
        if (builder.fusedQkv) {
            add("queryKeyValue", heads + 2 * groups, strategy(heads, groups, dim));
            return;
        }
        add("query", heads, ShardingStrategy.headAwareRowwise(heads, dim));
        ShardingStrategy used = ShardingStrategy.keyValueRowwise(heads, groups, dim);
        add("key", groups, used);
        add("value", groups, used);
    }

    private static ShardingStrategy strategy(int heads, int groups, long dim) {
        return ShardingStrategy.stackedQkv(heads, groups, dim);
    }

    private void add(String name, int heads, ShardingStrategy strategy) {
        layers.put(
                name,
                ColumnParallelLinear.builder()
                        .setUnits(heads * shape.headDim())
                        .optBias(bias)
                        .optPrecision(precision)
                        .optShardingStrategy(strategy)
                        .optSequenceParallel(sequenceParallel)
                        .build());
    }

    /** Returns the layers by name. */
    Map<String, ColumnParallelLinear> getLayers() {
        return layers;
    }

    /** Initializes the layers, for queries of one shape and keys of another. */
    void initialize(NDManager manager, DataType type, Shape queries, Shape keys) {
        layers.forEach(
                (name, layer) ->
                        layer.initialize(manager, type, name.startsWith("query") ? queries : keys));
    }

    /**
     * Computes the rank's heads.
     *
     * @param store the rank's parameters, or all
     * @param inputs x, and with cross-attention the memory
     * @param training whether it is trained
     * @param block the block, for errors
     */
    Heads compute(ParameterStore store, NDList inputs, boolean training, String block) {
        ParallelContext context = RankParameterStore.contextOf(store);
        ColumnParallelLinear stacked = layers.get("queryKeyValue");
        if (stacked != null) {
            return split(context, forward(store, stacked, inputs.head(), training, block));
        }
        NDArray x = layers.get("query").shareInput(store, inputs.head());
        NDArray memory = crossed ? layers.get("key").shareInput(store, inputs.get(1)) : x;
        return new Heads(
                forward(store, layers.get("query"), x, training, block),
                forward(store, layers.get("key"), memory, training, block),
                forward(store, layers.get("value"), memory, training, block));
    }

    /**
     * Notes what the projections will communicate: {@link #compute}.
     *
     * @param pass the pass of one rank
     * @param x the input of the queries
     * @param memory that of keys and values
     * @return the queries of the rank's heads side by side
     */
    ForecastArray forecast(PassForecast pass, ForecastArray x, ForecastArray memory) {
        ColumnParallelLinear stacked = layers.get("queryKeyValue");
        if (stacked != null) {
            return heads(pass, pass.visit(stacked, x));
        }
        ColumnParallelLinear key = layers.get("key");
        ForecastArray own = layers.get("query").forecastShare(pass, x);
        ForecastArray other = crossed ? key.forecastShare(pass, memory) : own;
        boolean trained = key.forecastShared(pass, other).differentiated();
        trained |= layers.get("value").forecastShared(pass, other).differentiated();
        return heads(pass, layers.get("query").forecastShared(pass, own)).with(trained);
    }

    private ForecastArray heads(PassForecast pass, ForecastArray projected) {
        ForecastArray heads = projected.withFeatures(shape.heads() * shape.headDim());
        int ranks = pass.getTensorSize();
        return ranks == 1 ? heads : heads.cutBy(shape.featureCut(ranks));
    }

    /** Computes a projection, and takes the rank's slice of it as heads. */
    private NDArray forward(
            ParameterStore store,
            ColumnParallelLinear layer,
            NDArray input,
            boolean training,
            String block) {
        NDArray y = layer.computeForBlock(store, input, training, block);
        Shape all = y.getShape();
        long dim = shape.headDim();
        return y.reshape(all.get(0), all.get(1), all.get(2) / dim, dim);
    }

    private Heads split(ParallelContext context, NDArray stacked) {
        LocalHeads local = shape.localHeads(context);
        int keys = local.queries() + local.keyValues();
        return new Heads(
                heads(stacked, 0, local.queries()),
                heads(stacked, local.queries(), keys),
                heads(stacked, keys, keys + local.keyValues()));
    }

    private static NDArray heads(NDArray stacked, long from, long to) {
        return stacked.get(new NDIndex().addAllDim(2).addSliceDim(from, to));
    }
}

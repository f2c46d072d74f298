package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.layout.TokenCut;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

/** What layers have in common whose output features are cut over the ranks. */
abstract class AbstractColumnLinear extends AbstractParallelLinear {

    private final ShardingStrategy shardingStrategy;
    private final boolean gatherOutput;
    private final boolean sequenceParallel;

    /**
     * Creates a layer.
     *
     * @param builder the builder
     * @param gatherOutput whether every rank gets the whole output
     * @param sequenceParallel whether the tokens of the input may be cut over the ranks
     */
    @SuppressWarnings("this-escape") // the parameters are those of a parent class
    AbstractColumnLinear(Builder<?> builder, boolean gatherOutput, boolean sequenceParallel) {
        super(builder);
        this.sequenceParallel = sequenceParallel;
        VocabParallelEmbedding embedding = builder.embedding;
        shardingStrategy =
                embedding == null || builder.shardingStrategy != null
                        ? builder.strategy(0, getClass().getSimpleName())
                        : embedding.strategy();
        this.gatherOutput = gatherOutput;
        if (embedding != null) {
            parameters.put("weight", embedding.weight());
        }
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Shape[] inputShapes) {
        super.prepare(inputShapes); // of a tied weight, the shape is that of the embedding
        Shape input = inputShapes[0];
        long features = input.get(input.dimension() - 1);
        if (features != weight().getShape().get(1)) {
            throw Errors.argument(
                    "%s has the weight of an embedding, and its input %s has %s features: a row of"
                            + " the embedding must have as many",
                    describe(), input, features);
        }
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        return shardingStrategy;
    }

    /** {@inheritDoc} */
    @Override
    boolean hasPartialInputGradient() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    boolean cutsInputs() {
        return false;
    }

    /** {@inheritDoc} */
    @Override
    boolean takesTokens() {
        return sequenceParallel;
    }

    /** {@inheritDoc} */
    @Override
    NDArray forwardRank(
            RankParameterStore store,
            NDArray input,
            boolean gathered,
            NDArray weight,
            @Nullable NDArray bias,
            boolean training) {
        ParallelContext context = store.getContext();
        RegionMappings mappings = context.getMappings(this);
        ForwardPass pass = context.getPass();
        boolean shared = pass.isShared(input);
        boolean overlaps = !shared && !hasLora() && mappings.canOverlap(input, weight);
        TokenCut tokens = shared ? null : tokensOf(context, input);
        NDArray x = input;
        if (tokens != null) {
            x = SequenceRegion.gather(context, this, input, tokens, !overlaps);
        }
        NDArray y; // [.., in] @ [in, units/p]
        if (!overlaps) {
            boolean entered = gathered || shared || tokens != null;
            NDArray own = entered ? x : enterRegion(context, x);
            y = adapted(store, product().of(own, weight, bias), own, training);
        } else if (tokens != null) {
            y = mappings.columnLinear(product(), x, weight, bias, tokens.cut(), tokens.axis());
        } else {
            Cut rows = gathered ? pass.getBatchCut() : null;
            y = mappings.columnLinear(product(), x, weight, bias, rows, 0);
        }
        pass.use(weight(), pass.regionOf(x));
        pass.use(bias(), pass.regionOf(x));
        Cut cut = outputCut(context);
        if (gatherOutput) {
            return pass.enter(mappings.gatherFromRegion(y, cut), Features.REPLICATED);
        }
        return pass.enterSlice(y, new ShardedLayout(cut), describe());
    }

    /** Returns how the tokens of an input are cut, or {@code null} if the rank has all. */
    private @Nullable TokenCut tokensOf(ParallelContext context, NDArray input) {
        return sequenceParallel ? context.getPass().tokensOf(input) : null;
    }

    /** The gradient of a gathered input is reduced where it is scattered, not here. */
    private NDArray enterRegion(ParallelContext context, NDArray input) {
        NDArray x = context.getMappings(this).copyToRegion(input, true);
        return context.getPass().enter(x, Features.SHARD);
    }

    /**
     * Takes an input into the region of the layer before several layers get it, this one among
     * them: its gradient is then one all-reduce, of the sum over the layers, and not one for each.
     * Of a rank's tokens, with {@code optSequenceParallel}, it is one all-gather and backward one
     * reduce-scatter.
     *
     * @param store the parameters, which know the rank
     * @param input the input, the same on all ranks, or a rank's tokens
     * @return what to give to the layers
     */
    public NDArray shareInput(ParameterStore store, NDArray input) {
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return input;
        }
        if (isToGather(context.getPass(), input)) {
            return input; // of the rows of a rank: each layer gathers them
        }
        checkCut(context, input, null);
        TokenCut tokens = tokensOf(context, input);
        NDArray x =
                tokens == null
                        ? enterRegion(context, input)
                        : SequenceRegion.gather(context, this, input, tokens, true);
        context.getPass().share(x);
        return x;
    }

    /**
     * Computes the output for a block that divides it, such as into heads. What is computed of it
     * is not looked at until the block enters it as a slice again.
     *
     * @param store the parameters, which know the rank
     * @param input the input, see {@link #shareInput}
     * @param training whether it is trained
     * @param block the block, for errors
     * @return this rank's slice of the output, or all of it with one rank
     */
    public NDArray computeForBlock(
            ParameterStore store, NDArray input, boolean training, String block) {
        NDArray y = forward(store, new NDList(input), training).singletonOrThrow();
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return y;
        }
        int rank = context.getTensorGroup().getRank();
        return context.getPass().takeSlice(y, outputCut(context), rank, block);
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        ForecastArray y = forecastShared(pass, forecastShare(pass, input));
        return gatherOutput && pass.getTensorSize() > 1
                ? pass.getMappings(this).gatherFromRegion(y)
                : y;
    }

    /** Forecasts the slice of the output, or all of it with one rank. */
    ForecastArray forecastSlice(PassForecast pass, ForecastArray input) {
        return slice(pass, forecastShare(pass, input));
    }

    private ForecastArray slice(PassForecast pass, ForecastArray x) {
        ForecastArray y = forecastOutput(x);
        return pass.getTensorSize() == 1 ? y : y.cutBy(outputCut(pass.getTensorSize()));
    }

    /**
     * Notes what {@link #shareInput} will communicate.
     *
     * @param pass the pass of one rank
     * @param input the input
     * @return what to give to the layers, by {@link #forecastShared}
     */
    public ForecastArray forecastShare(PassForecast pass, ForecastArray input) {
        ForecastArray x = forecastInput(pass, input);
        // the gradient of a gathered input is reduced where it is scattered
        return x == input && pass.getTensorSize() > 1 ? pass.getMappings(this).copyToRegion(x) : x;
    }

    /**
     * Notes how the layer uses its parameters with an input that it shares with others: it
     * communicates nothing then.
     *
     * @param pass the pass of one rank
     * @param shared the input, of {@link #forecastShare}
     * @return the slice of the output
     */
    public ForecastArray forecastShared(PassForecast pass, ForecastArray shared) {
        ForecastArray y = slice(pass, shared);
        pass.use(this, y);
        forecastLora(pass, y);
        return y;
    }

    /** Returns which output features each rank has. */
    Cut outputCut(ParallelContext context) {
        return outputCut(context.getTensorGroup().getSize());
    }

    private Cut outputCut(int ranks) {
        Shape whole = weight().getShape();
        return ranks == 1 // a chosen cut is one for more
                ? Cut.replicated(whole.get(0), 1)
                : shardingStrategy.cut(whole, ranks);
    }

    /** Returns what errors call the layer. */
    String describe() {
        return getClass().getSimpleName() + " " + weight().getShape();
    }

    /**
     * What the builders of layers share whose output features are cut.
     *
     * @param <T> the builder
     */
    public abstract static class Builder<T extends Builder<T>>
            extends AbstractParallelLinear.Builder<T> {

        @Nullable VocabParallelEmbedding embedding; // whose weight the layer has

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Gives the layer the weight of an embedding: one parameter, [vocabulary, features], that
         * is looked up in and multiplied with, and has the sum of both gradients. Where nothing
         * else is said it is cut as the embedding is. Both blocks save it, as DJL's blocks do with
         * a parameter that they share, and the one that is loaded last decides. Default: a weight
         * of its own.
         *
         * @param tied the embedding, whose vocabulary is the units of the layer
         * @return this builder
         */
        public T optTiedWeight(VocabParallelEmbedding tied) {
            embedding = tied;
            return self();
        }

        /** {@inheritDoc} */
        @Override
        void checkUnits() {
            super.checkUnits();
            long rows = embedding == null ? units : embedding.weight().getShape().get(0);
            Errors.check(
                    rows == units,
                    "A layer with the weight of an embedding has a unit for each of its %s ids, not"
                            + " %s: set them by setUnits",
                    rows,
                    units);
        }
    }
}

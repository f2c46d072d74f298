package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.Cut;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.PassForecast;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region.Features;
import io.djltp.layout.ShardedLayout;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;

/** What layers have in common whose output features are cut over the ranks. */
abstract class AbstractColumnLinear extends AbstractParallelLinear {

    private final ShardingStrategy shardingStrategy;
    private final boolean gatherOutput;

    /**
     * Creates a layer.
     *
     * @param builder the builder
     * @param gatherOutput whether every rank gets the whole output
     */
    AbstractColumnLinear(Builder<?> builder, boolean gatherOutput) {
        super(builder);
        shardingStrategy = builder.shardingStrategy(0, getClass().getSimpleName());
        this.gatherOutput = gatherOutput;
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
    NDArray forwardRank(
            ParallelContext context,
            NDArray input,
            boolean gathered,
            NDArray weight,
            NDArray bias) {
        RegionMappings mappings = context.getMappings(this);
        boolean overlaps = mappings.canOverlap(input, weight);
        NDArray y; // [.., in] @ [in, units/p]
        if (overlaps) {
            y =
                    mappings.columnLinear(
                            input, weight, bias, gathered ? context.getPass().getBatchCut() : null);
        } else {
            y = linear(enterRegion(context, input, gathered), weight, bias).singletonOrThrow();
        }
        // a product that overlaps is known to autograd by the whole input that it is made of
        Features below = overlaps ? Features.REPLICATED : Features.SHARD;
        Cut cut = outputCut(context);
        ForwardPass pass = context.getPass();
        if (gatherOutput) {
            pass.leave(y, Features.SHARD, below);
            NDArray whole = mappings.gatherFromRegion(y, cut);
            return pass.enter(whole, Features.REPLICATED, Features.SHARD);
        }
        return pass.enterSlice(y, new ShardedLayout(cut), below, describe());
    }

    /** The gradient of a gathered input is reduced where it is scattered. */
    private NDArray enterRegion(ParallelContext context, NDArray input, boolean gathered) {
        if (gathered) {
            return input;
        }
        NDArray x = context.getMappings(this).copyToRegion(input, true);
        context.getPass().leave(x, Features.SHARD, Features.REPLICATED);
        return x;
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        ForecastArray y = forecastSlice(pass, input);
        pass.use(this, y);
        return gatherOutput && pass.getTensorSize() > 1
                ? pass.getMappings(this).gatherFromRegion(y)
                : y;
    }

    /** Forecasts the slice of the output, or all of it with one rank. */
    ForecastArray forecastSlice(PassForecast pass, ForecastArray input) {
        ForecastArray x = LayerForecast.input(this, pass, input);
        if (pass.getTensorSize() == 1) {
            return LayerForecast.output(this, x);
        }
        if (x == input) { // the gradient of a gathered input is reduced where it is scattered
            pass.getMappings(this).copyToRegion(x);
        }
        return LayerForecast.output(this, x).cutBy(outputCut(pass.getTensorSize()));
    }

    /** {@inheritDoc} */
    @Override
    public String getEquation() {
        return "y[r] = x W[r]ᵀ" + (bias() == null ? "" : " + b[r]");
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
}

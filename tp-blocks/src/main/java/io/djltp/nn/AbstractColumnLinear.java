package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.cut.Cut;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region.Features;
import io.djltp.layout.ShardedLayout;
import io.djltp.layout.TokenCut;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;

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
    AbstractColumnLinear(Builder<?> builder, boolean gatherOutput, boolean sequenceParallel) {
        super(builder);
        this.sequenceParallel = sequenceParallel;
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
    boolean takesTokens() {
        return sequenceParallel;
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
        TokenCut tokens = sequenceParallel ? context.getPass().getTokenRegion().cutOf(input) : null;
        NDArray x = input;
        if (tokens != null) {
            x = SequenceRegion.gather(context, this, input, tokens, !overlaps);
        }
        NDArray y; // [.., in] @ [in, units/p]
        if (!overlaps) {
            boolean whole = gathered || tokens != null;
            y = linear(enterRegion(context, x, whole), weight, bias).singletonOrThrow();
        } else if (tokens != null) {
            y = mappings.columnLinear(x, weight, bias, tokens.cut(), tokens.axis());
        } else {
            Cut rows = gathered ? context.getPass().getBatchCut() : null;
            y = mappings.columnLinear(x, weight, bias, rows);
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

    /** Returns which output features each rank has. */
    Cut outputCut(ParallelContext context) {
        int ranks = context.getTensorGroup().getSize();
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

package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Arrays;

/**
 * DJL's {@link LayerNorm} of features that are cut over the ranks, such as those between a {@link
 * ColumnParallelLinear} and a {@link RowParallelLinear}: mean and variance are those of all
 * features.
 *
 * <p>Shapes, on a rank that owns {@code d} of the {@code D} features:
 *
 * <ul>
 *   <li>input: [x1, ..., xn, d], the slice that a column-parallel layer leaves on the rank
 *   <li>gamma, beta: [d] of the logical [D]
 *   <li>output: [x1, ..., xn, d]
 * </ul>
 *
 * <p>Collectives, of N rows [x1, ..., xn]: one all-gather of {@code 2 N} numbers of each rank
 * forward, one reduce-scatter of their gradients backward. With one tensor-parallel rank, and under
 * DJL's own trainer, it is DJL's block. It saves and loads what {@link LayerNorm} does.
 */
public class ParallelLayerNorm extends LayerNorm implements ShardedBlock, ForecastBlock {

    /**
     * Creates a block.
     *
     * @param builder the builder
     */
    protected ParallelLayerNorm(Builder builder) {
        super(builder);
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        return ShardingStrategy.axiswise(0);
    }

    /** {@inheritDoc} */
    @Override
    public boolean isBatchShardedInput() {
        return false;
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return super.forwardInternal(store, inputs, training, args);
        }
        NDArray input = inputs.singletonOrThrow();
        ForwardPass pass = context.getPass();
        ShardedLayout layout = pass.layoutOf(input);
        checkSlice(pass.regionOf(input), input.getShape());
        Cut cut = layout == null ? ownCut(context.getTensorGroup().getSize()) : layout.cut();
        pass.checkSharded(input, ownCut(cut.getRanks()), describe());
        NDArray x = pass.takeLast(input);
        Shape shape = x.getShape();
        int last = shape.dimension() - 1;
        NDArray own = x.mean(new int[] {last}, true);
        NDArray distance = x.sub(own);
        NDArray squares = distance.mul(distance).sum(new int[] {last});
        double[] features = Arrays.stream(cut.getShardLengths()).asDoubleStream().toArray();
        RankMoments moments = RankMoments.of(context.getMappings(this), own, squares, features);
        Shape rows = shape.slice(0, last).add(1);
        NDArray normalized =
                x.sub(moments.mean().reshape(rows))
                        .div(moments.variance().add(epsilon).sqrt().reshape(rows));
        NDArray scale = store.getValue(gamma, x.getDevice(), training);
        NDArray shift = store.getValue(beta, x.getDevice(), training);
        NDArray y = normalized.mul(DelegatedArray.unwrap(scale)).add(DelegatedArray.unwrap(shift));
        return new NDList(pass.enterLike(y, input, gamma, beta));
    }

    private Cut ownCut(int ranks) {
        return Cut.balanced(normalizedShape.get(0), ranks);
    }

    private String describe() {
        return "ParallelLayerNorm of " + normalizedShape.get(0) + " features";
    }

    private void checkSlice(Region region, Shape input) {
        if (!region.isShard()) {
            throw Errors.argument(
                    "%s needs a slice of the features, and gets an input that is whole, %s: let a"
                            + " ColumnParallelLinear come before it, or take DJL's LayerNorm",
                    describe(), input);
        }
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        pass.use(this, input);
        int ranks = pass.getTensorSize();
        if (ranks > 1) {
            checkSlice(input.region(), input.shape());
            Shape local = pass.local(input);
            long rows = local.size() / local.getLastDimension();
            pass.getMappings(this)
                    .gatherFromSequenceRegion(
                            new ForecastArray(
                                    new Shape(ranks, 2 * rows),
                                    Region.WHOLE,
                                    null,
                                    input.differentiated()),
                            true);
        }
        return input.with(gamma.requiresGradient() || beta.requiresGradient());
    }

    /** {@inheritDoc} */
    @Override
    protected void beforeInitialize(Shape... inputShapes) {
        super.beforeInitialize(inputShapes);
        int last = inputShapes[0].dimension() - 1;
        Errors.check(
                normalizedShape.equals(inputShapes[0].slice(last)),
                "A ParallelLayerNorm is over the last axis, the features, and the input is %s: build"
                        + " it with axis(%s)",
                inputShapes[0],
                last);
    }

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(version);
        saveMetadata(os);
        ShardedParameters.save(this, os);
    }

    /**
     * Creates a builder to build a {@code ParallelLayerNorm}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * The builder to construct a {@link ParallelLayerNorm}, with the options of {@link LayerNorm}.
     */
    public static class Builder extends LayerNorm.Builder {

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        public ParallelLayerNorm build() {
            return new ParallelLayerNorm(this);
        }
    }
}

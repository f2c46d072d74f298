package io.djltp.nn.norm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.internal.Errors;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.torch.TorchOperations;

import java.util.Arrays;

/**
 * Normalization of rows by their root mean square, without a mean or a bias: {@code y = w x /
 * sqrt(mean(x^2) + eps)}, the mean over the last axis.
 *
 * <ul>
 *   <li>input: [x1, ..., xn, D]
 *   <li>weight: [D], the same on all ranks, at first 1
 *   <li>output: [x1, ..., xn, D]
 * </ul>
 *
 * <p>It belongs where the features are whole, or to an axis that is not cut, such as the features
 * of a head; there each rank has a summand of the weight's gradient, which the trainer sums.
 * Collectives: none.
 *
 * <p>Zhang and Sennrich, 2019, <a href="https://arxiv.org/abs/1910.07467">arXiv:1910.07467</a>.
 */
public class RmsNorm extends AbstractBlock {

    private static final byte VERSION = 1;

    private final float epsilon;
    private final Parameter weight;

    /**
     * Creates a block.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // as in all of DJL's blocks: the parameter is complete
    protected RmsNorm(Builder builder) {
        super(VERSION);
        epsilon = builder.epsilon;
        weight =
                addParameter(
                        Parameter.builder()
                                .setName("weight")
                                .setType(Parameter.Type.GAMMA)
                                .build());
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray input = inputs.singletonOrThrow();
        NDArray own = store.getValue(weight, input.getDevice(), training);
        checkFeatures(input.getShape(), own.getShape().get(0));
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null) {
            return new NDList(TorchOperations.normalize(input, own, epsilon));
        }
        ForwardPass pass = context.getPass();
        NDArray x = pass.ofLastAxis(input, "RmsNorm of " + own.getShape().get(0) + " features");
        NDArray y = TorchOperations.normalize(x, DelegatedArray.unwrap(own), epsilon);
        return new NDList(pass.enterLike(y, input, weight));
    }

    private static void checkFeatures(Shape input, long features) {
        int last = input.dimension() - 1;
        if (last < 0 || input.get(last) != features) {
            throw Errors.argument(
                    "RmsNorm of %s features needs an input whose last axis has that length, but"
                            + " the input is %s. If that is a rank's slice of the features, build"
                            + " the layer before it with optGatherOutput(true)",
                    features, input);
        }
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {inputShapes[0]};
    }

    /** {@inheritDoc} */
    @Override
    protected void beforeInitialize(Shape... inputShapes) {
        super.beforeInitialize(inputShapes);
        Errors.check(
                inputShapes.length == 1 && inputShapes[0].dimension() > 0,
                "RmsNorm needs one input with an axis of features, not %s",
                Arrays.asList(inputShapes));
    }

    /** {@inheritDoc} */
    @Override
    protected void prepare(Shape[] inputShapes) {
        Shape input = inputShapes[0];
        weight.setShape(new Shape(input.get(input.dimension() - 1)));
    }

    /**
     * Creates a builder to build an {@code RmsNorm}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct an {@link RmsNorm}. */
    public static class Builder {

        private float epsilon = 1e-6f;

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Sets what is added to the mean of the squares. Default: 1e-6.
         *
         * @param epsilon a number above 0
         * @return this builder
         */
        public Builder optEpsilon(float epsilon) {
            Errors.check(epsilon > 0, "The epsilon of RmsNorm must be above 0, not %s", epsilon);
            this.epsilon = epsilon;
            return this;
        }

        /**
         * Builds the block.
         *
         * @return the block
         */
        public RmsNorm build() {
            return new RmsNorm(this);
        }
    }
}

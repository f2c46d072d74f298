package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Parameter;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.Preconditions;

import io.djltp.layout.Region;
import io.djltp.sharding.ShardingStrategy;

import java.util.function.Function;

/** The builder to construct a {@link MixtureOfExperts}. */
public final class MixtureOptions {

    int experts;
    long hiddenFeatures;
    int topK = 2;
    double capacityFactor = Double.POSITIVE_INFINITY;
    Function<NDArray, NDArray> activation = Activation::relu;
    boolean gated;
    boolean routerBias;
    boolean exchangeTokens;
    ShardingStrategy strategy = ShardingStrategy.expertParallel();
    private Boolean normalized;

    MixtureOptions() {}

    /** Copies options, which the builder may change for another block. */
    private MixtureOptions(MixtureOptions other) {
        experts = other.experts;
        hiddenFeatures = other.hiddenFeatures;
        topK = other.topK;
        capacityFactor = other.capacityFactor;
        activation = other.activation;
        gated = other.gated;
        routerBias = other.routerBias;
        exchangeTokens = other.exchangeTokens;
        strategy = other.strategy;
        normalized = other.normalized;
    }

    /**
     * Sets the number of experts.
     *
     * @param experts the number, 1 or more
     * @return this builder
     */
    public MixtureOptions setExperts(int experts) {
        this.experts = experts;
        return this;
    }

    /**
     * Sets the width of each expert.
     *
     * @param hiddenFeatures the number of features between its two layers
     * @return this builder
     */
    public MixtureOptions setHiddenFeatures(long hiddenFeatures) {
        this.hiddenFeatures = hiddenFeatures;
        return this;
    }

    /**
     * Sets how many experts each token is sent to. Default: 2.
     *
     * @param topK the number of choices, from 1 to the number of experts
     * @return this builder
     */
    public MixtureOptions optTopK(int topK) {
        this.topK = topK;
        return this;
    }

    /**
     * Sets how many tokens an expert takes: {@code ceil(factor * tokens * k / experts)} of the
     * batch; what is more is dropped. Default: all that choose it.
     *
     * @param capacityFactor the factor, greater than 0
     * @return this builder
     */
    public MixtureOptions optCapacityFactor(double capacityFactor) {
        this.capacityFactor = capacityFactor;
        return this;
    }

    /**
     * Sets whether the weights of a token's choices add up to 1. Default: yes for more than one
     * choice; of a single one the weight would be 1, and the router learn nothing from the loss.
     *
     * @param normalized whether they do, dropped choices included
     * @return this builder
     */
    public MixtureOptions optNormalizeWeights(boolean normalized) {
        this.normalized = normalized;
        return this;
    }

    /**
     * Sets the activation between the layers of an expert. Default: ReLU.
     *
     * @param activation an elementwise function
     * @return this builder
     */
    public MixtureOptions optActivation(Function<NDArray, NDArray> activation) {
        this.activation = activation;
        return this;
    }

    /**
     * Sets whether experts have a gate: a third layer, whose activation is multiplied with the
     * first. Default: false.
     *
     * @param gated whether they have
     * @return this builder
     */
    public MixtureOptions optGated(boolean gated) {
        this.gated = gated;
        return this;
    }

    /**
     * Sets whether the router has a bias. Default: false.
     *
     * @param routerBias whether it has
     * @return this builder
     */
    public MixtureOptions optRouterBias(boolean routerBias) {
        this.routerBias = routerBias;
        return this;
    }

    /**
     * Sets what is cut over the ranks: {@code ShardingStrategy.expertParallel()}, whole experts, or
     * {@code tensorParallel()}, the hidden features of all experts. Default: expertParallel.
     *
     * @param strategy the strategy
     * @return this builder
     */
    public MixtureOptions optStrategy(ShardingStrategy strategy) {
        this.strategy = strategy;
        return this;
    }

    /**
     * Sets whether tokens that all ranks have are divided over them and exchanged, instead of each
     * rank taking those of its experts and one sum of the outputs: for {@code p} ranks, {@code n}
     * tokens and {@code k} choices, a rank sends about {@code (2 k + p) n / p} rows forward instead
     * of {@code 2 n}. Default: false.
     *
     * @param exchangeTokens whether they are exchanged
     * @return this builder
     */
    public MixtureOptions optExchangeTokens(boolean exchangeTokens) {
        this.exchangeTokens = exchangeTokens;
        return this;
    }

    /**
     * Builds the block.
     *
     * @return the block
     * @throws IllegalArgumentException if an option does not fit
     */
    public MixtureOfExperts build() {
        Preconditions.checkArgument(
                experts >= 1 && hiddenFeatures >= 1,
                "MixtureOfExperts needs setExperts and setHiddenFeatures of 1 or more, not "
                        + experts
                        + " and "
                        + hiddenFeatures);
        Preconditions.checkArgument(
                topK >= 1 && topK <= experts,
                "Each token can be sent to 1 to "
                        + experts
                        + " of "
                        + experts
                        + " experts, not to "
                        + topK
                        + ": set optTopK, or more experts");
        Preconditions.checkArgument(
                capacityFactor > 0,
                "The capacity factor must be greater than 0, not "
                        + capacityFactor
                        + ": 1 is room for all tokens if they are spread evenly; without"
                        + " optCapacityFactor nothing is dropped");
        Preconditions.checkArgument(
                strategy.isExpertParallel() || strategy.isTensorParallel(),
                "MixtureOfExperts cannot take the strategy "
                        + strategy
                        + ": give optStrategy expertParallel() or tensorParallel()");
        Preconditions.checkArgument(
                !exchangeTokens || strategy.isExpertParallel(),
                "Tokens are exchanged between whole experts: optExchangeTokens(true) needs the"
                        + " strategy expertParallel()");
        return new MixtureOfExperts(new MixtureOptions(this));
    }

    /** Returns whether the weights of a token's choices add up to 1. */
    boolean isNormalized() {
        return normalized == null ? topK > 1 : normalized;
    }

    /** Returns a parameter of the block. */
    Parameter parameter(String name, Parameter.Type type) {
        Parameter.Builder builder = Parameter.builder().setName(name).setType(type);
        return (name.startsWith("router")
                        ? builder
                        : builder.optInitializer(new ExpertInitializer()))
                .build();
    }

    /** Refuses an input that the block is not for. */
    void checkInput(Shape shape, Region region, long features) {
        String block = "MixtureOfExperts of " + experts + " experts ";
        if (region.isShard()) {
            throw new IllegalArgumentException(
                    block
                            + "needs tokens with all features, and gets a slice of them, "
                            + shape
                            + ": build the layer before it with optGatherOutput(true), or let a"
                            + " RowParallelLinear take the slice");
        }
        if (region.isTokensCut()) {
            throw new IllegalArgumentException(
                    block
                            + "needs all tokens of a rank's rows, and gets this rank's tokens of a"
                            + " sequence-parallel region, "
                            + shape
                            + ": put a SequenceGather before it, and a SequenceScatter behind it if"
                            + " the region goes on");
        }
        if (shape.dimension() == 0 || shape.get(shape.dimension() - 1) != features) {
            throw new IllegalArgumentException(
                    block
                            + "needs an input whose last axis has length "
                            + features
                            + ", but the input is "
                            + shape);
        }
    }

    /**
     * Initializes the stacked weights of experts, [experts, outputs, inputs], as DJL initializes
     * each one by default: a normal distribution with the deviation sqrt(2 / inputs). DJL would
     * take the last axis for that of a convolution.
     */
    private static final class ExpertInitializer implements Initializer {

        /** {@inheritDoc} */
        @Override
        public NDArray initialize(NDManager manager, Shape shape, DataType dataType) {
            float deviation = (float) Math.sqrt(2.0 / shape.get(shape.dimension() - 1));
            return manager.randomNormal(0, deviation, shape, dataType);
        }
    }
}

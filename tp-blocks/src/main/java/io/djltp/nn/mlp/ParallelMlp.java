package io.djltp.nn.mlp;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.AxisPart;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.util.Objects;
import java.util.function.Function;

/**
 * The MLP of a transformer, whose hidden features are cut over the ranks: {@code down(act(up(x)))},
 * or gated {@code down(act(gate(x)) * up(x))}.
 *
 * <pre>
 *                +--------+                                    2 ranks, gated:
 *            +-- | gate_0 | -- act --+                         one weight [gate; up], of which a
 *            |   +--------+          |      +--------+         rank has its part of both
 *   x -- f --+                       * -----| down_0 |-- g -- y
 *            |   +--------+          |      +--------+         f: copied; backward, all-reduce
 *            +-- |  up_0  | ---------+                         g: all-reduce
 *                +--------+
 * </pre>
 *
 * <p>Shapes, on a rank that owns h of the {@code hidden} features, which need not be divisible by
 * the number of ranks:
 *
 * <ul>
 *   <li>input X: [x1, x2, ..., xn, input_dim], the same on all ranks
 *   <li>weight of the first layer: [h, input_dim], or gated [2 h, input_dim], rows of the gate
 *       before those of the up projection, of the logical [hidden, input_dim] or [2 hidden,
 *       input_dim]
 *   <li>weight of the second: [units, h] of the logical [units, hidden]
 *   <li>output Y: [x1, x2, ..., xn, units], the same on all ranks
 * </ul>
 *
 * <p>Collectives: one all-reduce of the output forward, one of the input's gradient backward. With
 * {@code optSequenceParallel}, where input and output are a rank's tokens, one all-gather and one
 * reduce-scatter each way.
 *
 * <p>Under an ordinary parameter store, such as that of DJL's own trainer, it is the unsharded
 * block; its layers save what two {@link Linear} layers do.
 *
 * <p>The cut is that of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>); gated units are those of Shazeer
 * (2020, <a href="https://arxiv.org/abs/2002.05202">arXiv:2002.05202</a>): SwiGLU with the default
 * activation.
 */
public final class ParallelMlp extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 1;

    private final long units;
    private final long hidden;
    private final @Nullable AxisPart half; // how gate and up are cut, or null: there is no gate
    private final boolean cut;
    private final Block up;
    private final Block activation;
    private final Block down;

    private ParallelMlp(Builder builder) {
        super(VERSION);
        units = builder.units;
        hidden = builder.hidden;
        cut = builder.strategy.isTensorParallel();
        AxisPart part =
                builder.hiddenCut == null
                        ? AxisPart.even(hidden)
                        : AxisPart.chosen(builder.hiddenCut);
        half = builder.gated ? part : null;
        up = addChildBlock(builder.gated ? "gateUp" : "up", builder.first(part));
        activation = addChildBlock("activation", builder.between());
        down = addChildBlock("down", builder.second());
    }

    /**
     * Creates a builder to build a {@code ParallelMlp}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDList x = new NDList(inputs.singletonOrThrow());
        NDList y = up.forward(store, x, training);
        if (half == null) {
            y = activation.forward(store, y, training);
        } else {
            NDList halves = halves(store, y.singletonOrThrow(), half);
            y = activation.forward(store, new NDList(halves.get(0)), training);
            y = new NDList(y.singletonOrThrow().mul(halves.get(1)));
        }
        return down.forward(store, y, training);
    }

    /** Divides the output of the first layer into gate and up: of this rank, slices again. */
    private NDList halves(ParameterStore store, NDArray y, AxisPart half) {
        ParallelContext context = RankParameterStore.contextOf(store);
        int last = y.getShape().dimension() - 1;
        int ranks = cut && context != null ? context.getTensorGroup().getSize() : 1;
        if (context == null || ranks == 1) {
            return y.split(2, last);
        }
        ForwardPass pass = context.getPass();
        Cut both = ShardingStrategy.segmented(0, half, half).cut(new Shape(2 * hidden), ranks);
        int rank = context.getTensorGroup().getRank();
        NDList halves = pass.takeSlice(y, both, rank, "ParallelMlp").split(2, last);
        ShardedLayout layout = new ShardedLayout(half.cut(ranks));
        halves.replaceAll(each -> pass.enterSlice(each, layout, "ParallelMlp"));
        return halves;
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        ForecastArray y = pass.visit(up, input);
        if (half != null) {
            ForecastArray gate = y.withFeatures(hidden);
            y = y.cut() == null ? gate : gate.cutBy(half.cut(pass.getTensorSize()));
        }
        return pass.visit(down, pass.visit(activation, y));
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(
            NDManager manager, DataType dataType, Shape... inputShapes) {
        Shape inner = withFeatures(inputShapes[0], hidden);
        up.initialize(manager, dataType, inputShapes[0]);
        activation.initialize(manager, dataType, inner);
        down.initialize(manager, dataType, inner);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return new Shape[] {withFeatures(inputShapes[0], units)};
    }

    private static Shape withFeatures(Shape shape, long features) {
        return shape.slice(0, shape.dimension() - 1).add(features);
    }

    /** The builder to construct a {@link ParallelMlp}. */
    public static final class Builder {

        private long units;
        private long hidden;
        private boolean gated;
        private boolean bias = true;
        private boolean batchSharded;
        private boolean sequenceParallel;
        private @Nullable Block activation; // or null: the default
        private @Nullable Cut hiddenCut; // or null: balanced
        private Precision precision = Precision.FLOAT32;
        private ShardingStrategy strategy = ShardingStrategy.tensorParallel();

        private Builder() {}

        /**
         * Sets the number of output features, in a transformer that of its input.
         *
         * @param units the number of output features
         * @return this builder
         */
        public Builder setUnits(long units) {
            this.units = units;
            return this;
        }

        /**
         * Sets the number of hidden features: those of the gate, and of what it is multiplied by.
         *
         * @param hiddenFeatures the number of hidden features
         * @return this builder
         */
        public Builder setHiddenFeatures(long hiddenFeatures) {
            hidden = hiddenFeatures;
            return this;
        }

        /**
         * Sets the activation, which has to be elementwise: each rank computes it of its slice.
         * Default: GELU, and of a gate SiLU, {@code x sigmoid(x)}.
         *
         * @param function the activation, such as {@code Activation::relu}
         * @return this builder
         */
        public Builder optActivation(Function<NDArray, NDArray> function) {
            return optActivation(LambdaBlock.singleton(function));
        }

        /**
         * Sets the activation, which has to be elementwise: each rank computes it of its slice.
         *
         * @param block the activation
         * @return this builder
         */
        public Builder optActivation(Block block) {
            activation = block;
            return this;
        }

        /**
         * Sets whether the activation is a gate: {@code act(gate(x)) * up(x)}, with the weights of
         * both stacked in one. Default: false.
         *
         * @param gated whether there is a gate
         * @return this builder
         */
        public Builder optGated(boolean gated) {
            this.gated = gated;
            return this;
        }

        /**
         * Sets whether the layers have a bias. Default: true.
         *
         * @param bias whether there is a bias
         * @return this builder
         */
        public Builder optBias(boolean bias) {
            this.bias = bias;
            return this;
        }

        /**
         * Sets whether input and output are cut over the batch in MIXED mode: what comes before and
         * after the block is data parallel. In the other modes this has no effect. Default: false.
         *
         * @param batchSharded whether input and output are cut over the batch
         * @return this builder
         */
        public Builder optBatchSharded(boolean batchSharded) {
            this.batchSharded = batchSharded;
            return this;
        }

        /**
         * Sets whether the tokens of input and output are cut over the tensor-parallel ranks, as a
         * {@link io.djltp.nn.SequenceScatter} leaves them. With one tensor-parallel rank this has
         * no effect. Default: false.
         *
         * @param sequenceParallel whether the tokens are cut
         * @return this builder
         */
        public Builder optSequenceParallel(boolean sequenceParallel) {
            this.sequenceParallel = sequenceParallel;
            return this;
        }

        /**
         * Sets which hidden features each rank gets. Default: balanced ranges.
         *
         * @param hiddenCut the cut, for one number of ranks, such as {@code Cut.ofLengths(5, 3)}
         * @return this builder
         */
        public Builder optHiddenCut(Cut hiddenCut) {
            this.hiddenCut = hiddenCut;
            return this;
        }

        /**
         * Sets the precision of the products of both layers. Default: float32.
         *
         * @param precision float32 or bfloat16
         * @return this builder
         */
        public Builder optPrecision(Precision precision) {
            this.precision = Objects.requireNonNull(precision, "precision");
            return this;
        }

        /**
         * Sets whether the block is cut. Default: {@link ShardingStrategy#tensorParallel()}, which
         * here is the rows of the first weight and the columns of the second.
         *
         * @param strategy that, or {@link ShardingStrategy#replicate()}, with which every rank
         *     computes the whole
         * @return this builder
         */
        public Builder optShardingStrategy(ShardingStrategy strategy) {
            this.strategy = Objects.requireNonNull(strategy, "strategy");
            return this;
        }

        /**
         * Builds the block.
         *
         * @return the block
         * @throws IllegalArgumentException if a number of features is missing, the strategy is not
         *     one for a block, or the cut not one of the hidden features
         */
        public ParallelMlp build() {
            Errors.check(
                    units > 0 && hidden > 0,
                    "A ParallelMlp needs setUnits and setHiddenFeatures of 1 or more, not %s and %s",
                    units,
                    hidden);
            Errors.check(
                    strategy.isTensorParallel() || strategy.isReplicated(),
                    "A ParallelMlp takes the strategy tensorParallel, of which it makes those of its"
                            + " weights, or replicate, and not %s",
                    strategy);
            if (hiddenCut != null) {
                Errors.check(
                        hiddenCut.getLength() == hidden,
                        "The cut %s is not one of %s hidden features",
                        hiddenCut,
                        hidden);
            }
            return new ParallelMlp(this);
        }

        /** Returns the first layer, of a gated MLP with both projections. */
        private Block first(AxisPart part) {
            long rows = gated ? 2 * hidden : hidden;
            if (strategy.isReplicated()) {
                return Linear.builder().setUnits(rows).optBias(bias).build();
            }
            ShardingStrategy even = gated ? ShardingStrategy.gateUp() : ShardingStrategy.rowwise();
            AxisPart[] parts = gated ? new AxisPart[] {part, part} : new AxisPart[] {part};
            return ColumnParallelLinear.builder()
                    .setUnits(rows)
                    .optBias(bias)
                    .optPrecision(precision)
                    .optBatchShardedInput(batchSharded)
                    .optSequenceParallel(sequenceParallel)
                    .optShardingStrategy(
                            hiddenCut == null ? even : ShardingStrategy.segmented(0, parts))
                    .build();
        }

        /** Returns the activation between them: what was chosen, or the default. */
        private Block between() {
            if (activation != null) {
                return activation;
            }
            // not DJL's swish: it frees the memory of the number that it multiplies with before the
            // backward pass reads it
            return gated
                    ? LambdaBlock.singleton(x -> Activation.sigmoid(x).mul(x))
                    : Activation.geluBlock();
        }

        /** Returns the second layer. */
        private Block second() {
            if (strategy.isReplicated()) {
                return Linear.builder().setUnits(units).optBias(bias).build();
            }
            return RowParallelLinear.builder()
                    .setUnits(units)
                    .optBias(bias)
                    .optPrecision(precision)
                    .optBatchShardedOutput(batchSharded)
                    .optSequenceParallel(sequenceParallel)
                    .optShardingStrategy(
                            hiddenCut == null
                                    ? ShardingStrategy.columnwise()
                                    : ShardingStrategy.columnwise(hiddenCut))
                    .build();
        }
    }
}

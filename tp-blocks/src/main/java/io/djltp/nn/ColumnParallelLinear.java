package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.util.Preconditions;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.head.FusedCrossEntropy;
import io.djltp.head.HeadOptions;
import io.djltp.head.Margin;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region.Features;
import io.djltp.layout.ShardedLayout;
import io.djltp.loss.FusedHead;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;

/**
 * A {@link Linear} layer whose output features are cut over the ranks: axis 0 of the weight.
 *
 * <pre>
 *            +---------+
 *            | W_0     |  rank 0        y_0 = x W_0^T + b_0
 *   x   @    +---------+           =
 *            | W_1     |  rank 1        y_1 = x W_1^T + b_1
 *            +---------+
 * </pre>
 *
 * <p>Shapes, on a rank that owns {@code units/p} of the output features (balanced ranges, so that
 * {@code units} need not be divisible by the number of ranks {@code p}):
 *
 * <ul>
 *   <li>input X: [x1, x2, ..., xn, input_dim], the same on all ranks; with {@code
 *       optBatchShardedInput} in MIXED mode this rank's part of axis 0
 *   <li>weight W: [units/p, input_dim] of the logical [units, input_dim]
 *   <li>bias b: [units/p] of the logical [units]
 *   <li>output Y: [x1, x2, ..., xn, units/p], or [x1, x2, ..., xn, units] with {@code
 *       optGatherOutput}
 * </ul>
 *
 * <p>An elementwise activation commutes with this cut, so that {@code column, activation, row}
 * needs no communication before the {@link RowParallelLinear}. Collectives: none forward (one
 * all-gather with {@code optGatherOutput}), one all-reduce of the input's gradient backward; with a
 * batch-sharded input one all-gather forward and one reduce-scatter backward.
 *
 * <p>Under an ordinary parameter store, such as that of DJL's own trainer or of a predictor, it is
 * the unsharded layer, and it saves and loads what an ordinary {@link Linear} does.
 *
 * <p>The layer is that of Megatron-LM (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>), there column parallel after the
 * transposed weight; MAX calls the cut of the weight {@code rowwise}.
 */
public class ColumnParallelLinear extends AbstractParallelLinear {

    private static final long LEAST_FUSED_MEMORY = 64L << 20;

    private final boolean gatherOutput;
    private final boolean fusedLoss;
    private final long fusedMemory;
    private final HeadOptions head;

    /**
     * Creates a layer.
     *
     * @param builder the builder
     */
    protected ColumnParallelLinear(Builder builder) {
        super(builder);
        gatherOutput = builder.gatherOutput;
        fusedLoss = builder.fusedLoss;
        fusedMemory = builder.fusedMemory;
        head = builder.headOptions();
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        return ShardingStrategy.rowwise();
    }

    /** {@inheritDoc} */
    @Override
    long inputFeatures(ParallelContext context) {
        return weight().getShape().get(1);
    }

    /** {@inheritDoc} */
    @Override
    boolean hasPartialInputGradient() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    NDArray forwardWhole(NDArray input, NDArray weight, NDArray bias) {
        if (head.margin() == null) {
            return super.forwardWhole(input, weight, bias);
        }
        NDArray x = CosineLogits.features(input, head.margin());
        return CosineLogits.of(super.forwardWhole(x, weight, bias), weight);
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
            y = mappings.columnLinear(input, weight, bias, gathered);
        } else {
            y = linear(enterRegion(context, input, gathered), weight, bias).singletonOrThrow();
        }
        // a product that overlaps is known to autograd by the whole input that it is made of
        Features below = overlaps ? Features.REPLICATED : Features.SHARD;
        long units = weight().getShape().get(0);
        ForwardPass pass = context.getPass();
        if (gatherOutput) {
            pass.leave(y, Features.SHARD, below);
            NDArray whole = mappings.gatherFromRegion(y, units);
            return pass.enter(whole, Features.REPLICATED, Features.SHARD);
        }
        return pass.enterSlice(y, new ShardedLayout(outputCut(context)), below, describe());
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
    private Cut outputCut(ParallelContext context) {
        return getShardingStrategy(weight())
                .cut(weight().getShape(), context.getTensorGroup().getSize());
    }

    private String describe() {
        return "ColumnParallelLinear " + weight().getShape();
    }

    /** {@inheritDoc} */
    @Override
    boolean isFused(ParallelContext context) {
        // the gradients of data-parallel replicas are summed: they have to be there
        DeviceMesh mesh = context.getMesh();
        boolean replicated = mesh.isCut(DeviceMesh.DATA) && !mesh.isOverlaid();
        if (replicated && (head.isSampled() || head.margin() != null)) {
            throw new IllegalStateException(
                    "ColumnParallelLinear with optSampleShare or optMargin cannot be trained "
                            + (mesh.isCut(DeviceMesh.TENSOR)
                                    ? "on the mesh " + mesh
                                    : "in DATA mode with " + context.getSize() + " ranks")
                            + ", which sums the gradients of whole layers: use TENSOR or MIXED"
                            + " mode");
        }
        return fusedLoss && !replicated;
    }

    /** {@inheritDoc} */
    @Override
    NDArray forwardFused(
            ParallelContext context,
            NDArray input,
            boolean gathered,
            NDArray weight,
            NDArray bias,
            boolean training) {
        NDArray x = input;
        if (!training && !context.getPass().isWatched()) {
            x = Autograd.detach(input, input.getManager()); // an array of its own
        } else if (!TensorView.of(input).requiresGradient()) {
            x = Autograd.detach(input, input.getManager());
            x.setRequiresGradient(true); // for the loss to be differentiated at all
            x = x.reshape(x.getShape());
        } else if (!gathered && context.getTensorGroup().getSize() > 1) {
            x = context.getMappings(this).copyToRegion(input, true);
        } else {
            x = input.reshape(input.getShape()); // an array of its own, to bear the layout
        }
        FusedHead head = context.getFusedHead(weight(), () -> newHead(context));
        head.setValues(weight, bias);
        ShardedLayout layout = new ShardedLayout(outputCut(context), head);
        // the gradient of a gathered input is reduced where it is scattered
        Features below = gathered ? Features.SHARD : Features.REPLICATED;
        return context.getPass().enterSlice(x, layout, below, describe());
    }

    /**
     * Returns the margin that the layer is trained with.
     *
     * @return the margin, or {@code null}
     */
    public Margin getMargin() {
        return head.margin();
    }

    private FusedHead newHead(ParallelContext context) {
        long units = weight().getShape().get(0);
        Communicator group = context.getTensorGroup();
        ShardRange own = outputCut(context).getRange(group.getRank());
        long budget = fusedMemory > 0 ? fusedMemory : defaultMemory(own.length());
        return new FusedHead(
                weight(), bias(), new FusedCrossEntropy(group, own, units, budget, 0, head));
    }

    private long defaultMemory(long units) {
        return LEAST_FUSED_MEMORY + units * weight().getShape().get(1) * Float.BYTES * 3 / 4;
    }

    /**
     * Creates a builder to build a {@code ColumnParallelLinear}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ColumnParallelLinear}. */
    public static class Builder extends AbstractParallelLinear.Builder<Builder> {

        private boolean gatherOutput;
        private boolean fusedLoss;
        private long fusedMemory; // 0: by the size of the weight
        private float sampleShare = 1;
        private long sampleSeed;
        private Margin margin;

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Sets whether every rank gets the whole output. Default: false, each keeps its slice of
         * the last axis.
         *
         * @param gatherOutput whether the output is gathered
         * @return this builder
         */
        public Builder optGatherOutput(boolean gatherOutput) {
            this.gatherOutput = gatherOutput;
            return this;
        }

        /**
         * Sets whether layer, loss and update of the weight are computed in one, a chunk of the
         * classes at a time, under a {@link io.djltp.training.ParallelTrainer}: for a last layer
         * with so many classes that its logits, or the gradient of its weight, are too large or too
         * slow to be had. The layer then returns its input, which {@link
         * io.djltp.loss.VocabParallelCrossEntropyLoss}, {@link io.djltp.loss.VocabParallelAccuracy}
         * and {@link io.djltp.loss.VocabParallelTopK} know what to do with, and no other loss. The
         * predictions of {@code trainer.evaluate} are computed as a whole if anything else reads
         * them. The weight has no gradient, and gradients cannot be accumulated over several
         * batches. In DATA mode and on a mesh, with several ranks along the axis data, this has no
         * effect. Default: false.
         *
         * @param fused whether layer, loss and update are one
         * @return this builder
         */
        public Builder optFusedLoss(boolean fused) {
            this.fusedLoss = fused;
            return this;
        }

        /**
         * Sets how many bytes the logits of a batch may take on each rank with {@code
         * optFusedLoss}. With less than all of them take (4 bytes for each row and class) a part is
         * computed twice. Default: 3/4 of what the rank's weight takes in 32 bits, and 64 MiB.
         *
         * @param bytes the bytes
         * @return this builder
         */
        public Builder optFusedMemory(long bytes) {
            Preconditions.checkArgument(
                    bytes > 0, "The bytes for logits must be 1 or more, not " + bytes);
            this.fusedMemory = bytes;
            return this;
        }

        /**
         * Sets the share of the classes that a training step computes with: on each rank those that
         * are labels of the batch, and random others up to this share of the rank's classes. The
         * softmax is over them, and only their rows of the weight, and of the optimizer's state,
         * are read and written. Needs {@code optFusedLoss}. Outside of training all classes count,
         * as they do for an accuracy in training. Default: 1, all classes.
         *
         * <p>The method is Partial FC (An et al., 2022, <a
         * href="https://arxiv.org/abs/2203.15565">arXiv:2203.15565</a>).
         *
         * @param share the share, above 0 and up to 1
         * @return this builder
         */
        public Builder optSampleShare(float share) {
            this.sampleShare = share;
            return this;
        }

        /**
         * Sets the seed by which classes are drawn. Beside it, the labels and the rank, the number
         * of steps since the trainer was opened decides. Default: 0.
         *
         * @param seed the seed
         * @return this builder
         */
        public Builder optSampleSeed(long seed) {
            this.sampleSeed = seed;
            return this;
        }

        /**
         * Sets a margin. The layer's outputs are then scaled cosines of the angles between the
         * input and the rows of the weight, and in training the label's cosine has the margin.
         * Outside of training, and under an ordinary parameter store, there is no margin. Needs
         * {@code optFusedLoss(true)} and {@code optBias(false)}. Default: {@code null}, none.
         *
         * @param margin the margin, or {@code null}
         * @return this builder
         */
        public Builder optMargin(Margin margin) {
            this.margin = margin;
            return this;
        }

        private HeadOptions headOptions() {
            return new HeadOptions(sampleShare, sampleSeed, margin);
        }

        private void checkHead() {
            headOptions(); // checks the share
            Preconditions.checkArgument(
                    fusedLoss || sampleShare == 1 && margin == null,
                    "optSampleShare and optMargin are options of the fused loss: set"
                            + " optFusedLoss(true)");
            Preconditions.checkArgument(
                    margin == null || !isWithBias(),
                    "A cosine has no bias: set optBias(false) with optMargin");
        }

        /**
         * Builds the layer.
         *
         * @return the layer
         */
        @Override
        public ColumnParallelLinear build() {
            checkUnits();
            Preconditions.checkArgument(
                    !(gatherOutput && fusedLoss),
                    "Logits that are never computed cannot be gathered: set optGatherOutput or"
                            + " optFusedLoss, not both");
            checkHead();
            return new ColumnParallelLinear(this);
        }
    }
}

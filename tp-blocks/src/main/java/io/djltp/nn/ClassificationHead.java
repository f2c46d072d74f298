package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.head.Margin;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.head.ChunkedHead;
import io.djltp.internal.head.HeadOptions;
import io.djltp.internal.layout.ShardedLayout;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.DataRows;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.UnitRows;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Objects;

/**
 * The last layer of a classifier with many classes, which are cut over the ranks as those of a
 * {@link ColumnParallelLinear}. Layer, softmax cross entropy and update of the weight are computed
 * in one, a chunk of the classes at a time: neither the logits nor the gradient of the weight are
 * ever whole. In a step it can draw a part of the classes, and it can have a margin.
 *
 * <ul>
 *   <li>input X: [x1, x2, ..., xn, input_dim], the same on all ranks, or this rank's rows of it
 *   <li>weight W: [classes/p, input_dim] of the logical [classes, input_dim]
 *   <li>bias b: [classes/p] of the logical [classes]
 *   <li>output: under a {@link io.djltp.training.ParallelTrainer} the input, of which {@link
 *       io.djltp.loss.VocabParallelCrossEntropyLoss}, {@link io.djltp.loss.OneVsAllLoss}, {@link
 *       io.djltp.loss.VocabParallelAccuracy} and {@link io.djltp.loss.VocabParallelTopK} compute
 *       what they need, and no other loss; elsewhere, and with {@code optFusedLoss(false)}, the
 *       logits
 * </ul>
 *
 * <p>Predictions of {@code trainer.evaluate} are computed as a whole if anything else reads them.
 * The weight has no gradient. Where a step has several batches, the gradients of all but the last
 * are accumulated, which takes as much memory as the weight of the rank in 32 bits.
 *
 * <p>Where the rows are cut over the ranks, those of all are put together before the head. In MIXED
 * mode the ranks then share the classes out. In DATA mode each has the whole head, computes the
 * loss of the whole batch and makes the same update: no gradient of the weight is exchanged, but
 * the head takes each rank the time and the memory that it takes one rank with the whole batch.
 *
 * <p>A {@link io.djltp.loss.OneVsAllLoss} trains rows with any number of labels.
 *
 * <p>Collectives: an all-gather of what the ranks have of the rows, and an all-reduce of the
 * gradient of the input. In DATA mode an all-gather of the input instead, in MIXED mode one and a
 * reduce-scatter in place of the all-reduce.
 *
 * <p>Saves and loads what a {@link Linear} does. A margin comes first in the file, and only a
 * {@code ClassificationHead} loads it: built without one it takes that of the file.
 */
public class ClassificationHead extends AbstractColumnLinear {

    private static final long LEAST_FUSED_MEMORY = 64L << 20;

    private final boolean fusedLoss;
    private final long fusedMemory;
    private final byte linearVersion;
    private final boolean tied;
    private HeadOptions options;

    /**
     * Creates a head.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // to an embedding, which uses it in forward passes
    protected ClassificationHead(Builder builder) {
        super(builder, false, false);
        fusedLoss = builder.fusedLoss;
        fusedMemory = builder.fusedMemory;
        linearVersion = version;
        options = builder.options;
        version = SavedMargin.versionOf(options.margin(), linearVersion);
        tied = builder.embedding != null;
        if (builder.embedding != null && fusedLoss) {
            builder.embedding.tieTo(this);
        }
    }

    /** {@return the margin of the training, or {@code null}} */
    public @Nullable Margin getMargin() {
        return options.margin();
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        ParallelContext context = RankParameterStore.contextOf(store);
        NDList features = inputs;
        if (context != null && fusedLoss && hasReplicas(context, inputs.singletonOrThrow())) {
            String what = "The input of " + describe();
            NDArray rows = DataRows.gather(context, inputs.head(), what);
            features = new NDList(context.getPass().enterGathered(rows));
        }
        return super.forwardInternal(store, features, training, args);
    }

    /**
     * Returns whether ranks with other rows have the same shard of the head. They put their rows
     * together: every replica computes the loss of all rows and updates alike, so that no gradient
     * of the weight is summed. In MIXED mode the ranks gather as in all layers.
     */
    private static boolean hasReplicas(ParallelContext context, NDArray input) {
        return !context.getMesh().isOverlaid()
                && context.getDataGroup().getSize() > 1
                && context.getPass().regionOf(input).isRowsCut();
    }

    /** {@inheritDoc} */
    @Override
    NDArray forwardWhole(NDArray input, NDArray weight, @Nullable NDArray bias) {
        if (options.margin() == null) {
            return super.forwardWhole(input, weight, bias);
        }
        NDManager manager = input.getManager();
        // an array: a number would not live until the backward pass
        NDArray scale = manager.create(options.margin().scale());
        NDArray factor = UnitRows.inverseLengths(input, manager).mul(scale);
        NDArray x = input.mul(factor.expandDims(factor.getShape().dimension()));
        // of the output, not the weight: that would take a copy of it
        return super.forwardWhole(x, weight, bias).mul(UnitRows.inverseLengths(weight, manager));
    }

    /** {@inheritDoc} */
    @Override
    boolean isFused() {
        return fusedLoss;
    }

    /** {@inheritDoc} */
    @Override
    NDArray forwardFused(
            ParallelContext context,
            NDArray input,
            boolean gathered,
            NDArray weight,
            @Nullable NDArray bias,
            boolean training) {
        NDArray x; // an array of its own, which a loss can be differentiated by
        if (!training) {
            x = Autograd.detach(input, input.getManager());
        } else if (!TensorView.of(input).requiresGradient()) {
            NDArray leaf = Autograd.detach(input, input.getManager());
            leaf.setRequiresGradient(true); // for the loss to be differentiated at all
            x = leaf.reshape(leaf.getShape());
        } else if (gathered || context.getTensorGroup().getSize() == 1) {
            x = input.reshape(input.getShape()); // gradients are summed elsewhere
        } else {
            x = context.getMappings(this).copyToRegion(input, true);
        }
        FusedHead head = head(context);
        head.begin(context.getPass(), weight, bias);
        ShardedLayout layout = new ShardedLayout(outputCut(context), head);
        return context.getPass().enterSlice(x, layout, describe());
    }

    private FusedHead head(ParallelContext context) {
        return context.getParticipants().get(weight(), FusedHead.class, () -> newHead(context));
    }

    /** Returns what takes the gradient of an embedding with the same weight on a rank. */
    RowGradients.@Nullable Lookups lookups(ParallelContext context) {
        return (RowGradients.Lookups) head(context).getOtherUse();
    }

    private FusedHead newHead(ParallelContext context) {
        Communicator group = context.getTensorGroup();
        Cut cut = outputCut(context);
        long shard = cut.getShardLength(group.getRank());
        long features = weight().getShape().get(1);
        long most = LEAST_FUSED_MEMORY + shard * features * Float.BYTES * 3 / 4;
        long budget = fusedMemory > 0 ? fusedMemory : most;
        ChunkedHead function = new ChunkedHead(group, cut, budget, 0, options);
        return new FusedHead(
                weight(), bias(), function, tied ? new RowGradients.Lookups(weight()) : null);
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        if (!fusedLoss) {
            return super.forecast(pass, input);
        }
        getDirectParameters().values().forEach(pass::own);
        boolean overlaid = pass.getMesh().isOverlaid();
        return forecastSlice(pass, overlaid ? input : pass.gatherRows(input)).with(true);
    }

    /** {@inheritDoc} */
    @Override
    protected void saveMetadata(DataOutputStream os) throws IOException {
        if (options.margin() != null) {
            SavedMargin.write(options.margin(), linearVersion, os);
        }
        super.saveMetadata(os);
    }

    /**
     * {@inheritDoc}
     *
     * @throws MalformedModelException if the file has a margin that does not fit the head
     */
    @Override
    public void loadMetadata(byte loadVersion, DataInputStream is)
            throws IOException, MalformedModelException {
        if (loadVersion != SavedMargin.VERSION) {
            super.loadMetadata(loadVersion, is);
            return;
        }
        Margin saved = SavedMargin.read(is);
        SavedMargin.check(saved, options.margin(), bias() != null, fusedLoss);
        options = options.with(saved);
        version = SavedMargin.VERSION;
        super.loadMetadata(is.readByte(), is);
    }

    /**
     * Creates a builder to build a {@code ClassificationHead}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link ClassificationHead}. */
    public static class Builder extends AbstractColumnLinear.Builder<Builder> {

        private boolean fusedLoss = true;
        private long fusedMemory; // 0: by the size of the weight
        private float sampleShare = 1;
        private long sampleSeed;
        private boolean sampleCorrection;
        private boolean updateInLoss;
        private @Nullable Margin margin;
        private Precision precision = Precision.FLOAT32;

        private HeadOptions options = HeadOptions.DEFAULT; // what these are together

        /** Creates a builder. */
        protected Builder() {}

        /** {@inheritDoc} */
        @Override
        protected Builder self() {
            return this;
        }

        /**
         * Sets whether layer, loss and update are one under a {@link
         * io.djltp.training.ParallelTrainer}, or the logits are computed. Default: true.
         *
         * @param fused whether layer, loss and update are one
         * @return this builder
         */
        public Builder optFusedLoss(boolean fused) {
            fusedLoss = fused;
            return this;
        }

        /**
         * Sets how many bytes the logits of a batch may take on each rank. With less than 4 (2 in
         * 16 bits) for each row and class a part is computed twice. Default: 64 MiB, and 3/4 of
         * what the rank's weight takes in 32 bits.
         *
         * @param bytes the bytes
         * @return this builder
         */
        public Builder optFusedMemory(long bytes) {
            Errors.check(bytes > 0, "The bytes for logits must be 1 or more, not %s", bytes);
            this.fusedMemory = bytes;
            return this;
        }

        /**
         * Sets the share of the classes that a training step computes with: the labels of the batch
         * and a random share of all classes, the same at any number of ranks. The softmax is over
         * them, and only their rows of the weight, and of the optimizer's state, are read and
         * written. Outside of training, and for an accuracy, all classes count. Not with {@code
         * optFusedLoss(false)}. Default: 1, all classes. The method is Partial FC (An et al., 2022,
         * <a href="https://arxiv.org/abs/2203.15565">arXiv:2203.15565</a>).
         *
         * @param share the share, above 0 and up to 1, and of two classes at least
         * @return this builder
         */
        public Builder optSampleShare(float share) {
            sampleShare = share;
            return this;
        }

        /**
         * Sets the seed by which classes are drawn, with the number of steps done, and a weight in
         * float16 is rounded up or down at random, with the step, the class and the feature.
         * Default: 0.
         *
         * @param seed the seed
         * @return this builder
         */
        public Builder optSampleSeed(long seed) {
            this.sampleSeed = seed;
            return this;
        }

        /**
         * Sets whether the softmax over drawn classes corrects for how they were drawn: the
         * logarithm of the number of classes that a drawn one stands for, which is no label of the
         * batch, is added to its logit in training ("log q"). One-vs-all losses always correct.
         * Default: false.
         *
         * @param corrected whether it corrects
         * @return this builder
         */
        public Builder optSampleCorrection(boolean corrected) {
            sampleCorrection = corrected;
            return this;
        }

        /**
         * Sets whether the weight is updated while a {@link io.djltp.loss.OneVsAllLoss} is
         * computed: one pass over the weight in place of two, which needs no memory for logits.
         * {@code trainer.step()} then updates all other parameters, with the same learning rates.
         * Each loss of a forward pass in training is an update that nothing takes back, by the loss
         * times 1. Excludes several losses in a step, {@code optTiedWeight}, {@code
         * optGradientClipNorm}, a scaled loss, and any other loss. Default: false.
         *
         * @param inLoss whether the weight is updated with the loss
         * @return this builder
         */
        public Builder optUpdateInLoss(boolean inLoss) {
            updateInLoss = inLoss;
            return this;
        }

        /**
         * Sets a margin. The head's logits are then scaled cosines of the angles between the input
         * and the rows of the weight, and in training the label's cosine has the margin. Outside of
         * training, and under an ordinary parameter store, there is no margin. Saved with the
         * parameters. Needs {@code optBias(false)}, and not {@code optFusedLoss(false)}. Default:
         * {@code null}, none, or that of the file that is loaded.
         *
         * @param margin the margin, or {@code null}
         * @return this builder
         */
        public Builder optMargin(@Nullable Margin margin) {
            this.margin = margin;
            return this;
        }

        /**
         * Sets the arithmetic of training's products: float32, the default; bfloat16 on processors
         * that have it; float16 on GPUs, without a scaled loss too. DJL's own trainer trains a
         * fused head in float32. Not fused, it is as {@link ColumnParallelLinear}'s.
         *
         * @param precision the arithmetic
         * @return this builder
         */
        public Builder optPrecision(Precision precision) {
            this.precision = Objects.requireNonNull(precision, "precision");
            return this;
        }

        /**
         * Builds the head.
         *
         * @return the head
         */
        @Override
        public ClassificationHead build() {
            checkUnits();
            super.optPrecision(fusedLoss ? Precision.FLOAT32 : precision);
            Precision passes = fusedLoss ? precision : Precision.FLOAT32;
            options =
                    new HeadOptions(
                            sampleShare,
                            sampleSeed,
                            margin,
                            passes,
                            sampleCorrection,
                            updateInLoss);
            Errors.check(
                    !updateInLoss || fusedLoss && margin == null && embedding == null,
                    "optUpdateInLoss excludes optFusedLoss(false), optMargin and optTiedWeight");
            boolean plain = !options.isSampled() && margin == null;
            Errors.check(
                    fusedLoss || plain, "optSampleShare and optMargin exclude optFusedLoss(false)");
            Errors.check(
                    margin == null || !withBias,
                    "A cosine has no bias: set optBias(false) with optMargin");
            Errors.check(
                    embedding == null || plain,
                    "A head with optTiedWeight has the rows of the embedding as they are, and all"
                            + " of them in each step: optSampleShare and optMargin exclude it");
            options.checkClasses(units);
            return new ClassificationHead(this);
        }
    }
}

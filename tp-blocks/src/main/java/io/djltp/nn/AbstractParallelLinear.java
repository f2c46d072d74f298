package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
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
import io.djltp.internal.parameters.HeldParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.region.RegionMappings;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Objects;
import java.util.stream.Collectors;

/**
 * What column- and row-parallel layers share: they are DJL's {@link Linear} in everything but the
 * forward pass of a rank, and in particular in what they save.
 */
abstract class AbstractParallelLinear extends Linear implements ShardedBlock, ForecastBlock {

    private final boolean batchShardedInput;
    private final boolean skipBiasAdd;
    private LinearProduct product;
    private @Nullable LoraUpdate lora; // beside the weight

    AbstractParallelLinear(Builder<?> builder) {
        super(builder);
        batchShardedInput = builder.batchShardedInput;
        skipBiasAdd = builder.skipBiasAdd;
        product = new LinearProduct(builder.precision);
    }

    /**
     * Computes the rank's part.
     *
     * @param store the parameters of the rank, one of several
     * @param input the input, whole over the batch
     * @param gathered whether {@code input} was just gathered from all ranks
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard or replica of the bias, or {@code null}
     * @param training whether it is trained
     * @return the output
     */
    abstract NDArray forwardRank(
            RankParameterStore store,
            NDArray input,
            boolean gathered,
            NDArray weight,
            @Nullable NDArray bias,
            boolean training);

    /**
     * Returns how the input features are cut over the ranks, of a layer that takes a slice of them.
     *
     * @param context the rank, one of several
     * @return the cut, or {@code null} if a rank's input has all features
     */
    @Nullable Cut inputCut(ParallelContext context) {
        return null;
    }

    /** Returns whether a rank's input is its slice of the features. */
    boolean takesSlice() {
        return false;
    }

    /** Returns whether the weight is cut along its inputs. */
    abstract boolean cutsInputs();

    /** Returns whether a rank's input may be its tokens only, which the layer gathers. */
    boolean takesTokens() {
        return false;
    }

    /** Returns whether each rank's gradient of the input is a summand, not the whole. */
    abstract boolean hasPartialInputGradient();

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray input = only(inputs);
        NDArray bias =
                RankParameterStore.optionalShardOf(store, bias(), input.getDevice(), training);
        if (skipBiasAdd) {
            return new NDList(compute(store, input, null, training), bias);
        }
        return new NDList(compute(store, input, bias, training));
    }

    private NDArray compute(
            ParameterStore store, NDArray input, @Nullable NDArray bias, boolean training) {
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null) {
            HeldParameters.checkWhole(weight(), getClass().getSimpleName());
        }
        NDArray weight = RankParameterStore.shardOf(store, weight(), input.getDevice(), training);
        boolean alone = context == null || context.getTensorGroup().getSize() == 1;
        boolean fused = context != null && isFused();
        if (alone && context != null) {
            checkComputed(context.getPass(), input);
        }
        if (context == null || alone && !fused) {
            checkLength(input, weight().getShape().get(1));
            NDArray y = adapted(store, forwardWhole(input, weight, bias), input, training);
            return context == null
                    ? y
                    : context.getPass()
                            .enterLike(
                                    y,
                                    input,
                                    weight(),
                                    bias == null ? null : bias(),
                                    lora == null ? null : lora.a(),
                                    lora == null ? null : lora.b());
        }
        boolean gather = !alone && isToGather(context.getPass(), input);
        checkCut(context, input, alone ? null : inputCut(context));
        NDArray x = gather ? gatherBatch(context, input, weight, fused) : input;
        return fused
                ? forwardFused(context, x, gather, weight, bias, training)
                : forwardRank((RankParameterStore) store, x, gather, weight, bias, training);
    }

    /** Adds what an adapter computes of the input, if there is one, to a product of the layer. */
    final NDArray adapted(ParameterStore store, NDArray y, NDArray input, boolean training) {
        return lora == null ? y : lora.addTo(store, y, input, training);
    }

    /** Returns whether the layer has an adapter. */
    final boolean hasLora() {
        return lora != null;
    }

    /** Gives the layer an adapter. */
    final void setLora(LoraUpdate update) {
        if (isInitialized()) {
            NDArray array = weight().getArray();
            update.initialize(array.getManager(), array.getDataType(), getInputShapes());
        }
        lora = addChildBlock("lora", update);
    }

    /** {@inheritDoc} */
    @Override
    protected void initializeChildBlocks(NDManager manager, DataType dataType, Shape... inputs) {
        if (lora != null) {
            lora.initialize(manager, dataType, inputs);
        }
    }

    /** Returns the one input that the layer takes, which holds features. */
    private NDArray only(NDList inputs) {
        if (inputs.size() != 1 || !inputs.head().getDataType().isFloating()) {
            String given =
                    inputs.stream()
                            .map(input -> input.getDataType() + " " + input.getShape())
                            .collect(Collectors.joining(", ", "[", "]"));
            throw Errors.argument(
                    "%s takes one input, of floating point features, and gets %s: leave out what is"
                            + " too much, and convert integers (toType(DataType.FLOAT32, false)),"
                            + " or look them up in an embedding before this layer",
                    describeWeight(), given);
        }
        return inputs.head();
    }

    /** Refuses the output of a fused head, on one rank too: it has the features in it. */
    private void checkComputed(ForwardPass pass, NDArray input) {
        ShardedLayout layout = pass.layoutOf(input);
        if (layout != null && layout.head() != null) {
            throw Errors.argument(
                    "%s follows a layer with the weight %s, a fused head whose logits are never"
                            + " computed: build that one with optFusedLoss(false)",
                    describeWeight(), layout.head().getShape());
        }
    }

    /** Returns whether the rows of all ranks are to be gathered, of an input that is not shared. */
    final boolean isToGather(ForwardPass pass, NDArray input) {
        checkComputed(pass, input);
        return !pass.isShared(input)
                && isToGather(pass.regionOf(input), input.getShape(), pass.isOverlaid());
    }

    /** Returns whether rows are to be gathered; throws if the layer cannot take the input. */
    private boolean isToGather(Region region, Shape input, boolean overlaid) {
        if (region.isShard() && !takesSlice()) {
            throw Errors.argument(
                    "%s needs an input that is whole, and gets a slice of the features, %s: build"
                            + " the layer before it with optGatherOutput(true), or let a"
                            + " RowParallelLinear take the slice",
                    describeWeight(), input);
        }
        if (region.isTokensCut() && !takesTokens()) {
            throw Errors.argument(
                    "%s gets this rank's tokens, %s, of a sequence-parallel region, and needs all"
                            + " of them: build a ColumnParallelLinear with optSequenceParallel(true),"
                            + " or put a SequenceGather before the layer",
                    describeWeight(), input);
        }
        boolean rows = region.isRowsCut() && overlaid;
        if (rows && !batchShardedInput) {
            throw Errors.argument(
                    "%s gets a rank's rows of the batch, %s, in MIXED mode, but is cut over the"
                            + " ranks: build the first tensor-parallel layer with"
                            + " optBatchShardedInput(true), in a plan"
                            + " Style.column().batchShardedInput(), and join what branches off"
                            + " before that layer before it; or use TENSOR mode, or a mesh with an"
                            + " axis for each",
                    getClass().getSimpleName(), input);
        }
        return rows; // else another layer has gathered the batch, or it may stay cut
    }

    /** Checks that an input is cut as the layer needs it, or is whole if the cut is null. */
    final void checkCut(ParallelContext context, NDArray input, @Nullable Cut cut) {
        if (cut == null) {
            checkLength(input, weight().getShape().get(1));
            return;
        }
        NDArray own = context.getPass().takeLast(input);
        context.getPass().checkSharded(input, cut, describeWeight());
        checkLength(own, cut.getShardLength(context.getTensorGroup().getRank()));
    }

    private void checkLength(NDArray input, long features) {
        Shape shape = input.getShape();
        if (shape.dimension() == 0 || shape.get(shape.dimension() - 1) != features) {
            throw Errors.argument(
                    "%s over all ranks needs an input whose last axis has length %s on this rank,"
                            + " but the input is %s%s",
                    describeWeight(),
                    features,
                    shape,
                    takesSlice()
                            ? ". It takes the slice of the features that a ColumnParallelLinear"
                                    + " leaves on each rank: what comes between has to keep the"
                                    + " slice, or heads that the ranks divide. Else build the first"
                                    + " with optGatherOutput(true), and this layer with"
                                    + " optInputIsParallel(false)"
                            : "");
        }
    }

    /** Gathers the rows of all ranks; what the other ranks' rows get backward is scattered. */
    private NDArray gatherBatch(
            ParallelContext context, NDArray input, NDArray weight, boolean fused) {
        ForwardPass pass = context.getPass();
        RegionMappings mappings = context.getMappings(this);
        long count = Math.max(1, pass.getRows()); // a rank without a row computes another's
        if (input.getShape().get(0) != count) {
            throw Errors.argument(
                    "%s gathers the batch over the ranks, and its input must have the rows of the"
                            + " batch as axis 0: this rank has %s of %s, and the input is %s. Keep"
                            + " [rows, tokens, features] up to this layer, without a reshape that"
                            + " makes rows of the tokens, and let the batch be axis 0 of the"
                            + " inputs; or use TENSOR mode, or a mesh, where nothing is gathered",
                    describeWeight(), count, pass.getGlobalRows(), input.getShape());
        }
        NDArray own = pass.enterRows(input);
        // a rank without a row has computed another one's, which does not count
        NDArray rows = pass.countedRows(own);
        // a product that overlaps reduces the gradient itself
        boolean overlaps = !fused && lora == null && mappings.canOverlap(rows, weight);
        boolean partial = hasPartialInputGradient() && !overlaps;
        NDArray whole = mappings.gatherFromSequenceRegion(rows, pass.getBatchCut(), partial);
        return pass.enterGathered(whole);
    }

    private String describeWeight() {
        return getClass().getSimpleName() + " with a weight of " + weight().getShape();
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputs) {
        Shape[] shapes = super.getOutputShapes(inputs);
        Parameter bias = bias();
        return skipBiasAdd && bias != null ? new Shape[] {shapes[0], bias.getShape()} : shapes;
    }

    /**
     * Computes the unsharded layer.
     *
     * @param input the input
     * @param weight the whole weight
     * @param bias the whole bias, or {@code null}
     * @return the output
     */
    NDArray forwardWhole(NDArray input, NDArray weight, @Nullable NDArray bias) {
        return product.of(input, weight, bias);
    }

    /** Returns whether {@link #forwardFused} takes the place of {@link #forwardRank} on ranks. */
    boolean isFused() {
        return false;
    }

    /**
     * Returns what the loss and the evaluators compute the rank's output from.
     *
     * @param context the rank
     * @param input the input, whole over the batch
     * @param gathered whether {@code input} was just gathered from all ranks
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param training whether the loss will be differentiated
     * @return the features, with a layout that says what they are
     */
    NDArray forwardFused(
            ParallelContext context,
            NDArray input,
            boolean gathered,
            NDArray weight,
            @Nullable NDArray bias,
            boolean training) {
        throw new UnsupportedOperationException();
    }

    /** Returns what computes products in the precision of the layer. */
    LinearProduct product() {
        return product;
    }

    /**
     * Returns the precision of the layer's products.
     *
     * @return the precision, float32 unless {@code optPrecision} was set
     */
    public Precision getPrecision() {
        return product.precision();
    }

    /**
     * Sets the precision of the layer's products, of a layer that a builder or a plan has made: see
     * {@code optPrecision}. What is saved of the layer does not have it.
     *
     * @param precision float32 or bfloat16
     * @throws IllegalArgumentException if it is another one
     */
    public void setPrecision(Precision precision) {
        product = new LinearProduct(precision);
    }

    /** Returns the weight: [output features, input features] over all ranks. */
    Parameter weight() {
        return getDirectParameters().get("weight");
    }

    /** Returns the bias: [output features] over all ranks, or {@code null}. */
    @Nullable Parameter bias() {
        return getDirectParameters().get("bias");
    }

    /** {@inheritDoc} */
    @Override
    public boolean isBatchShardedInput() {
        return batchShardedInput;
    }

    /** Forecasts the input that the layer computes with: the rows, or tokens, of all ranks. */
    ForecastArray forecastInput(PassForecast pass, ForecastArray input) {
        if (pass.getTensorSize() == 1) {
            return input;
        }
        Region region = input.region();
        boolean rows = isToGather(region, input.shape(), pass.getMesh().isOverlaid());
        if (takesSlice() && !region.isShard()) {
            throw Errors.argument(
                    "%s needs a slice of the features, and gets an input that is whole: let a"
                            + " ColumnParallelLinear come before it, or build it with"
                            + " optInputIsParallel(false)",
                    describeWeight());
        }
        return rows || region.isTokensCut()
                ? pass.getMappings(this).gatherFromSequenceRegion(input, hasPartialInputGradient())
                : input;
    }

    /** Notes how an adapter is used. */
    final void forecastLora(PassForecast pass, ForecastArray input) {
        if (lora != null) {
            pass.use(lora, input);
        }
    }

    /** Forecasts the whole output, which has a gradient if the layer is trained. */
    ForecastArray forecastOutput(ForecastArray input) {
        boolean trained = getParameters().values().stream().anyMatch(Parameter::requiresGradient);
        return input.withFeatures(weight().getShape().get(0)).with(trained);
    }

    /** {@inheritDoc} */
    @Override
    public void loadMetadata(byte loadVersion, DataInputStream is)
            throws IOException, MalformedModelException {
        SavedMargin.refuse(loadVersion, getClass().getSimpleName());
        super.loadMetadata(loadVersion, is);
    }

    /**
     * {@inheritDoc}
     *
     * <p>Writes what an ordinary {@link Linear} writes, and its adapter. While ranks hold the
     * shards, they are gathered one parameter after another.
     */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(version);
        saveMetadata(os);
        HeldParameters.save(this, os);
        if (lora != null) {
            lora.saveParameters(os);
        }
    }

    /**
     * What the builders of column- and row-parallel layers share.
     *
     * @param <T> the builder
     */
    public abstract static class Builder<T extends Builder<T>> extends Linear.Builder {

        boolean batchShardedInput;
        boolean withBias = true; // DJL's field is private
        boolean skipBiasAdd;
        @Nullable ShardingStrategy shardingStrategy; // or null: balanced
        Precision precision = Precision.FLOAT32;

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Returns this builder.
         *
         * @return this builder
         */
        protected abstract T self();

        /** {@inheritDoc} */
        @Override
        public T setUnits(long units) {
            super.setUnits(units);
            return self();
        }

        /** {@inheritDoc} */
        @Override
        public T optBias(boolean bias) {
            super.optBias(bias);
            withBias = bias;
            return self();
        }

        /**
         * Sets whether the input is cut over the batch in MIXED mode: the layer is the first of the
         * tensor-parallel head, gathers the features of all ranks and scatters their gradients
         * back. In the other modes the input is never cut and this has no effect. Default: false.
         *
         * @param batchShardedInput whether the input is cut over the batch
         * @return this builder
         */
        public T optBatchShardedInput(boolean batchShardedInput) {
            this.batchShardedInput = batchShardedInput;
            return self();
        }

        /**
         * Sets how the weight is cut over the ranks: for lengths of your choice, such as {@code
         * ShardingStrategy.rowwise(Cut.ofLengths(5, 3))}, or several ranges a rank. Default:
         * balanced ranges.
         *
         * @param shardingStrategy the strategy, which cuts the axis that the layer is named after:
         *     0, the output features, of a column-parallel layer, and 1, the input features, of a
         *     row-parallel one
         * @return this builder
         */
        public T optShardingStrategy(ShardingStrategy shardingStrategy) {
            this.shardingStrategy = Objects.requireNonNull(shardingStrategy, "strategy");
            return self();
        }

        /**
         * Sets the precision of the layer's three products: forward, and of the gradients of input
         * and weight. Weights, inputs, outputs, gradients and the update are float32 in any, see
         * {@link io.djltp.internal.torch.LinearProduct}. Default: {@link Precision#FLOAT32}.
         *
         * @param precision float32, or bfloat16 where the processor or the GPU has it: else the
         *     first forward pass throws
         * @return this builder
         * @throws IllegalArgumentException if layers cannot have the precision: tf32
         */
        public T optPrecision(Precision precision) {
            this.precision = new LinearProduct(precision).precision();
            return self();
        }

        /** Returns the strategy that was set, or the balanced one. */
        ShardingStrategy strategy(int axis, String layer) {
            if (shardingStrategy == null) {
                return ShardingStrategy.axiswise(axis);
            }
            Shape weight = new Shape(units, 1);
            Errors.check(
                    !shardingStrategy.isReplicated() && shardingStrategy.axis(weight) == axis,
                    "%s cuts axis %s of its weight, the %s features, and cannot take the strategy"
                            + " %s: give optShardingStrategy one that cuts that axis",
                    layer,
                    axis,
                    axis == 0 ? "output" : "input",
                    shardingStrategy);
            return shardingStrategy;
        }

        /** Checks what every layer needs. */
        void checkUnits() {
            Errors.check(units > 0, "The units of a layer must be 1 or more, not %s", units);
            Errors.check(
                    withBias || !skipBiasAdd,
                    "A layer without a bias has none to leave to the next block: set optBias(true),"
                            + " or optSkipBiasAdd(false)");
        }
    }
}

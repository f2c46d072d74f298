package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.cut.Cut;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastBlock;
import io.djltp.forecast.PassForecast;
import io.djltp.internal.torch.LinearProduct;
import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.ShardedBlock;
import io.djltp.rank.ParallelContext;
import io.djltp.torch.Precision;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

/**
 * What column- and row-parallel layers share: they are DJL's {@link Linear} in everything but the
 * forward pass of a rank, and in particular in what they save.
 */
abstract class AbstractParallelLinear extends Linear implements ShardedBlock, ForecastBlock {

    private final boolean batchShardedInput;
    private final boolean skipBiasAdd;
    private LinearProduct product;

    AbstractParallelLinear(ParallelLinearBuilder<?> builder) {
        super(builder);
        batchShardedInput = builder.isBatchShardedInput();
        skipBiasAdd = builder.isSkipBiasAdd();
        product = new LinearProduct(builder.precision());
    }

    /**
     * Computes the rank's part.
     *
     * @param context the rank, one of several
     * @param input the input, whole over the batch
     * @param gathered whether {@code input} was just gathered from all ranks
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard or replica of the bias, or {@code null}
     * @return the output
     */
    abstract NDArray forwardRank(
            ParallelContext context, NDArray input, boolean gathered, NDArray weight, NDArray bias);

    /**
     * Returns how the input features are cut over the ranks, of a layer that takes a slice of them.
     *
     * @param context the rank, one of several
     * @return the cut, or {@code null} if a rank's input has all features
     */
    Cut inputCut(ParallelContext context) {
        return null;
    }

    /** Returns whether a rank's input is its slice of the features. */
    boolean takesSlice() {
        return false;
    }

    /** Returns whether a rank's input may be its tokens only, which the layer gathers. */
    boolean takesTokens() {
        return false;
    }

    /** Returns whether each rank's gradient of the input is a summand, not the whole. */
    abstract boolean hasPartialInputGradient();

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray input = new LayerInput(this).of(inputs);
        NDArray bias =
                RankParameterStore.shardOf(parameterStore, bias(), input.getDevice(), training);
        if (skipBiasAdd) {
            return new NDList(compute(parameterStore, input, null, training), bias);
        }
        return new NDList(compute(parameterStore, input, bias, training));
    }

    private NDArray compute(ParameterStore store, NDArray input, NDArray bias, boolean training) {
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null) {
            HeldParameters.checkWhole(weight(), getClass().getSimpleName());
        }
        NDArray weight = RankParameterStore.shardOf(store, weight(), input.getDevice(), training);
        LayerInput layerInput = new LayerInput(this);
        boolean alone = context == null || context.getTensorGroup().getSize() == 1;
        boolean fused = context != null && isFused(context);
        if (alone && context != null) {
            layerInput.checkComputed(context.getPass(), input);
        }
        if (alone && !fused) {
            layerInput.checkLength(input, weight().getShape().get(1));
            NDArray y = forwardWhole(input, weight, bias);
            return context == null
                    ? y
                    : context.getPass().enterLike(y, input, weight(), bias == null ? null : bias());
        }
        boolean gather = !alone && layerInput.checkRegion(context.getPass(), input);
        layerInput.checkCut(context, input, alone ? null : inputCut(context));
        if (gather) {
            input = layerInput.gatherBatch(context, input, weight, fused);
        }
        return fused
                ? forwardFused(context, input, gather, weight, bias, training)
                : forwardRank(context, input, gather, weight, bias);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputs) {
        Shape[] shapes = super.getOutputShapes(inputs);
        return skipBiasAdd ? new Shape[] {shapes[0], bias().getShape()} : shapes;
    }

    /**
     * Computes the unsharded layer.
     *
     * @param input the input
     * @param weight the whole weight
     * @param bias the whole bias, or {@code null}
     * @return the output
     */
    NDArray forwardWhole(NDArray input, NDArray weight, NDArray bias) {
        return product.of(input, weight, bias);
    }

    /**
     * Returns whether a rank leaves its output to the loss and the evaluators.
     *
     * @param context the rank
     * @return whether {@link #forwardFused} takes the place of {@link #forwardRank}
     */
    boolean isFused(ParallelContext context) {
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
            NDArray bias,
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
        return product.getPrecision();
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
    Parameter bias() {
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
        checkForecast(input);
        boolean rows = pass.getMesh().isOverlaid() && input.region().isRowsCut();
        if (rows && !isBatchShardedInput()) {
            throw new IllegalArgumentException(
                    describeForecast()
                            + " gets the rows of a rank in MIXED mode, but is cut over the ranks:"
                            + " build the first tensor-parallel layer with"
                            + " optBatchShardedInput(true), in a plan"
                            + " Style.column().batchShardedInput()");
        }
        return rows || input.region().isTokensCut()
                ? pass.getMappings(this).gatherFromSequenceRegion(input, hasPartialInputGradient())
                : input;
    }

    /** Forecasts the whole output, which has a gradient if the layer is trained. */
    ForecastArray forecastOutput(ForecastArray input) {
        boolean trained =
                getDirectParameters().values().stream().anyMatch(Parameter::requiresGradient);
        return input.withFeatures(weight().getShape().get(0)).with(trained);
    }

    /** Refuses a network that the layer could not be a part of, before it is trained. */
    private void checkForecast(ForecastArray input) {
        if (input.region().isTokensCut() && !takesTokens()) {
            throw new IllegalArgumentException(
                    describeForecast()
                            + " gets a rank's tokens of a sequence-parallel region, and needs all"
                            + " of them: build a ColumnParallelLinear with"
                            + " optSequenceParallel(true), or put a SequenceGather before the"
                            + " layer");
        }
        if (input.region().isShard() != takesSlice()) {
            throw new IllegalArgumentException(
                    describeForecast()
                            + (takesSlice()
                                    ? " needs a slice of the features, and gets an input that is"
                                            + " whole: let a ColumnParallelLinear come before it,"
                                            + " or build it with optInputIsParallel(false)"
                                    : " needs an input that is whole, and gets a slice of the"
                                            + " features: build the layer before it with"
                                            + " optGatherOutput(true), or let a RowParallelLinear"
                                            + " take the slice"));
        }
    }

    private String describeForecast() {
        return getClass().getSimpleName() + " with a weight of " + weight().getShape();
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
     * <p>Writes what an ordinary {@link Linear} writes. While ranks hold the shards, they are
     * gathered one parameter after another.
     */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(version);
        saveMetadata(os);
        HeldParameters.save(this, os);
    }
}

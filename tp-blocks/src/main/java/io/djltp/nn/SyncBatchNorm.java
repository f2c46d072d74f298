package io.djltp.nn;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TorchOperations;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.stream.IntStream;

/**
 * DJL's {@link BatchNorm} whose statistics are those of the whole batch, where its rows are cut
 * over the ranks.
 *
 * <p>Of each channel {@code c}, with {@code n} values over all ranks,
 *
 * <pre>
 *   y = gamma_c (x - mean_c) / sqrt(var_c + epsilon) + beta_c
 *   runningMean = momentum runningMean + (1 - momentum) mean_c
 *   runningVar  = momentum runningVar  + (1 - momentum) var_c n / (n - 1)
 * </pre>
 *
 * <p>Shapes: the input [rows, .., channels, ..] with the channels at {@code optAxis} (1 by
 * default), the output the same; gamma, beta, runningMean and runningVar: [channels], the same on
 * all ranks, running statistics included.
 *
 * <p>Collectives of a training pass: one all-gather of {@code 2 channels} numbers of each rank
 * forward, one reduce-scatter of their gradients backward, see {@link BatchStatistics}. None in an
 * evaluation, and none where the rows are not cut (TENSOR mode, behind a layer that has gathered
 * the batch, one rank, DJL's own trainer): there it is DJL's operation. It throws {@code
 * IllegalArgumentException} for sharded features, such as the output of a {@link
 * ColumnParallelLinear}: the parameters are those of all channels.
 *
 * <p>It saves and loads what {@link BatchNorm} does, byte for byte. PyTorch has the layer as {@code
 * torch.nn.SyncBatchNorm}.
 */
public class SyncBatchNorm extends AbstractBlock implements ForecastBlock {

    private static final byte VERSION = 2; // of DJL's block

    private final int axis;
    private final float epsilon;
    private final float momentum;
    private final Parameter gamma;
    private final Parameter beta;
    private final Parameter runningMean;
    private final Parameter runningVar;
    private long channels;

    /**
     * Creates a block.
     *
     * @param builder the builder
     */
    @SuppressWarnings("this-escape") // the parameters are those of a parent class
    protected SyncBatchNorm(Builder builder) {
        super(VERSION);
        axis = builder.axis;
        epsilon = builder.epsilon;
        momentum = builder.momentum;
        gamma = addParameter(parameter("gamma", Parameter.Type.GAMMA, builder.scale));
        beta = addParameter(parameter("beta", Parameter.Type.BETA, builder.center));
        runningMean = addParameter(parameter("runningMean", Parameter.Type.RUNNING_MEAN, false));
        runningVar = addParameter(parameter("runningVar", Parameter.Type.RUNNING_VAR, false));
    }

    private static Parameter parameter(String name, Parameter.Type type, boolean trained) {
        return Parameter.builder().setName(name).setType(type).optRequiresGrad(trained).build();
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray x = inputs.singletonOrThrow();
        NDArray scale = store.getValue(gamma, x.getDevice(), training);
        NDArray shift = store.getValue(beta, x.getDevice(), training);
        NDArray mean = store.getValue(runningMean, x.getDevice(), training);
        NDArray variance = store.getValue(runningVar, x.getDevice(), training);
        ParallelContext context = RankParameterStore.contextOf(store);
        if (context == null || !isCut(context, x) || !training) {
            return BatchNorm.batchNorm(
                    x, mean, variance, scale, shift, axis, momentum, epsilon, training);
        }
        ForwardPass pass = context.getPass();
        BatchStatistics statistics = new BatchStatistics(context, pass.takeRows(x), axis);
        statistics.addTo(mean, variance, momentum);
        return new NDList(pass.enterLike(statistics.normalize(scale, shift, epsilon), x));
    }

    /** Returns whether this rank has its rows of the batch only. */
    private boolean isCut(ParallelContext context, NDArray x) {
        if (context.getSize() == 1) {
            return false;
        }
        Region region = context.getPass().regionOf(x);
        checkWhole(region, x.getShape());
        return region.isRowsCut() && context.getDataGroup().getSize() > 1;
    }

    private void checkWhole(Region region, Shape input) {
        if (region.isShard()) {
            throw Errors.argument(
                    "SyncBatchNorm of %s channels gets a slice of the features, %s: build the"
                            + " layer before it with optGatherOutput(true), or put it behind the"
                            + " RowParallelLinear",
                    channels, input);
        }
    }

    /**
     * {@inheritDoc}
     *
     * <p>Of rows that are cut, in training, mean and squares of each channel are gathered.
     */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        pass.use(this, input);
        checkWhole(input.region(), input.shape());
        if (input.region().isRowsCut() && pass.isTraining()) {
            int size = pass.getDataSize();
            // in float32, if the model is of float16
            long bytes = size * 2 * channels * Math.max(Float.BYTES, pass.bytes(new Shape()));
            String issuer = "the rows of the batch";
            pass.add(issuer, Direction.FORWARD, Collective.ALL_GATHER, size, bytes);
            if (input.differentiated()) {
                pass.add(issuer, Direction.BACKWARD, Collective.REDUCE_SCATTER, size, bytes);
            }
        }
        return input.with(gamma.requiresGradient() || beta.requiresGradient());
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
        channels = inputShapes[0].size(axis);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Shape[] inputShapes) {
        for (Parameter parameter : getDirectParameters().values()) {
            parameter.setShape(new Shape(channels));
        }
    }

    /** {@inheritDoc} */
    @Override
    protected void saveMetadata(DataOutputStream os) throws IOException {
        saveInputShapes(os);
        os.writeLong(channels);
    }

    /** {@inheritDoc} */
    @Override
    public void loadMetadata(byte loadVersion, DataInputStream is)
            throws IOException, MalformedModelException {
        if (loadVersion == VERSION) {
            readInputShapes(is);
        } else if (loadVersion != 1) {
            throw new MalformedModelException("Unsupported encoding version: " + loadVersion);
        }
        channels = is.readLong();
    }

    /**
     * Creates a builder to build a {@code SyncBatchNorm}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link SyncBatchNorm}, with the options of {@link BatchNorm}. */
    public static class Builder {

        private int axis = 1;
        private float epsilon = 1e-5f;
        private float momentum = 0.9f;
        private boolean center = true;
        private boolean scale = true;

        /** Creates a builder. */
        protected Builder() {}

        /**
         * Sets the axis of the channels. Default: 1.
         *
         * @param axis the axis, not 0, which is the batch
         * @return this builder
         */
        public Builder optAxis(int axis) {
            this.axis = axis;
            return this;
        }

        /**
         * Sets whether beta is trained. Default: true.
         *
         * @param center whether it is trained, or stays zero
         * @return this builder
         */
        public Builder optCenter(boolean center) {
            this.center = center;
            return this;
        }

        /**
         * Sets whether gamma is trained. Default: true.
         *
         * @param scale whether it is trained, or stays one
         * @return this builder
         */
        public Builder optScale(boolean scale) {
            this.scale = scale;
            return this;
        }

        /**
         * Sets what is added to the variance. Default: 1e-5.
         *
         * @param epsilon a small number
         * @return this builder
         */
        public Builder optEpsilon(float epsilon) {
            this.epsilon = epsilon;
            return this;
        }

        /**
         * Sets what the running statistics keep at each pass. Default: 0.9.
         *
         * @param momentum the share that is kept
         * @return this builder
         */
        public Builder optMomentum(float momentum) {
            this.momentum = momentum;
            return this;
        }

        /**
         * Builds the block.
         *
         * @return the block
         */
        public SyncBatchNorm build() {
            Errors.check(axis > 0, "The axis of the channels must be 1 or more, not %s", axis);
            return new SyncBatchNorm(this);
        }
    }

    /**
     * Mean and variance of each channel over the rows of all ranks, as a part of the graph.
     *
     * <p>Those of the ranks are put together by {@link RankMoments}. How many values a rank has
     * follows from the cut of the batch; a rank without a row computes another's, which has the
     * weight 0. Rows of float16 are computed with in float32, as libtorch does.
     */
    @SuppressWarnings("try") // a scope is used by being open
    private static final class BatchStatistics {

        private final NDArray x; // the rows, in float32 if they are float16
        private final NDArray rows;
        private final NDArray mean; // [channels]
        private final NDArray variance; // [channels], biased
        private final Shape channelShape; // [1, .., channels, .., 1]
        private final double count;

        /**
         * Computes the statistics.
         *
         * @param context the rank
         * @param rows the rank's rows
         * @param axis the axis of the channels
         */
        BatchStatistics(ParallelContext context, NDArray rows, int axis) {
            this.rows = rows;
            // sums of 16 bits overflow, or stand still
            x = rows.getDataType() == DataType.FLOAT16 ? TorchOperations.toFloat32(rows) : rows;
            Shape shape = x.getShape();
            long channels = shape.get(axis);
            long[] ones = new long[shape.dimension()];
            Arrays.fill(ones, 1);
            ones[axis] = channels;
            channelShape = new Shape(ones);
            double[] values = values(context.getPass(), shape, axis);
            count = Arrays.stream(values).sum();
            Errors.check(
                    count > 1,
                    "SyncBatchNorm needs more than one value of each channel to train on, and the"
                            + " whole batch has one of each of the %s channels: a rank's part is"
                            + " %s. Leave an incomplete last batch out, setSampling(rows,"
                            + " shuffle, true), or choose a batch size that leaves two rows",
                    channels,
                    shape);
            int[] others = IntStream.range(0, ones.length).filter(i -> i != axis).toArray();
            NDArray own = x;
            for (int other : others) {
                own = own.mean(new int[] {other}, true);
            }
            NDArray distance = x.sub(own);
            NDArray squares = distance.mul(distance).sum(others);
            RankMoments moments = RankMoments.of(context.getBatchMappings(), own, squares, values);
            mean = moments.mean();
            variance = moments.variance();
        }

        /** Returns the number of values that each rank has of a channel. */
        private static double[] values(ForwardPass pass, Shape shape, int axis) {
            long rows = Math.max(1, pass.getRows());
            if (shape.get(0) % rows != 0) {
                throw Errors.argument(
                        "Axis 0 of the input %s of a SyncBatchNorm must be the rows of the batch,"
                                + " here %s of %s",
                        shape, rows, pass.getGlobalRows());
            }
            double each = (double) shape.size() / shape.get(axis) / rows; // such as the pixels
            return Arrays.stream(pass.getBatchCut().getShardLengths())
                    .mapToDouble(length -> length * each)
                    .toArray();
        }

        /**
         * Adds the statistics to running ones.
         *
         * @param runningMean the running mean, changed in place
         * @param runningVar the running variance, changed in place
         * @param momentum the share that they keep
         */
        void addTo(NDArray runningMean, NDArray runningVar, float momentum) {
            try (Autograd.GradMode mode = Autograd.gradMode(false);
                    NDManager scope = x.getManager().newSubManager()) {
                NDArray newMean = Autograd.detach(mean, scope);
                NDArray newVar = Autograd.detach(variance, scope);
                float unbiased = (float) ((1 - momentum) * count / (count - 1));
                runningMean.muli(momentum).addi(newMean.mul(1 - momentum));
                runningVar.muli(momentum).addi(newVar.mul(unbiased));
            }
        }

        /**
         * Normalizes the rows.
         *
         * @param gamma the scale of each channel, [channels]
         * @param beta the shift of each channel, [channels]
         * @param epsilon what is added to the variance
         * @return the normalized rows, attached to the manager of the rows
         */
        NDArray normalize(NDArray gamma, NDArray beta, float epsilon) {
            NDArray deviation = variance.add(epsilon).sqrt().reshape(channelShape);
            try (NDArray scale = gamma.reshape(channelShape); // not left to the parameter's manager
                    NDArray shift = beta.reshape(channelShape)) {
                NDArray normalized = x.sub(mean.reshape(channelShape)).div(deviation);
                NDArray result = normalized.mul(scale).add(shift);
                return x == rows
                        ? result
                        : TorchOperations.inTypeOf(result, rows, result.getManager());
            }
        }
    }
}

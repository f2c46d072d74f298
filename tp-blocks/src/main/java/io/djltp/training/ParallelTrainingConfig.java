package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.TrainingConfig;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.initializer.Initializer;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;
import ai.djl.util.PairList;

import io.djltp.internal.Errors;
import io.djltp.internal.optimizer.OptimizerSettings;
import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.internal.parameters.SlicedInitializer;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelConfig;
import io.djltp.torch.Precision;

import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.function.Predicate;

/**
 * The user's training configuration as DJL's {@code Trainer} gets to see it: one device, so that
 * {@code EasyTrain} does not split the batch, and the loss that the ranks compute.
 */
final class ParallelTrainingConfig implements TrainingConfig {

    private final TrainingConfig config;
    private final Device device;
    private final RankLoss loss;

    ParallelTrainingConfig(TrainingConfig config, Device device) {
        this.config = config;
        this.device = device;
        loss = new RankLoss(config.getLossFunction());
    }

    /** Refuses what cannot be trained, before anything is begun, and sets the initializers. */
    static Model check(Model model, TrainingConfig config, ParallelConfig ranks) {
        if (model.getBlock() == null) {
            throw new IllegalStateException(
                    "You must set a block for the model before creating a new trainer");
        }
        if (config.getLossFunction() == null) {
            throw new IllegalArgumentException(
                    "The training configuration has no loss, and the ranks compute it: give"
                            + " DefaultTrainingConfig one, such as Loss.softmaxCrossEntropyLoss()");
        }
        ScaledLoss.check(model, OptimizerSettings.of(config.getOptimizer()), ranks);
        ParallelParameters.checkFree(model.getBlock());
        for (Pair<Initializer, Predicate<Parameter>> pair : config.getInitializers()) {
            if (pair.getKey() != null && pair.getValue() != null) {
                // what is to be read from files stays so: optInitializer(...) is for the rest
                Predicate<Parameter> made =
                        each -> !(each.getInitializer() instanceof SlicedInitializer);
                model.getBlock().setInitializer(pair.getKey(), made.and(pair.getValue()));
            }
        }
        return model;
    }

    /** {@inheritDoc} */
    @Override
    public Device[] getDevices() {
        return new Device[] {device};
    }

    /** {@inheritDoc} */
    @Override
    public PairList<Initializer, Predicate<Parameter>> getInitializers() {
        return config.getInitializers();
    }

    /** {@inheritDoc} */
    @Override
    public Optimizer getOptimizer() {
        return config.getOptimizer();
    }

    /** {@inheritDoc} */
    @Override
    public Loss getLossFunction() {
        return loss;
    }

    /** {@inheritDoc} */
    @Override
    public ExecutorService getExecutorService() {
        return config.getExecutorService();
    }

    /** {@inheritDoc} */
    @Override
    public List<Evaluator> getEvaluators() {
        return config.getEvaluators();
    }

    /** {@inheritDoc} */
    @Override
    public List<TrainingListener> getTrainingListeners() {
        return config.getTrainingListeners();
    }

    /**
     * The user's loss as the coordinator sees it: what the ranks have computed for a {@link
     * ParallelOutput}, and the loss itself for anything else. It bears the name of the user's loss.
     */
    private static final class RankLoss extends Loss {

        private final Loss loss;

        RankLoss(Loss loss) {
            super(loss.getName());
            this.loss = loss;
        }

        /** {@inheritDoc} */
        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            return predictions instanceof ParallelOutput
                    ? ((ParallelOutput) predictions).getLoss(labels)
                    : loss.evaluate(labels, predictions);
        }
    }

    /**
     * Whether a training has the scaled loss that layers in float16 need: their gradients are lost
     * below 6e-8. The trainer scales it, {@code optLossScaling}; or the user does: the loss is
     * multiplied where it is differentiated, {@code collector.backward(loss.mul(scale))}, and the
     * optimizer divides what comes of it, {@code setRescaleGrad(1 / scale)}, which is how the
     * trainer knows. (Micikevicius et al., 2018, <a
     * href="https://arxiv.org/abs/1710.03740">arXiv:1710.03740</a>, section 3.2.)
     */
    private static final class ScaledLoss {

        private ScaledLoss() {}

        /** Refuses layers in float16 whose loss is not scaled, and weights in float16 if it is. */
        static void check(Model model, OptimizerSettings optimizer, ParallelConfig config) {
            boolean scaled = config.getLossScaling() != null;
            Errors.check(
                    !scaled || model.getDataType() != DataType.FLOAT16,
                    "The weights of %s are float16, and so are their gradients, which would be"
                            + " lost when the loss scale is taken from them: leave out"
                            + " model.setDataType(DataType.FLOAT16), and give the layers"
                            + " optPrecision(Precision.FLOAT16); or leave out optLossScaling",
                    model.getName());
            if (!scaled && optimizer.getRescale() == 1) {
                checkLayers("", model.getBlock(), config.getDevices());
            }
        }

        private static void checkLayers(String path, Block block, List<Device> devices) {
            if (precisionOf(block) == Precision.FLOAT16) {
                devices.forEach(Precision.FLOAT16::check); // no scale would help
                throw Errors.argument(
                        "The layer %s computes in float16, in which gradients below 6e-8 are"
                                + " zero, and the optimizer has rescaleGrad 1, which is for a"
                                + " loss that is not scaled. Let the trainer scale it:"
                                + " optLossScaling(LossScaling.builder().build()) of"
                                + " ParallelConfig; or scale it by, say, 65536:"
                                + " collector.backward(loss.mul(65536)), and build the optimizer"
                                + " with setRescaleGrad(1f / 65536); or use"
                                + " optPrecision(Precision.BFLOAT16), which has the range of"
                                + " float32",
                        (path.isEmpty() ? block.getClass().getSimpleName() : path));
            }
            block.getChildren()
                    .forEach(
                            child ->
                                    checkLayers(
                                            path.isEmpty()
                                                    ? child.getKey()
                                                    : path + "." + child.getKey(),
                                            child.getValue(),
                                            devices));
        }

        private static Precision precisionOf(Block block) {
            if (block instanceof ColumnParallelLinear layer) {
                return layer.getPrecision();
            }
            if (block instanceof RowParallelLinear layer) {
                return layer.getPrecision();
            }
            return block instanceof ClassificationHead head
                    ? head.getPrecision()
                    : Precision.FLOAT32;
        }
    }
}

package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.optimizer.OptimizerSettings;
import io.djltp.rank.ParallelConfig;
import io.djltp.torch.Precision;

import java.util.List;

/**
 * Whether a training has the scaled loss that layers in float16 need: their gradients are lost
 * below 6e-8. The trainer scales it, {@code optLossScaling}; or the user does: the loss is
 * multiplied where it is differentiated, {@code collector.backward(loss.mul(scale))}, and the
 * optimizer divides what comes of it, {@code setRescaleGrad(1 / scale)}, which is how the trainer
 * knows. (Micikevicius et al., 2018, <a
 * href="https://arxiv.org/abs/1710.03740">arXiv:1710.03740</a>, section 3.2.)
 */
final class ScaledLoss {

    private ScaledLoss() {}

    /** Refuses layers in float16 whose loss is not scaled, and weights in float16 if it is. */
    static void check(Model model, OptimizerSettings optimizer, ParallelConfig config) {
        boolean scaled = config.getLossScaling() != null;
        if (scaled && model.getDataType() == DataType.FLOAT16) {
            throw new IllegalArgumentException(
                    "The weights of "
                            + model.getName()
                            + " are float16, and so are their gradients, which would be lost when"
                            + " the loss scale is taken from them: leave out"
                            + " model.setDataType(DataType.FLOAT16), and give the layers"
                            + " optPrecision(Precision.FLOAT16); or leave out optLossScaling");
        }
        if (!scaled && optimizer.getRescale() == 1) {
            checkLayers("", model.getBlock(), config.getDevices());
        }
    }

    private static void checkLayers(String path, Block block, List<Device> devices) {
        if (precisionOf(block) == Precision.FLOAT16) {
            devices.forEach(Precision.FLOAT16::check); // no scale would help
            throw new IllegalArgumentException(
                    "The layer "
                            + (path.isEmpty() ? block.getClass().getSimpleName() : path)
                            + " computes in float16, in which gradients below 6e-8 are zero, and"
                            + " the optimizer has rescaleGrad 1, which is for a loss that is not"
                            + " scaled. Let the trainer scale it: optLossScaling("
                            + "LossScaling.builder().build()) of ParallelConfig; or scale it by,"
                            + " say, 65536: collector.backward("
                            + "loss.mul(65536)), and build the optimizer with"
                            + " setRescaleGrad(1f / 65536); or use optPrecision("
                            + "Precision.BFLOAT16), which has the range of float32");
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
        return block instanceof ClassificationHead head ? head.getPrecision() : Precision.FLOAT32;
    }
}

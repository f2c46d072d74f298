package io.djltp.training;

import static io.djltp.testing.Blocks.sequence;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.AllowedPrecision;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/**
 * Layers in float16, the arithmetic of GPUs, here on the processor: gradients that it has no
 * numbers for are there with a scaled loss, and without one it is refused.
 */
@SuppressWarnings("try") // a precision is allowed by being open
public class ScaledLossTest {

    private static final float SCALE = 1 << 16;
    private static final float TINY = 1e-7f; // of the loss: its gradients are 1e-9 and less

    @DataProvider
    public Object[][] ranks() {
        return new Object[][] {
            {new TrainerKind(ParallelMode.TENSOR, 1)},
            {new TrainerKind(ParallelMode.TENSOR, 2)},
            {new TrainerKind(ParallelMode.TENSOR, 3)},
            {new TrainerKind(ParallelMode.DATA, 2)},
        };
    }

    /** Three steps: weights are moved by tenths, and roundings are of 2^-11. */
    @Test(dataProvider = "ranks", timeOut = 60_000)
    public void smallGradientsAreThere(TrainerKind kind) {
        List<float[]> start = train(kind, Precision.FLOAT32, SCALE, 0);
        List<float[]> expected = train(kind, Precision.FLOAT32, 1, 3);
        Assert.assertThrows(
                AssertionError.class, () -> assertClose(start, expected, 0.05)); // it learns
        try (AllowedPrecision allowed = new AllowedPrecision(Precision.FLOAT16)) {
            assertClose(train(kind, Precision.FLOAT16, SCALE, 3), expected, 0.005);
            // as if it were not scaled: the factor of the loss and of the gradients is nearly 1
            assertClose(train(kind, Precision.FLOAT16, 1.001f, 3), start, 1e-4, 0, 2);
        }
    }

    @Test(timeOut = 60_000)
    public void aLossThatIsNotScaledIsRefused() {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, 2);
        try (AllowedPrecision allowed = new AllowedPrecision(Precision.FLOAT16)) {
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> train(kind, Precision.FLOAT16, 1, 1),
                    "float16",
                    "rescaleGrad 1",
                    "setRescaleGrad(1f / 65536)");
        }
    }

    @Test(timeOut = 60_000)
    public void aProcessorIsRefusedWithAScaledLossAndWithout() {
        TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, 2);
        for (float scale : new float[] {1, SCALE}) {
            IllegalArgumentException error =
                    Assert.expectThrows(
                            IllegalArgumentException.class,
                            () -> train(kind, Precision.FLOAT16, scale, 1));
            String expected =
                    "The precision float16 is arithmetic of GPUs, and the device is cpu()";
            Assert.assertTrue(error.getMessage().contains(expected), error.getMessage());
        }
    }

    private static List<float[]> train(
            TrainerKind kind, Precision precision, float scale, int steps) {
        Engine.getInstance().setRandomSeed(42);
        Block block =
                sequence(
                        ColumnParallelLinear.builder().setUnits(17).optPrecision(precision).build(),
                        new LambdaBlock(Activation::gelu),
                        RowParallelLinear.builder().setUnits(5).optPrecision(precision).build());
        DefaultTrainingConfig config =
                Configs.of(
                        Loss.l2Loss("loss", TINY),
                        Optimizer.sgd()
                                .setLearningRateTracker(Tracker.fixed(0.5f / TINY))
                                .setRescaleGrad(1 / scale)
                                .build());
        try (Model model = Model.newInstance("scaled")) {
            model.setBlock(block);
            try (Trainer trainer = kind.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(9, 11));
                for (int i = 0; i < steps; i++) {
                    NDArray data = TrainingRun.random(manager, i, 9, 11);
                    NDList labels = new NDList(TrainingRun.random(manager, 10 + i, 9, 5));
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(new NDList(data), labels);
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        collector.backward(loss.mul(scale));
                    }
                    trainer.step();
                }
            }
            return TrainingRun.weights(block);
        }
    }

    private static void assertClose(
            List<float[]> actual, List<float[]> expected, double bound, int... only) {
        for (int i = 0; i < expected.size(); i++) {
            int index = i;
            if (only.length == 0 || java.util.Arrays.stream(only).anyMatch(o -> o == index)) {
                ArrayAssert.assertClose(actual.get(i), expected.get(i), bound, "parameter " + i);
            }
        }
    }
}

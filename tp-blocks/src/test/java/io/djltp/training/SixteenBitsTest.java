package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;
import static io.djltp.training.FusedTraining.CLASSES;
import static io.djltp.training.FusedTraining.DEFAULT;
import static io.djltp.training.FusedTraining.FEATURES;
import static io.djltp.training.FusedTraining.ROWS;
import static io.djltp.training.FusedTraining.backward;
import static io.djltp.training.FusedTraining.data;
import static io.djltp.training.FusedTraining.labels;
import static io.djltp.training.FusedTraining.loss;
import static io.djltp.training.FusedTraining.network;
import static io.djltp.training.FusedTraining.sgd;
import static io.djltp.training.FusedTraining.use;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertThrows;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.internal.torch.Float16Product;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.AllowedPrecision;
import io.djltp.torch.Precision;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * Training in 16 bits: a head whose products, or whose weights, are in bfloat16 or float16 learns
 * as one in float32, and layers in float16, the arithmetic of GPUs, with a scaled loss. The
 * processor is allowed float16 here.
 */
@SuppressWarnings("try") // a precision is allowed by being open
public class SixteenBitsTest {

    private static final float SCALE = 1 << 16;
    private static final float TINY = 1e-7f; // of a loss: its gradients are 1e-9 and less
    private static final String OF_GPUS =
            "The precision float16 is arithmetic of GPUs, and the device is cpu()";
    private Float ofFloat32; // the loss that it ends with

    private static Block head(Precision precision, boolean fused) {
        return network(head -> head.optFusedLoss(fused).optPrecision(precision));
    }

    /** Those that can be computed here. */
    private static List<Precision> some() {
        List<Precision> some = new ArrayList<>();
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isEmpty()) {
            some.add(Precision.BFLOAT16);
        }
        if (Float16Product.isThere(false)) {
            some.add(Precision.FLOAT16);
        }
        return some;
    }

    @DataProvider
    public Object[][] precisions() {
        return TrainerKind.rows(some());
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TrainerKind.all(1, 2, 3, 4), some());
    }

    /**
     * Logits are below 4 here: losses are off by 4 (2u + u^2) at most, and weights move by that.
     * Where a head is not fused, logits are rounded once more when they are had: 4 (3u + 3u^2 +
     * u^3). The loss is off by at most twice that, as the logarithm of the normaliser and the
     * label's logit are.
     */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void lossesStayNearThoseOfFloat32(TrainerKind kind, Precision precision) {
        TrainingRun run = FusedTraining.run(kind, head(Precision.FLOAT32, true), DEFAULT);
        float[] expected = ArrayAssert.floats(run.getNumbers());
        for (boolean fused : new boolean[] {true, false}) {
            if (!fused && precision == Precision.FLOAT16) {
                continue; // a loss that is not scaled
            }
            float[] actual;
            try (AllowedPrecision allowed = new AllowedPrecision(precision)) {
                run = FusedTraining.run(kind, head(precision, fused), DEFAULT);
                actual = ArrayAssert.floats(run.getNumbers());
            }
            double bound = (fused ? 8 : 25) * precision.roundingError();
            for (int i = 0; i < expected.length; i++) {
                assertEquals(actual[i], expected[i], bound, "step " + i);
            }
            assertNotEquals(actual, expected, "it is another arithmetic");
        }
    }

    /** There the passes of a fused head do not run: it is an ordinary layer in float32. */
    @Test(timeOut = 60_000)
    public void underDjlsOwnTrainerAFusedHeadIsFloat32() {
        List<Float> expected =
                FusedTraining.run(PLAIN, head(Precision.FLOAT32, true), DEFAULT).getNumbers();
        for (Precision precision : List.of(Precision.BFLOAT16, Precision.FLOAT16)) {
            TrainingRun run = FusedTraining.run(PLAIN, head(precision, true), DEFAULT);
            assertEquals(run.getNumbers(), expected);
        }
    }

    /** One batch, until it is known by heart: both end with the same loss. */
    @Test(dataProvider = "precisions", timeOut = 60_000)
    public void aBatchIsLearnedByHeart(Precision precision) {
        if (ofFloat32 == null) {
            ofFloat32 = learnByHeart(Precision.FLOAT32);
        }
        assertTrue(ofFloat32 < 0.5, "loss " + ofFloat32);
        try (AllowedPrecision allowed = new AllowedPrecision(precision)) {
            assertEquals(learnByHeart(precision), ofFloat32, 0.05 * ofFloat32);
        }
    }

    private static float learnByHeart(Precision precision) {
        FusedTraining.Pass same = (trainer, manager, step) -> backward(trainer, manager, 0);
        Block block = head(precision, true);
        return FusedTraining.run(TENSOR_1, block, loss(DEFAULT), sgd(), 300, same)
                .getNumbers()
                .get(299);
    }

    /**
     * Weights in float16 learn what DJL's trainer learns whose weights, in 32 bits, are rounded to
     * 16 after each step. A float16 has 11 bits: a sum in another order may round up instead of
     * down, in any of the five steps.
     */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void weightsInFloat16EqualRoundedOnes(TrainerKind kind) {
        double rounding = 5 * Math.pow(2, -11);
        List<float[]> expected = trainRounded(PLAIN, DataType.FLOAT32);
        List<float[]> trained = trainRounded(kind, DataType.FLOAT16);
        assertClose(trained.get(0), expected.get(0), rounding, "weight");
        // DJL rounds the momentum of the bias too
        assertClose(trained.get(1), expected.get(1), 2 * rounding, "bias");
        assertClose(trained.get(2), expected.get(2), rounding, "losses");
    }

    private static List<float[]> trainRounded(TrainerKind kind, DataType type) {
        ClassificationHead.Builder builder =
                ClassificationHead.builder().setUnits(CLASSES).optBatchShardedInput(true);
        Block head = builder.build();
        List<float[]> results = new ArrayList<>();
        List<Float> losses = new ArrayList<>();
        try (NDManager parameters = NDManager.newBaseManager()) {
            head.initialize(parameters, type, new Shape(ROWS, FEATURES));
            List<Parameter> all = head.getParameters().values();
            set(all.get(0), random(parameters, 7, all.get(0).getShape().getShape()));
            FusedTraining.Use use =
                    (trainer, manager) -> {
                        for (int i = 0; i < 5; i++) {
                            NDArray data = rounded(data(manager, i).head()).toType(type, false);
                            losses.add(step(trainer, new NDList(data), labels(manager, i)));
                            if (kind == PLAIN) {
                                all.forEach(each -> set(each, each.getArray()));
                            }
                        }
                    };
            use(kind, head, loss(DEFAULT), Configs.sgd(0.3f, 0.5f), use);
            all.forEach(each -> results.add(ArrayAssert.floats(each.getArray())));
        }
        results.add(ArrayAssert.floats(losses));
        return results;
    }

    /** Sets the numbers of a parameter, rounded to 16 bits. */
    private static void set(Parameter parameter, NDArray values) {
        NDArray array = parameter.getArray();
        rounded(values).toType(array.getDataType(), true).copyTo(array);
    }

    private static NDArray rounded(NDArray values) {
        return values.toType(DataType.FLOAT16, true).toType(DataType.FLOAT32, true);
    }

    @DataProvider
    public Object[][] ranks() {
        return TrainerKind.rows(TENSOR_1, TENSOR_2, TENSOR_3, DATA_2);
    }

    /**
     * Gradients that float16 has no numbers for are there with a scaled loss. Three steps: weights
     * are moved by tenths, and roundings are of 2^-11.
     */
    @Test(dataProvider = "ranks", timeOut = 60_000)
    public void smallGradientsAreThere(TrainerKind kind) {
        List<float[]> start = train(kind, Precision.FLOAT32, SCALE, 0);
        List<float[]> expected = train(kind, Precision.FLOAT32, 1, 3);
        assertThrows( // it learns
                AssertionError.class, () -> assertAllClose(start, expected, 0.05, "parameter"));
        try (AllowedPrecision allowed = new AllowedPrecision(Precision.FLOAT16)) {
            List<float[]> scaled = train(kind, Precision.FLOAT16, SCALE, 3);
            assertAllClose(scaled, expected, 0.005, "parameter");
            // as if it were not scaled: the factor of the loss and of the gradients is nearly 1
            List<float[]> lost = train(kind, Precision.FLOAT16, 1.001f, 3);
            for (int weight : new int[] {0, 2}) {
                assertClose(lost.get(weight), start.get(weight), 1e-4, "parameter " + weight);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void aLossThatIsNotScaled() {
        try (AllowedPrecision allowed = new AllowedPrecision(Precision.FLOAT16)) {
            throwsArgument(
                    () -> train(TENSOR_2, Precision.FLOAT16, 1, 1),
                    "float16 .. rescaleGrad 1 .. setRescaleGrad(1f / 65536)");
        }
    }

    /** With a scaled loss and without. */
    @Test(timeOut = 60_000)
    public void aProcessorHasNoFloat16() {
        throwsArgument(
                () -> FusedTraining.run(TENSOR_1, head(Precision.FLOAT16, true), DEFAULT), OF_GPUS);
        for (float scale : new float[] {1, SCALE}) {
            throwsArgument(() -> train(TENSOR_2, Precision.FLOAT16, scale, 1), OF_GPUS);
        }
    }

    private static List<float[]> train(
            TrainerKind kind, Precision precision, float scale, int steps) {
        Block block =
                sequence(
                        ColumnParallelLinear.builder().setUnits(17).optPrecision(precision).build(),
                        gelu(),
                        RowParallelLinear.builder().setUnits(5).optPrecision(precision).build());
        Optimizer sgd =
                Optimizer.sgd()
                        .setLearningRateTracker(Tracker.fixed(0.5f / TINY))
                        .setRescaleGrad(1 / scale)
                        .build();
        return TrainingRun.of(
                        kind,
                        block,
                        Configs.of(Loss.l2Loss("loss", TINY), sgd),
                        new Shape(9, 11),
                        (trainer, manager, numbers) -> {
                            for (int i = 0; i < steps; i++) {
                                NDList labels = new NDList(random(manager, 10 + i, 9, 5));
                                NDList data = new NDList(random(manager, i, 9, 11));
                                try (GradientCollector c = trainer.newGradientCollector()) {
                                    NDList output = trainer.forward(data, labels);
                                    NDArray loss = trainer.getLoss().evaluate(labels, output);
                                    c.backward(loss.mul(scale));
                                }
                                trainer.step();
                            }
                        })
                .getWeights();
    }
}

package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;

import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Class weights and reductions of all rows, wherever rows and classes are cut. */
public class WeightedTrainingTest {

    private static final TrainerKind TWO = new TrainerKind(ParallelMode.TENSOR, 2);

    private final Map<LossOptions, FusedTraining> expected = new HashMap<>();
    private final List<LossOptions> cases =
            List.of(
                    // most rows are ignored or weigh little: some ranks have none that counts
                    new LossOptions(3, 0, 0.05f).withClassWeights(weights()),
                    new LossOptions(-100, 0, 0).withReduction(Reduction.SUM),
                    new LossOptions(3, 0.2f, 0.05f).withClassWeights(weights()),
                    new LossOptions(3, 0.2f, 0)
                            .withClassWeights(weights())
                            .withReduction(Reduction.SUM));

    private static float[] weights() {
        float[] weights = new float[FusedTraining.CLASSES];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = i % 3 * 0.1f; // a third is 0
        }
        return weights;
    }

    private static Block block(boolean fused) {
        return FusedTraining.network(head -> head.optFusedLoss(fused));
    }

    private static FusedTraining run(TrainerKind kind, Block block, LossOptions options) {
        return FusedTraining.run(kind, block, FusedTraining.loss(options), FusedTraining.sgd());
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel();
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void equalsDjlsTrainer(TrainerKind kind) {
        for (LossOptions options : cases) {
            FusedTraining plain =
                    expected.computeIfAbsent(options, o -> run(TrainerKind.PLAIN, block(false), o));
            run(kind, block(false), options).assertSame(plain);
            if (options.labelSmoothing() == 0) {
                run(kind, block(true), options).assertSame(plain);
            }
        }
    }

    /** In evaluations, the losses of all rows; their weighted mean is the loss. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void lossesOfRows(TrainerKind kind) {
        LossOptions options = cases.get(0).withReduction(Reduction.NONE);
        List<float[]> found = new ArrayList<>();
        for (TrainerKind each : List.of(TrainerKind.PLAIN, kind, kind)) {
            boolean fused = found.size() == 2;
            FusedTraining.use(
                    each,
                    block(fused),
                    FusedTraining.loss(options),
                    FusedTraining.sgd(),
                    (trainer, manager) -> {
                        NDList labels = FusedTraining.list(FusedTraining.labels(manager, 0));
                        NDArray losses =
                                trainer.getLoss()
                                        .evaluate(
                                                labels,
                                                trainer.evaluate(
                                                        FusedTraining.list(
                                                                FusedTraining.data(manager, 0))));
                        Assert.assertEquals(losses.getShape().getShape(), new long[] {8});
                        found.add(losses.toFloatArray());
                    });
        }
        ArrayAssert.assertClose(found.get(1), found.get(0), 1e-5, "losses of rows");
        ArrayAssert.assertClose(found.get(2), found.get(0), 1e-5, "of a fused head");
    }

    /** DJL's trainer goes backward from ones: what ranks refuse is the sum there. */
    @Test(timeOut = 60_000)
    public void lossesOfRowsTrainOnTheirSumByDjl() {
        List<float[]> outputs = new ArrayList<>();
        for (Reduction reduction : List.of(Reduction.NONE, Reduction.SUM)) {
            FusedTraining.use(
                    TrainerKind.PLAIN,
                    block(false),
                    FusedTraining.loss(LossOptions.DEFAULT.withReduction(reduction)),
                    FusedTraining.sgd(),
                    (trainer, manager) -> {
                        NDList data = FusedTraining.list(FusedTraining.data(manager, 0));
                        NDList labels = FusedTraining.list(FusedTraining.labels(manager, 0));
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(data, labels);
                            collector.backward(trainer.getLoss().evaluate(labels, output));
                        }
                        trainer.step();
                        outputs.add(trainer.evaluate(data).head().toFloatArray());
                    });
        }
        ArrayAssert.assertClose(outputs.get(0), outputs.get(1), 1e-6, "after a step");
    }

    @Test(timeOut = 60_000)
    public void whatIsRefused() {
        assertRefused(true, cases.get(2), "optFusedLoss(false)");
        assertRefused(true, LossOptions.DEFAULT.withClassWeights(1, 2), "weights of 2 classes");
        assertRefused(false, LossOptions.DEFAULT.withClassWeights(1, 2), "weights of 2 classes");
        for (boolean fused : new boolean[] {true, false}) {
            assertRefused(
                    fused, LossOptions.DEFAULT.withReduction(Reduction.NONE), "Reduction.MEAN");
        }
        Assert.expectThrows(
                IllegalArgumentException.class, () -> LossOptions.DEFAULT.withClassWeights(-1));
    }

    private static void assertRefused(boolean fused, LossOptions options, String part) {
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class, () -> run(TWO, block(fused), options));
        Assert.assertTrue(e.getMessage().contains(part), e.getMessage());
    }
}

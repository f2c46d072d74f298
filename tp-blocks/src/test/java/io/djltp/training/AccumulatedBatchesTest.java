package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** The gradients of several batches of a step add up in a fused head as under DJL's trainer. */
public class AccumulatedBatchesTest {

    private static final TrainerKind TWO = new TrainerKind(ParallelMode.TENSOR, 2);

    private final Map<String, List<float[]>> expected = new HashMap<>();

    private static Block fused() {
        return FusedTraining.network(head -> head.optFusedLoss(true));
    }

    private static Block plain() {
        return FusedTraining.network(head -> {});
    }

    private static Optimizer momentum() {
        return Optimizer.sgd()
                .setLearningRateTracker(Tracker.fixed(0.2f))
                .optMomentum(0.9f)
                .optClipGrad(0.02f) // of the sum, not of the summands
                .build();
    }

    private static Optimizer adam() {
        return Optimizer.adam().optLearningRateTracker(Tracker.fixed(0.02f)).build();
    }

    /** What is done before a step. */
    @FunctionalInterface
    private interface Pass {
        void run(Trainer trainer, NDManager manager, int step);
    }

    private static List<float[]> train(
            TrainerKind kind, Block block, LossOptions options, Optimizer optimizer, Pass pass) {
        List<float[]> weights = new ArrayList<>();
        FusedTraining.use(
                kind,
                block,
                FusedTraining.loss(options),
                optimizer,
                (trainer, manager) -> {
                    for (int step = 0; step < 3; step++) {
                        try (NDManager scope = manager.newSubManager()) {
                            pass.run(trainer, scope, step);
                        }
                        trainer.step();
                    }
                    trainer.close(); // hands the weights back
                    weights.addAll(TrainingRun.weights(block));
                });
        return weights;
    }

    private static float backward(Trainer trainer, NDManager manager, int batch) {
        return TrainingRun.backward(
                trainer, FusedTraining.data(manager, batch), FusedTraining.labels(manager, batch));
    }

    private static void assertSame(List<float[]> actual, List<float[]> wanted, String what) {
        for (int i = 0; i < wanted.size(); i++) {
            ArrayAssert.assertClose(actual.get(i), wanted.get(i), 1e-5, what + ", parameter " + i);
        }
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel();
    }

    /** One, two and three batches in the steps. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void equalsDjlsTrainer(TrainerKind kind) {
        Pass pass =
                (trainer, manager, step) -> {
                    for (int batch = 0; batch <= (step + 1) % 3; batch++) {
                        backward(trainer, manager, 5 * step + batch);
                    }
                };
        assertAll(kind, pass, "batches");
    }

    private void assertAll(TrainerKind kind, Pass pass, String what) {
        List<Supplier<Optimizer>> optimizers =
                List.of(
                        FusedTraining::sgd,
                        AccumulatedBatchesTest::momentum,
                        AccumulatedBatchesTest::adam);
        List<LossOptions> options =
                List.of(LossOptions.DEFAULT, new LossOptions(3, 0.2f, 0.05f), LossOptions.DEFAULT);
        for (int i = 0; i < 3; i++) {
            LossOptions option = options.get(i);
            Optimizer optimizer = optimizers.get(i).get();
            List<float[]> wanted =
                    expected.computeIfAbsent(
                            what + i,
                            key -> train(TrainerKind.PLAIN, plain(), option, optimizer, pass));
            assertSame(train(kind, fused(), option, optimizer, pass), wanted, what + " " + i);
        }
    }

    /** Losses of which nothing is wanted, evaluations, and gradients that are forgotten. */
    @Test(timeOut = 60_000)
    public void whatComesBetween() {
        Pass pass =
                (trainer, manager, step) -> {
                    backward(trainer, manager, step);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList data = FusedTraining.list(FusedTraining.data(manager, 50));
                        NDList labels = FusedTraining.list(FusedTraining.labels(manager, 50));
                        trainer.evaluate(data);
                        if (step == 1) {
                            NDList output = trainer.forward(data, labels);
                            NDArray loss = trainer.getLoss().evaluate(labels, output);
                            collector.zeroGradients(); // of the batch before
                            collector.backward(loss);
                        }
                        trainer.forward(data, labels); // at the end, and without a backward pass
                    }
                };
        for (TrainerKind kind :
                List.of(new TrainerKind(ParallelMode.TENSOR, 1), TWO, TrainerKind.mesh(2, 2))) {
            assertAll(kind, pass, "between");
        }
    }

    /** With hardly any memory for logits, and a frozen weight whose bias learns. */
    @Test(timeOut = 60_000)
    public void aSmallBudgetAndAFrozenWeight() {
        Pass pass =
                (trainer, manager, step) -> {
                    backward(trainer, manager, step);
                    backward(trainer, manager, 9 + step);
                };
        long bytes = 12 * 4 * FusedTraining.ROWS;
        for (boolean frozen : new boolean[] {false, true}) {
            List<List<float[]>> results = new ArrayList<>();
            for (Block block :
                    List.of(
                            plain(),
                            FusedTraining.network(
                                    h -> h.optFusedLoss(true).optFusedMemory(bytes)))) {
                Block head = block.getChildren().values().get(2);
                head.freezeParameters(frozen, p -> "weight".equals(p.getName()));
                TrainerKind kind = results.isEmpty() ? TrainerKind.PLAIN : TWO;
                results.add(train(kind, block, LossOptions.DEFAULT, momentum(), pass));
            }
            assertSame(results.get(1), results.get(0), "frozen " + frozen);
        }
    }

    /** Two batches at half the rate are one of both: with cosines and a margin too. */
    @Test(timeOut = 60_000)
    public void aMargin() {
        List<List<float[]>> results = new ArrayList<>();
        for (float rate : new float[] {0.4f, 0.2f}) {
            Pass pass =
                    (trainer, manager, step) -> {
                        if (rate == 0.2f) {
                            backward(trainer, manager, step);
                            backward(trainer, manager, 9 + step);
                            return;
                        }
                        NDArray data =
                                NDArrays.concat(
                                        new NDList(
                                                FusedTraining.data(manager, step),
                                                FusedTraining.data(manager, 9 + step)));
                        NDArray labels =
                                NDArrays.concat(
                                        new NDList(
                                                FusedTraining.labels(manager, step),
                                                FusedTraining.labels(manager, 9 + step)));
                        TrainingRun.backward(trainer, data, labels);
                    };
            Block block =
                    FusedTraining.network(
                            h ->
                                    h.optFusedLoss(true)
                                            .optBias(false)
                                            .optMargin(Margin.arcFace(8, 0.3f)));
            Optimizer sgd = Optimizer.sgd().setLearningRateTracker(Tracker.fixed(rate)).build();
            results.add(train(TWO, block, LossOptions.DEFAULT, sgd, pass));
        }
        assertSame(results.get(1), results.get(0), "a margin");
    }

    /** The classes of two batches are others. */
    @Test(timeOut = 60_000)
    public void drawnClassesAreRefused() {
        Block block = FusedTraining.network(head -> head.optFusedLoss(true).optSampleShare(0.5f));
        RuntimeException e =
                Assert.expectThrows(
                        RuntimeException.class,
                        () ->
                                train(
                                        TWO,
                                        block,
                                        LossOptions.DEFAULT,
                                        FusedTraining.sgd(),
                                        (trainer, manager, step) -> {
                                            backward(trainer, manager, 0);
                                            backward(trainer, manager, 1);
                                        }));
        Assert.assertTrue(e.toString().contains("keeps the gradient of one batch"), "" + e);
    }
}

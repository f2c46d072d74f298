package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** Training with a fused head has the result of training with a plain one. */
public class FusedHeadTest {

    private static final TrainerKind TWO = new TrainerKind(ParallelMode.TENSOR, 2);

    private static Block fused() {
        return FusedTraining.network(head -> head.optFusedLoss(true));
    }

    private static Block plain() {
        return FusedTraining.network(head -> {});
    }

    private final Map<LossOptions, FusedTraining> ofDjl = new HashMap<>();

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel();
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void equalsDjlsTrainer(TrainerKind kind) {
        for (LossOptions options :
                List.of(
                        LossOptions.DEFAULT,
                        new LossOptions(-100, 0.1f, 0),
                        new LossOptions(3, 0.2f, 0.05f))) {
            FusedTraining expected =
                    ofDjl.computeIfAbsent(
                            options,
                            key -> run(TrainerKind.PLAIN, plain(), key, FusedTraining.sgd()));
            run(kind, fused(), options, FusedTraining.sgd()).assertSame(expected);
            run(kind, plain(), options, FusedTraining.sgd()).assertSame(expected);
        }
    }

    private static FusedTraining run(
            TrainerKind kind, Block block, LossOptions options, Optimizer optimizer) {
        return FusedTraining.run(kind, block, FusedTraining.loss(options), optimizer);
    }

    @DataProvider
    public Object[][] optimizers() {
        Tracker rate =
                Tracker.warmUp().optWarmUpSteps(3).setMainTracker(Tracker.fixed(0.1f)).build();
        List<Supplier<Optimizer>> makers = new ArrayList<>();
        makers.add(() -> Optimizer.sgd().setLearningRateTracker(rate).build());
        makers.add(
                () -> Optimizer.sgd().setLearningRateTracker(rate).optWeightDecays(0.1f).build());
        makers.add(
                () ->
                        Optimizer.sgd()
                                .setLearningRateTracker(rate)
                                .optWeightDecays(0.1f)
                                .setRescaleGrad(0.5f)
                                .optClipGrad(0.01f)
                                .build());
        makers.add(
                () ->
                        Optimizer.sgd()
                                .setLearningRateTracker(rate)
                                .optMomentum(0.9f)
                                .optWeightDecays(0.1f)
                                .build());
        makers.add(
                () ->
                        Optimizer.sgd()
                                .setLearningRateTracker(rate)
                                .optMomentum(0.9f)
                                .setRescaleGrad(2)
                                .optClipGrad(0.01f)
                                .build());
        for (float momentum : new float[] {0, 0.9f}) { // of the gradients only what is negative
            makers.add(
                    () ->
                            Optimizer.sgd()
                                    .setLearningRateTracker(rate)
                                    .optMomentum(momentum)
                                    .optClipGrad(0)
                                    .build());
        }
        makers.add(() -> Optimizer.adam().optLearningRateTracker(rate).build());
        makers.add(
                () -> Optimizer.adam().optLearningRateTracker(rate).optWeightDecays(0.1f).build());
        makers.add(
                () -> Optimizer.adamW().optLearningRateTracker(rate).optWeightDecays(0.1f).build());
        makers.add(() -> RowwiseAdagrad.builder().optLearningRateTracker(rate).build());
        makers.add(
                () ->
                        RowwiseAdagrad.builder()
                                .optLearningRateTracker(rate)
                                .optWeightDecays(0.1f)
                                .build());
        Object[][] cases = new Object[makers.size()][];
        for (int i = 0; i < cases.length; i++) {
            cases[i] = new Object[] {i, makers.get(i)};
        }
        return cases;
    }

    @Test(dataProvider = "optimizers", timeOut = 60_000)
    public void equalsDjlsOptimizers(int number, Supplier<Optimizer> maker) {
        LossOptions options = LossOptions.DEFAULT;
        FusedTraining expected = run(TrainerKind.PLAIN, plain(), options, maker.get());
        for (int ranks = 1; ranks <= 4; ranks++) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            run(kind, fused(), options, maker.get()).assertSame(expected);
        }
    }

    /** With hardly any memory, most is computed twice. */
    @Test(timeOut = 60_000)
    public void aSmallBudgetGivesTheSame() {
        LossOptions options = LossOptions.DEFAULT;
        FusedTraining expected = run(TWO, fused(), options, FusedTraining.sgd());
        Block small =
                FusedTraining.network(
                        head ->
                                head.optFusedLoss(true)
                                        .optFusedMemory(12 * 4 * FusedTraining.ROWS));
        run(TWO, small, options, FusedTraining.sgd()).assertSame(expected);
    }

    @DataProvider
    public Object[][] counts() {
        return new Object[][] {
            {ParallelMode.TENSOR, 3, 0, 0},
            {ParallelMode.MIXED, 2, 1, 1}
        };
    }

    /** Largest logits, sums, and the gradient of the features; the body's two in MIXED mode. */
    @Test(dataProvider = "counts", timeOut = 60_000)
    public void communicatesOncePerQuantity(
            ParallelMode mode, int reductions, int gathers, int scatters) {
        FusedTraining.use(
                new TrainerKind(mode, 2),
                fused(),
                FusedTraining.loss(LossOptions.DEFAULT),
                FusedTraining.sgd(),
                (trainer, manager) -> {
                    ParallelTrainer parallel = (ParallelTrainer) trainer;
                    CollectiveCounts before = parallel.getCollectiveCounts();
                    backward(trainer, manager, 0);
                    CollectiveCounts counts = parallel.getCollectiveCounts().minus(before);
                    Assert.assertEquals(counts.get(Collective.ALL_REDUCE), reductions);
                    Assert.assertEquals(counts.get(Collective.ALL_GATHER), gathers);
                    Assert.assertEquals(counts.get(Collective.REDUCE_SCATTER), scatters);
                });
    }

    private static float backward(Trainer trainer, NDManager manager, int step) {
        return TrainingRun.backward(
                trainer, FusedTraining.data(manager, step), FusedTraining.labels(manager, step));
    }

    /** Weights change in step() and not before; zeroed gradients change nothing. */
    @Test(timeOut = 60_000)
    public void weightsChangeInTheStep() {
        for (int ranks = 1; ranks <= 2; ranks++) {
            FusedTraining.use(
                    new TrainerKind(ParallelMode.TENSOR, ranks),
                    fused(),
                    FusedTraining.loss(LossOptions.DEFAULT),
                    FusedTraining.sgd(),
                    (trainer, manager) -> {
                        float[] before = head(trainer);
                        backward(trainer, manager, 0);
                        Assert.assertEquals(head(trainer), before);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            collector.zeroGradients();
                        }
                        trainer.step();
                        Assert.assertEquals(head(trainer), before);
                        backward(trainer, manager, 0);
                        trainer.step();
                        Assert.assertNotEquals(head(trainer), before);
                    });
        }
    }

    private static float[] head(Trainer trainer) {
        Parameter weight = parameter(trainer.getModel().getBlock(), "03ClassificationHead_weight");
        return ((ParallelTrainer) trainer)
                .getParameterStore(0)
                .getValue(weight, null, true)
                .toFloatArray();
    }

    private static Parameter parameter(Block block, String name) {
        return block.getParameters().get(name);
    }

    /** Frozen weights stay as they are, and what comes before them learns all the same. */
    @Test(timeOut = 60_000)
    public void aFrozenHead() {
        List<FusedTraining> runs = new ArrayList<>();
        for (Block block : List.of(plain(), fused())) {
            freeze(block);
            runs.add(run(TWO, block, LossOptions.DEFAULT, FusedTraining.sgd()));
        }
        runs.get(1).assertSame(runs.get(0));
    }

    /** The loss has a gradient all the same, of the head alone. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aFrozenBody(TrainerKind kind) {
        Block plain = plain();
        Block fused = fused();
        List.of(plain, fused).forEach(block -> first(block).freezeParameters(true));
        FusedTraining expected =
                run(TrainerKind.PLAIN, plain, LossOptions.DEFAULT, FusedTraining.sgd());
        run(kind, fused, LossOptions.DEFAULT, FusedTraining.sgd()).assertSame(expected);
    }

    private static Block first(Block network) {
        return network.getChildren().values().get(0);
    }

    private static void freeze(Block block) {
        block.getChildren()
                .values()
                .get(2)
                .freezeParameters(true, p -> "weight".equals(p.getName()));
    }

    /** Predictions and their accuracy, in training and in evaluation. */
    @Test(timeOut = 60_000)
    public void evaluates() {
        List<float[]> results = new ArrayList<>();
        for (TrainerKind kind :
                List.of(TrainerKind.PLAIN, new TrainerKind(ParallelMode.TENSOR, 1), TWO)) {
            FusedTraining.use(
                    kind,
                    fused(),
                    FusedTraining.loss(LossOptions.DEFAULT),
                    FusedTraining.sgd(),
                    (trainer, manager) -> results.add(evaluations(trainer, manager)));
        }
        Assert.assertEquals(results.get(1), results.get(0), 1e-6f);
        Assert.assertEquals(results.get(2), results.get(0), 1e-6f);
    }

    private static float[] evaluations(Trainer trainer, NDManager manager) {
        NDList data = FusedTraining.list(FusedTraining.data(manager, 0));
        NDList labels = FusedTraining.list(FusedTraining.labels(manager, 0));
        NDList evaluated = trainer.evaluate(data);
        Assert.assertEquals(evaluated.head().getShape().get(1), FusedTraining.CLASSES);
        NDArray loss = trainer.getLoss().evaluate(labels, evaluated);
        VocabParallelAccuracy accuracy = new VocabParallelAccuracy(5);
        float seen = right(accuracy, labels, evaluated);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(data, labels);
            Assert.assertEquals(output.head().getShape().get(1), FusedTraining.CLASSES);
            NDArray trained = trainer.getLoss().evaluate(labels, output);
            float seenInTraining = right(accuracy, labels, output);
            collector.backward(trained);
            Assert.assertEquals(seenInTraining, seen);
            Assert.assertEquals(trained.getFloat(), loss.getFloat(), 1e-6);
        }
        trainer.step();
        return new float[] {loss.getFloat(), seen};
    }

    private static float right(VocabParallelAccuracy accuracy, NDList labels, NDList predictions) {
        return accuracy.evaluate(labels, predictions).countNonzero().getLong();
    }

    /** What a fused head writes while it is trained, a plain layer reads. */
    @Test(timeOut = 60_000)
    public void savesAsAPlainLayer() {
        FusedTraining.use(
                TWO,
                fused(),
                FusedTraining.loss(LossOptions.DEFAULT),
                FusedTraining.sgd(),
                (trainer, manager) -> {
                    backward(trainer, manager, 0);
                    trainer.step();
                    NDList data = FusedTraining.list(FusedTraining.data(manager, 1));
                    Block trained = trainer.getModel().getBlock();
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    trained.saveParameters(new DataOutputStream(bytes));
                    trainer.close();
                    Block loaded =
                            new SequentialBlock()
                                    .add(Linear.builder().setUnits(6).build())
                                    .add(Activation.tanhBlock())
                                    .add(Linear.builder().setUnits(FusedTraining.CLASSES).build());
                    loaded.loadParameters(
                            manager,
                            new DataInputStream(new ByteArrayInputStream(bytes.toByteArray())));
                    ParameterStore store = new ParameterStore(manager, false);
                    Assert.assertEquals(
                            loaded.forward(store, data, false).head(),
                            trained.forward(store, data, false).head());
                });
    }
}

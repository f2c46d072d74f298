package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.training.FusedTraining.CLASSES;
import static io.djltp.training.FusedTraining.FEATURES;
import static io.djltp.training.FusedTraining.backward;
import static io.djltp.training.FusedTraining.data;
import static io.djltp.training.FusedTraining.labels;
import static io.djltp.training.FusedTraining.list;
import static io.djltp.training.FusedTraining.loss;
import static io.djltp.training.FusedTraining.sgd;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.head.Reduction;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.nn.ClassificationHead;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.Refusals;
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
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * A head of a classification, fused with its loss or not, is trained as by DJL's own trainer, by
 * every loss and optimizer, by any number of batches in a step, and wherever rows and classes are
 * cut.
 */
public class HeadsEqualDjlTest {

    private static final TrainerKind ONE = new TrainerKind(ParallelMode.TENSOR, 1);
    private static final TrainerKind TWO = new TrainerKind(ParallelMode.TENSOR, 2);
    private static final LossOptions DEFAULT = LossOptions.DEFAULT;
    private static final long SMALL = 12 * 4 * FusedTraining.ROWS; // hardly any memory for logits

    // most rows are ignored or weigh little: some ranks have none that counts
    private static final LossOptions WEIGHTED =
            new LossOptions(3, 0, 0.05f).withClassWeights(weights());
    private static final LossOptions SMOOTHED_AND_WEIGHTED =
            new LossOptions(3, 0.2f, 0.05f).withClassWeights(weights());

    private final Map<String, FusedTraining> expected = new HashMap<>();

    private static float[] weights() {
        float[] weights = new float[CLASSES];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = i % 3 * 0.1f; // a third is 0
        }
        return weights;
    }

    private static Block plain() {
        return FusedTraining.network(head -> {});
    }

    private static Block fused() {
        return fused(head -> {});
    }

    private static Block fused(Consumer<ClassificationHead.Builder> options) {
        return FusedTraining.network(head -> options.accept(head.optFusedLoss(true)));
    }

    private static FusedTraining run(TrainerKind kind, Block block, LossOptions options) {
        return FusedTraining.run(kind, block, loss(options), sgd());
    }

    @DataProvider
    public Object[][] losses() {
        Object[][] losses = {
            {"default", DEFAULT, true},
            {"smoothed", new LossOptions(-100, 0.1f, 0), true},
            {"smoothed, ignoring", new LossOptions(3, 0.2f, 0.05f), true},
            {"weighted", WEIGHTED, true},
            {"sum", new LossOptions(-100, 0, 0).withReduction(Reduction.SUM), true},
            {"smoothed, weighted", SMOOTHED_AND_WEIGHTED, false},
            {
                "smoothed, weighted sum",
                new LossOptions(3, 0.2f, 0)
                        .withClassWeights(weights())
                        .withReduction(Reduction.SUM),
                false
            },
        };
        List<Object[]> cases = new ArrayList<>();
        for (Object[] kind : TrainerKind.parallel()) {
            for (Object[] loss : losses) {
                cases.add(new Object[] {kind[0], loss[0], loss[1], loss[2]});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "losses", timeOut = 60_000)
    public void everyLoss(TrainerKind kind, String name, LossOptions options, boolean canBeFused) {
        FusedTraining ofDjl =
                expected.computeIfAbsent(name, key -> run(TrainerKind.PLAIN, plain(), options));
        run(kind, plain(), options).assertSame(ofDjl);
        if (canBeFused) {
            run(kind, fused(), options).assertSame(ofDjl);
        }
    }

    /** In evaluations, the losses of all rows; their weighted mean is the loss. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void lossesOfRows(TrainerKind kind) {
        float[] ofDjl = lossesOfRows(TrainerKind.PLAIN, plain());
        ArrayAssert.assertClose(lossesOfRows(kind, plain()), ofDjl, 1e-5, "losses of rows");
        ArrayAssert.assertClose(lossesOfRows(kind, fused()), ofDjl, 1e-5, "of a fused head");
    }

    private static float[] lossesOfRows(TrainerKind kind, Block block) {
        float[][] found = new float[1][];
        FusedTraining.use(
                kind,
                block,
                loss(WEIGHTED.withReduction(Reduction.NONE)),
                sgd(),
                (trainer, manager) -> {
                    NDList output = trainer.evaluate(list(data(manager, 0)));
                    NDArray losses = trainer.getLoss().evaluate(list(labels(manager, 0)), output);
                    Assert.assertEquals(losses.getShape(), new Shape(8));
                    found[0] = losses.toFloatArray();
                });
        return found[0];
    }

    /** DJL's trainer goes backward from ones: what ranks refuse is the sum there. */
    @Test(timeOut = 60_000)
    public void lossesOfRowsTrainOnTheirSumByDjl() {
        List<float[]> outputs = new ArrayList<>();
        for (Reduction reduction : List.of(Reduction.NONE, Reduction.SUM)) {
            FusedTraining.use(
                    TrainerKind.PLAIN,
                    plain(),
                    loss(DEFAULT.withReduction(reduction)),
                    sgd(),
                    (trainer, manager) -> {
                        NDList data = list(data(manager, 0));
                        NDList labels = list(labels(manager, 0));
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

    @DataProvider
    public Object[][] refusals() {
        LossOptions ofTwo = DEFAULT.withClassWeights(1, 2);
        LossOptions ofRows = DEFAULT.withReduction(Reduction.NONE);
        return new Object[][] {
            {true, SMOOTHED_AND_WEIGHTED, "optFusedLoss(false)"},
            {true, ofTwo, "weights of 2 classes"},
            {false, ofTwo, "weights of 2 classes"},
            {true, ofRows, "Reduction.MEAN"},
            {false, ofRows, "Reduction.MEAN"},
        };
    }

    @Test(dataProvider = "refusals", timeOut = 60_000)
    public void lossesThatAreRefused(boolean fused, LossOptions options, String part) {
        Refusals.expect(
                IllegalArgumentException.class,
                () -> run(TWO, fused ? fused() : plain(), options),
                part);
    }

    @Test
    public void aNegativeWeightIsRefused() {
        Assert.expectThrows(IllegalArgumentException.class, () -> DEFAULT.withClassWeights(-1));
    }

    @DataProvider
    public Object[][] optimizers() {
        Tracker rate =
                Tracker.warmUp().optWarmUpSteps(3).setMainTracker(Tracker.fixed(0.1f)).build();
        List<Supplier<Optimizer>> makers = new ArrayList<>();
        makers.add(() -> ofRate(rate).build());
        makers.add(() -> ofRate(rate).optWeightDecays(0.1f).build());
        makers.add(
                () ->
                        ofRate(rate)
                                .optWeightDecays(0.1f)
                                .setRescaleGrad(0.5f)
                                .optClipGrad(0.01f)
                                .build());
        makers.add(() -> ofRate(rate).optMomentum(0.9f).optWeightDecays(0.1f).build());
        makers.add(
                () -> ofRate(rate).optMomentum(0.9f).setRescaleGrad(2).optClipGrad(0.01f).build());
        for (float momentum : new float[] {0, 0.9f}) { // of the gradients only what is negative
            makers.add(() -> ofRate(rate).optMomentum(momentum).optClipGrad(0).build());
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

    private static Sgd.Builder ofRate(Tracker rate) {
        return Optimizer.sgd().setLearningRateTracker(rate);
    }

    @Test(dataProvider = "optimizers", timeOut = 60_000)
    public void everyOptimizer(int number, Supplier<Optimizer> maker) {
        FusedTraining ofDjl =
                FusedTraining.run(TrainerKind.PLAIN, plain(), loss(DEFAULT), maker.get());
        for (int ranks = 1; ranks <= 4; ranks++) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            FusedTraining.run(kind, fused(), loss(DEFAULT), maker.get()).assertSame(ofDjl);
        }
    }

    /** The loss has a gradient all the same, of the head alone. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void aFrozenBody(TrainerKind kind) {
        FusedTraining ofDjl = run(TrainerKind.PLAIN, frozen(plain(), 0, true), DEFAULT);
        run(kind, frozen(fused(), 0, true), DEFAULT).assertSame(ofDjl);
    }

    /** Frozen weights stay as they are, and what comes before them learns all the same. */
    @Test(timeOut = 60_000)
    public void aFrozenHead() {
        FusedTraining ofAPlainHead = run(TWO, frozen(plain(), 2, true), DEFAULT);
        run(TWO, frozen(fused(), 2, true), DEFAULT).assertSame(ofAPlainHead);
    }

    private static Block frozen(Block network, int layer, boolean frozen) {
        network.getChildren()
                .values()
                .get(layer)
                .freezeParameters(frozen, p -> layer == 0 || "weight".equals(p.getName()));
        return network;
    }

    /** With hardly any memory, most is computed twice. */
    @Test(timeOut = 60_000)
    public void aSmallBudgetGivesTheSame() {
        FusedTraining ofALargeOne = run(TWO, fused(), DEFAULT);
        run(TWO, fused(head -> head.optFusedMemory(SMALL)), DEFAULT).assertSame(ofALargeOne);
    }

    private void assertOfDjl(TrainerKind kind, String what, FusedTraining.Pass pass) {
        LossOptions ignoring = new LossOptions(3, 0.2f, 0.05f);
        assertOfDjl(kind, what + ", sgd", DEFAULT, FusedTraining::sgd, pass);
        assertOfDjl(kind, what + ", momentum", ignoring, HeadsEqualDjlTest::momentum, pass);
        assertOfDjl(kind, what + ", adam", DEFAULT, () -> Configs.adam(0.02f), pass);
    }

    private void assertOfDjl(
            TrainerKind kind,
            String what,
            LossOptions options,
            Supplier<Optimizer> optimizer,
            FusedTraining.Pass pass) {
        FusedTraining ofDjl =
                expected.computeIfAbsent(
                        what,
                        key -> run(TrainerKind.PLAIN, plain(), options, optimizer.get(), pass));
        run(kind, fused(), options, optimizer.get(), pass).assertSame(ofDjl);
    }

    private static FusedTraining run(
            TrainerKind kind,
            Block block,
            LossOptions options,
            Optimizer optimizer,
            FusedTraining.Pass pass) {
        return FusedTraining.run(kind, block, loss(options), optimizer, 3, pass);
    }

    private static Optimizer momentum() {
        return Optimizer.sgd()
                .setLearningRateTracker(Tracker.fixed(0.2f))
                .optMomentum(0.9f)
                .optClipGrad(0.02f) // of the sum, not of the summands
                .build();
    }

    private static float twoBatches(Trainer trainer, NDManager manager, int step) {
        return backward(trainer, manager, step) + backward(trainer, manager, 9 + step);
    }

    /** One, two and three batches in the steps. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void severalBatchesInAStep(TrainerKind kind) {
        assertOfDjl(
                kind,
                "batches",
                (trainer, manager, step) -> {
                    float losses = 0;
                    for (int batch = 0; batch <= (step + 1) % 3; batch++) {
                        losses += backward(trainer, manager, 5 * step + batch);
                    }
                    return losses;
                });
    }

    @DataProvider
    public Object[][] someKinds() {
        return new Object[][] {{ONE}, {TWO}, {TrainerKind.mesh(2, 2)}};
    }

    /** Losses of which nothing is wanted, evaluations, and gradients that are forgotten. */
    @Test(dataProvider = "someKinds", timeOut = 60_000)
    public void whatComesBetweenTheBatches(TrainerKind kind) {
        assertOfDjl(
                kind,
                "between",
                (trainer, manager, step) -> {
                    float value = backward(trainer, manager, step);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList data = list(data(manager, 50));
                        NDList labels = list(labels(manager, 50));
                        trainer.evaluate(data);
                        if (step == 1) {
                            NDList output = trainer.forward(data, labels);
                            NDArray loss = trainer.getLoss().evaluate(labels, output);
                            collector.zeroGradients(); // of the batch before
                            collector.backward(loss);
                        }
                        trainer.forward(data, labels); // at the end, and without a backward pass
                    }
                    return value;
                });
    }

    /** With hardly any memory for logits, and a frozen weight whose bias learns. */
    @Test(timeOut = 60_000)
    public void twoBatchesWithASmallBudgetAndAFrozenWeight() {
        for (boolean frozen : new boolean[] {false, true}) {
            FusedTraining ofDjl =
                    run(
                            TrainerKind.PLAIN,
                            frozen(plain(), 2, frozen),
                            DEFAULT,
                            momentum(),
                            HeadsEqualDjlTest::twoBatches);
            Block small = frozen(fused(head -> head.optFusedMemory(SMALL)), 2, frozen);
            run(TWO, small, DEFAULT, momentum(), HeadsEqualDjlTest::twoBatches).assertSame(ofDjl);
        }
    }

    /** Two batches at half the rate are one of both: with cosines and a margin too. */
    @Test(timeOut = 60_000)
    public void twoBatchesWithAMargin() {
        FusedTraining ofOne =
                withMargin(
                        0.4f,
                        (trainer, manager, step) ->
                                2
                                        * TrainingRun.backward(
                                                trainer,
                                                both(data(manager, step), data(manager, 9 + step)),
                                                both(
                                                        labels(manager, step),
                                                        labels(manager, 9 + step))));
        withMargin(0.2f, HeadsEqualDjlTest::twoBatches).assertSame(ofOne);
    }

    private static FusedTraining withMargin(float rate, FusedTraining.Pass pass) {
        Block block = fused(head -> head.optBias(false).optMargin(Margin.arcFace(8, 0.3f)));
        return run(TWO, block, DEFAULT, Configs.sgd(rate), pass);
    }

    private static NDArray both(NDArray a, NDArray b) {
        return NDArrays.concat(new NDList(a, b));
    }

    /** The classes of two batches are others. */
    @Test(timeOut = 60_000)
    public void twoBatchesOfDrawnClassesAreRefused() {
        Block block = fused(head -> head.optSampleShare(0.5f));
        Refusals.expect(
                RuntimeException.class,
                () -> run(TWO, block, DEFAULT, sgd(), HeadsEqualDjlTest::twoBatches),
                "keeps the gradient of one batch");
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

    /** Weights change in step() and not before; zeroed gradients change nothing. */
    @Test(timeOut = 60_000)
    public void weightsChangeInTheStep() {
        for (TrainerKind kind : List.of(ONE, TWO)) {
            FusedTraining.use(
                    kind,
                    fused(),
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
        return ((ParallelTrainer) trainer)
                .getParameterStore(0)
                .getValue(
                        trainer.getModel()
                                .getBlock()
                                .getParameters()
                                .get("03ClassificationHead_weight"),
                        null,
                        true)
                .toFloatArray();
    }

    /** Predictions and their accuracy, in training and in evaluation. */
    @Test(timeOut = 60_000)
    public void evaluates() {
        List<float[]> results = new ArrayList<>();
        for (TrainerKind kind : List.of(TrainerKind.PLAIN, ONE, TWO)) {
            FusedTraining.use(
                    kind,
                    fused(),
                    (trainer, manager) -> results.add(evaluations(trainer, manager)));
        }
        Assert.assertEquals(results.get(1), results.get(0), 1e-6f);
        Assert.assertEquals(results.get(2), results.get(0), 1e-6f);
    }

    private static float[] evaluations(Trainer trainer, NDManager manager) {
        NDList data = list(data(manager, 0));
        NDList labels = list(labels(manager, 0));
        NDList evaluated = trainer.evaluate(data);
        Assert.assertEquals(evaluated.head().getShape().get(1), CLASSES);
        NDArray loss = trainer.getLoss().evaluate(labels, evaluated);
        VocabParallelAccuracy accuracy = new VocabParallelAccuracy(5);
        float seen = right(accuracy, labels, evaluated);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList output = trainer.forward(data, labels);
            Assert.assertEquals(output.head().getShape().get(1), CLASSES);
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
                (trainer, manager) -> {
                    backward(trainer, manager, 0);
                    trainer.step();
                    NDList data = list(data(manager, 1));
                    Block trained = trainer.getModel().getBlock();
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    trained.saveParameters(new DataOutputStream(bytes));
                    trainer.close();
                    Block loaded = sequence(linear(6), tanh(), linear(CLASSES));
                    loaded.loadParameters(
                            manager,
                            new DataInputStream(new ByteArrayInputStream(bytes.toByteArray())));
                    ParameterStore store = new ParameterStore(manager, false);
                    Assert.assertEquals(
                            loaded.forward(store, data, false).head(),
                            trained.forward(store, data, false).head());
                });
    }

    @DataProvider
    public Object[][] withAState() {
        Tracker rate = Tracker.fixed(0.1f);
        Supplier<Optimizer> decays =
                () -> ofRate(rate).optMomentum(0.9f).optWeightDecays(0.1f).build();
        Supplier<Optimizer> adamW = () -> Optimizer.adamW().optLearningRateTracker(rate).build();
        return new Object[][] {{"sgd", decays}, {"adamW", adamW}};
    }

    /**
     * Of two heads a step uses one: the other has a gradient of zero, as in DJL, and its momentum
     * and its weight decay go on.
     */
    @Test(dataProvider = "withAState", timeOut = 60_000)
    public void aHeadThatAStepDoesNotUse(String name, Supplier<Optimizer> optimizer) {
        FusedTraining ofDjl = twoHeads(TrainerKind.PLAIN, optimizer.get());
        for (int ranks = 1; ranks <= 3; ranks++) {
            twoHeads(new TrainerKind(ParallelMode.TENSOR, ranks), optimizer.get())
                    .assertSame(ofDjl);
        }
    }

    private static FusedTraining twoHeads(TrainerKind kind, Optimizer optimizer) {
        String[] used = {"first"};
        Block block =
                new GraphBlock(
                                new Shape(CLASSES),
                                (call, input) -> call.list(used[0], input.head()))
                        .add(
                                "first",
                                ClassificationHead.builder().setUnits(CLASSES).build(),
                                FEATURES)
                        .add(
                                "second",
                                ClassificationHead.builder().setUnits(CLASSES).build(),
                                FEATURES);
        return FusedTraining.run(
                kind,
                block,
                loss(DEFAULT),
                optimizer,
                8,
                (trainer, manager, step) -> {
                    used[0] = step >= 2 && step % 3 != 0 ? "second" : "first";
                    return backward(trainer, manager, step);
                });
    }

    private static final Map<String, Consumer<ClassificationHead.Builder>> HEADS =
            Map.of(
                    "fused", head -> {},
                    "cut",
                            head ->
                                    head.optShardingStrategy(
                                            ShardingStrategy.rowwise(
                                                    Cut.ofLengths(CLASSES - 2, 2))),
                    "sampled", head -> head.optSampleShare(0.5f).optSampleSeed(5),
                    "margin", head -> head.optMargin(Margin.arcFace(8, 0.3f)).optBias(false),
                    "both",
                            head ->
                                    head.optSampleShare(0.4f)
                                            .optMargin(Margin.cosFace(8, 0.2f))
                                            .optBias(false));

    private static final Map<String, Supplier<Optimizer>> OPTIMIZERS =
            Map.of(
                    "sgd", FusedTraining::sgd,
                    "adam", () -> Configs.adam(0.01f),
                    "adagrad",
                            () ->
                                    RowwiseAdagrad.builder()
                                            .optLearningRateTracker(Tracker.fixed(0.05f))
                                            .build());

    @DataProvider
    public Object[][] replicas() {
        TrainerKind two = new TrainerKind(ParallelMode.DATA, 2);
        TrainerKind three = new TrainerKind(ParallelMode.DATA, 3);
        TrainerKind four = TrainerKind.mesh(2, 2);
        TrainerKind six = TrainerKind.mesh(2, 3);
        return new Object[][] {
            {"fused", "sgd", two},
            {"cut", "adam", two},
            {"fused", "adam", three},
            {"fused", "adagrad", three},
            {"sampled", "sgd", three},
            {"sampled", "adam", two},
            {"sampled", "adagrad", three},
            {"margin", "sgd", two},
            {"margin", "adam", three},
            {"both", "adagrad", two},
            {"fused", "sgd", four},
            {"cut", "adagrad", four},
            {"fused", "adam", six},
            {"sampled", "adagrad", four},
            {"sampled", "sgd", TrainerKind.mesh(3, 2)},
            {"margin", "adam", four},
            {"both", "adagrad", six}
        };
    }

    /**
     * Heads of which ranks have replicas, while the rows are cut, are trained as on one rank: with
     * batches that no number of ranks divides, and such as leave ranks without a row.
     */
    @Test(dataProvider = "replicas", timeOut = 60_000)
    public void headsOfReplicas(String head, String optimizer, TrainerKind kind) {
        List<float[]> ofOneRank = train(ONE, head, optimizer);
        ArrayAssert.assertAllClose(train(kind, head, optimizer), ofOneRank, 1e-5, "result");
    }

    /** Trains, and returns logits, the weights, and the losses and accuracies of all steps. */
    private static List<float[]> train(TrainerKind kind, String head, String optimizer) {
        int[] rows = {8, 7, 2, 1, 5};
        Block block = fused(HEADS.get(head));
        float[] numbers = new float[3 * rows.length];
        List<float[]> results = new ArrayList<>();
        FusedTraining.use(
                kind,
                block,
                loss(DEFAULT),
                OPTIMIZERS.get(optimizer).get(),
                (trainer, manager) -> {
                    for (int i = 0; i < rows.length; i++) {
                        NDList data = list(TrainingRun.random(manager, i, rows[i], FEATURES));
                        NDList labels =
                                list(TrainingRun.labels(manager, 100 + i, rows[i], CLASSES));
                        numbers[3 * i] = TrainingRun.backward(trainer, data, labels);
                        trainer.step();
                        NDList output = trainer.evaluate(data);
                        numbers[3 * i + 1] = trainer.getLoss().evaluate(labels, output).getFloat();
                        Evaluator accuracy = new VocabParallelAccuracy();
                        accuracy.addAccumulator("key");
                        accuracy.updateAccumulator("key", labels, output);
                        numbers[3 * i + 2] = accuracy.getAccumulator("key");
                        results.add(output.head().toFloatArray());
                    }
                    trainer.close(); // hands the weights back
                    results.addAll(TrainingRun.weights(block));
                });
        results.add(numbers);
        return results;
    }
}

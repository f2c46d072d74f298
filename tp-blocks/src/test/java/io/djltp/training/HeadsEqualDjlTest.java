package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.note;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;
import static io.djltp.training.FusedTraining.CLASSES;
import static io.djltp.training.FusedTraining.DEFAULT;
import static io.djltp.training.FusedTraining.FEATURES;
import static io.djltp.training.FusedTraining.ROWS;
import static io.djltp.training.FusedTraining.adagrad;
import static io.djltp.training.FusedTraining.assertSame;
import static io.djltp.training.FusedTraining.backward;
import static io.djltp.training.FusedTraining.data;
import static io.djltp.training.FusedTraining.fused;
import static io.djltp.training.FusedTraining.labels;
import static io.djltp.training.FusedTraining.loss;
import static io.djltp.training.FusedTraining.plain;
import static io.djltp.training.FusedTraining.sgd;
import static io.djltp.training.FusedTraining.use;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.optimizer.Sgd;
import ai.djl.training.tracker.Tracker;

import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.head.Reduction;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.nn.ClassificationHead;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
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

    private static final long SMALL = 12 * 4 * ROWS; // hardly any memory for logits

    // most rows are ignored or weigh little: some ranks have none that counts
    private static final LossOptions WEIGHTED =
            new LossOptions(3, 0, 0.05f).withClassWeights(weights());
    private static final LossOptions SMOOTHED_AND_WEIGHTED =
            new LossOptions(3, 0.2f, 0.05f).withClassWeights(weights());
    private static final LossOptions IGNORING = new LossOptions(3, 0.2f, 0.05f);
    private static final LossOptions FEW = new LossOptions(3, 0.1f, 0.01f);

    private static final Margin MARGIN = Margin.combined(8, 1.1f, 0.3f, 0.1f);
    private static final float ALL = 0.99f; // so large a share that all classes are drawn
    private static final Map<String, Case> CASES = new LinkedHashMap<>();
    private final Map<Case, TrainingRun> ofDjl = new HashMap<>();

    /** A training under DJL's trainer and the same on ranks. */
    private static final class Case {
        private Supplier<Block> djl = FusedTraining::plain;
        private Supplier<Block> own = FusedTraining::fused;
        private Loss djlLoss = loss(DEFAULT);
        private Loss ownLoss = loss(DEFAULT);
        private Supplier<Optimizer> optimizer = FusedTraining::sgd;
        private FusedTraining.Pass pass = FusedTraining::backward;
        private List<TrainerKind> kinds = TrainerKind.all(1, 2, 3, 4);

        Case of(Supplier<Block> ofDjl, Supplier<Block> ofRanks) {
            djl = ofDjl;
            own = ofRanks;
            return this;
        }

        Case with(LossOptions options) {
            djlLoss = loss(options);
            ownLoss = djlLoss;
            return this;
        }

        Case by(Supplier<Optimizer> rule) {
            optimizer = rule;
            return this;
        }

        Case in(FusedTraining.Pass work) {
            pass = work;
            return this;
        }

        Case on(TrainerKind... some) {
            kinds = List.of(some);
            return this;
        }
    }

    private static Case add(String name) {
        Case added = new Case();
        CASES.put(name, added);
        return added;
    }

    static {
        LossOptions sum = new LossOptions(-100, 0, 0).withReduction(Reduction.SUM);
        LossOptions all = new LossOptions(3, 0.2f, 0).withClassWeights(weights());
        addLoss("default", DEFAULT, true);
        addLoss("smoothed", new LossOptions(-100, 0.1f, 0), true);
        addLoss("smoothed, ignoring", IGNORING, true);
        addLoss("weighted", WEIGHTED, true);
        addLoss("focused", IGNORING.withFocusing(2), true);
        addLoss("focused and weighted", WEIGHTED.withFocusing(0.5f), true);
        addLoss("sum", sum, true);
        addLoss("smoothed, weighted", SMOOTHED_AND_WEIGHTED, false);
        addLoss("smoothed, weighted sum", all.withReduction(Reduction.SUM), false);
        List<Supplier<Optimizer>> rules = optimizers();
        for (int i = 0; i < rules.size(); i++) {
            add("optimizer " + i).by(rules.get(i)).on(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4);
            add("all classes drawn, optimizer " + i)
                    .of(FusedTraining::plain, () -> fused(head -> head.optSampleShare(ALL)))
                    .with(FEW)
                    .by(rules.get(i))
                    .on(TENSOR_3);
        }
        // the loss has a gradient all the same, of the head alone
        add("a frozen body").of(() -> frozen(plain(), 0), () -> frozen(fused(), 0));
        // frozen weights stay as they are, and what comes before them learns all the same
        add("a frozen head").of(() -> frozen(plain(), 2), () -> frozen(fused(), 2)).on(TENSOR_2);
        // most is computed twice
        add("hardly any memory").of(FusedTraining::plain, HeadsEqualDjlTest::small).on(TENSOR_2);
        add("two batches, hardly any memory")
                .of(FusedTraining::plain, HeadsEqualDjlTest::small)
                .by(HeadsEqualDjlTest::momentum)
                .in(HeadsEqualDjlTest::twoBatches)
                .on(TENSOR_2);
        add("two batches, hardly any memory, and a frozen weight whose bias learns")
                .of(() -> frozen(plain(), 2), () -> frozen(small(), 2))
                .by(HeadsEqualDjlTest::momentum)
                .in(HeadsEqualDjlTest::twoBatches)
                .on(TENSOR_2);
        for (float share : new float[] {1, ALL}) {
            Case margin = add("margin, share " + share).of(() -> margin(1), () -> margin(share));
            margin.djlLoss = new MarginLoss();
            margin.on(TENSOR_1, TENSOR_2, TENSOR_4, MIXED_3, DATA_1);
        }
        addPass("one to three batches in a step", HeadsEqualDjlTest::batches);
        addPass("what comes between the batches", HeadsEqualDjlTest::between);
    }

    private static void addLoss(String name, LossOptions options, boolean canBeFused) {
        add("plain, " + name).of(FusedTraining::plain, FusedTraining::plain).with(options);
        if (canBeFused) {
            add("fused, " + name).with(options);
        }
    }

    private static void addPass(String name, FusedTraining.Pass pass) {
        add(name + ", sgd").in(pass);
        add(name + ", momentum").in(pass).with(IGNORING).by(HeadsEqualDjlTest::momentum);
        add(name + ", adam").in(pass).by(() -> Configs.adam(0.02f));
    }

    @DataProvider
    public Object[][] cases() {
        return CASES.entrySet().stream()
                .flatMap(e -> e.getValue().kinds.stream().map(k -> new Object[] {e.getKey(), k}))
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void isEqual(String name, TrainerKind kind) {
        Case each = CASES.get(name);
        TrainingRun expected =
                ofDjl.computeIfAbsent(each, key -> run(PLAIN, each.djl.get(), each.djlLoss, each));
        assertSame(run(kind, each.own.get(), each.ownLoss, each), expected);
    }

    private static TrainingRun run(TrainerKind kind, Block block, Loss loss, Case each) {
        return FusedTraining.run(kind, block, loss, each.optimizer.get(), 5, each.pass);
    }

    private static float[] weights() {
        float[] weights = new float[CLASSES];
        for (int i = 0; i < weights.length; i++) {
            weights[i] = i % 3 * 0.1f; // a third is 0
        }
        return weights;
    }

    private static List<Supplier<Optimizer>> optimizers() {
        Tracker rate =
                Tracker.warmUp().optWarmUpSteps(3).setMainTracker(Tracker.fixed(0.1f)).build();
        Supplier<Sgd.Builder> sgd = () -> Optimizer.sgd().setLearningRateTracker(rate);
        return List.of(
                () -> sgd.get().build(),
                () -> sgd.get().optWeightDecays(0.1f).build(),
                () ->
                        sgd.get()
                                .optWeightDecays(0.1f)
                                .setRescaleGrad(0.5f)
                                .optClipGrad(0.01f)
                                .build(),
                () -> sgd.get().optMomentum(0.9f).optWeightDecays(0.1f).build(),
                () -> sgd.get().optMomentum(0.9f).setRescaleGrad(2).optClipGrad(0.01f).build(),
                // of the gradients only what is negative
                () -> sgd.get().optClipGrad(0).build(),
                () -> sgd.get().optMomentum(0.9f).optClipGrad(0).build(),
                () -> Optimizer.adam().optLearningRateTracker(rate).build(),
                () -> Optimizer.adam().optLearningRateTracker(rate).optWeightDecays(0.1f).build(),
                () -> Optimizer.adamW().optLearningRateTracker(rate).optWeightDecays(0.1f).build(),
                () -> rowwise(rate).build(),
                () -> rowwise(rate).optWeightDecays(0.1f).build());
    }

    private static RowwiseAdagrad.Builder rowwise(Tracker rate) {
        return RowwiseAdagrad.builder().optLearningRateTracker(rate);
    }

    private static Optimizer momentum() {
        return Optimizer.sgd()
                .setLearningRateTracker(Tracker.fixed(0.2f))
                .optMomentum(0.9f)
                .optClipGrad(0.02f) // of the sum, not of the summands
                .build();
    }

    private static Block small() {
        return fused(head -> head.optFusedMemory(SMALL));
    }

    private static Block margin(float share) {
        return fused(head -> head.optMargin(MARGIN).optBias(false).optSampleShare(share));
    }

    private static Block frozen(Block network, int layer) {
        Block frozen = network.getChildren().valueAt(layer);
        frozen.freezeParameters(true, p -> layer == 0 || "weight".equals(p.getName()));
        return network;
    }

    private static float twoBatches(Trainer trainer, NDManager manager, int step) {
        return backward(trainer, manager, step) + backward(trainer, manager, 9 + step);
    }

    private static float batches(Trainer trainer, NDManager manager, int step) {
        float losses = 0;
        for (int batch = 0; batch <= (step + 1) % 3; batch++) {
            losses += backward(trainer, manager, 5 * step + batch);
        }
        return losses;
    }

    /** Losses of which nothing is wanted, evaluations, and gradients that are forgotten. */
    private static float between(Trainer trainer, NDManager manager, int step) {
        float value = backward(trainer, manager, step);
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList data = data(manager, 50);
            NDList labels = labels(manager, 50);
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
    }

    /** Under DJL's trainer the layer's output is scaled cosines, and this loss adds the margin. */
    private static final class MarginLoss extends Loss {

        MarginLoss() {
            super("margin");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray logits = predictions.singletonOrThrow();
            NDManager manager = logits.getManager();
            NDArray scale = manager.create(MARGIN.scale());
            NDArray cosines = logits.div(scale);
            NDArray angles = cosines.acos().mul(manager.create(MARGIN.m1()));
            angles = angles.add(manager.create(MARGIN.m2()));
            NDArray beyond = angles.cos().neg().sub(manager.create(2f));
            NDArray moved = NDArrays.where(angles.gt(Math.PI), beyond, angles.cos());
            NDArray raised = moved.sub(manager.create(MARGIN.m3())).mul(scale);
            NDArray own = labels.head().oneHot(CLASSES).toType(DataType.BOOLEAN, true);
            NDList all = new NDList(NDArrays.where(own, raised, logits));
            return Loss.softmaxCrossEntropyLoss().evaluate(labels, all);
        }
    }

    /** In evaluations, the losses of all rows; their weighted mean is the loss. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void lossesOfRows(TrainerKind kind) {
        float[] expected = lossesOfRows(PLAIN, plain());
        assertClose(lossesOfRows(kind, plain()), expected, 1e-5, "losses of rows");
        assertClose(lossesOfRows(kind, fused()), expected, 1e-5, "of a fused head");
    }

    private static float[] lossesOfRows(TrainerKind kind, Block block) {
        float[][] found = new float[1][];
        FusedTraining.Use use =
                (trainer, manager) -> {
                    NDList output = trainer.evaluate(data(manager, 0));
                    NDArray losses = trainer.getLoss().evaluate(labels(manager, 0), output);
                    assertEquals(losses.getShape(), new Shape(8));
                    found[0] = losses.toFloatArray();
                };
        use(kind, block, loss(WEIGHTED.withReduction(Reduction.NONE)), sgd(), use);
        return found[0];
    }

    /** DJL's trainer goes backward from ones: what ranks refuse is the sum there. */
    @Test(timeOut = 60_000)
    public void lossesOfRowsTrainOnTheirSumByDjl() {
        List<TrainingRun> runs = new ArrayList<>();
        for (Reduction reduction : List.of(Reduction.NONE, Reduction.SUM)) {
            FusedTraining.Pass pass =
                    (trainer, manager, step) -> {
                        NDList labels = labels(manager, 0);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(data(manager, 0), labels);
                            collector.backward(trainer.getLoss().evaluate(labels, output));
                        }
                        return 0;
                    };
            Loss loss = loss(DEFAULT.withReduction(reduction));
            runs.add(FusedTraining.run(PLAIN, plain(), loss, sgd(), 1, pass));
        }
        runs.get(0).assertSame(runs.get(1), 1e-6);
    }

    /** Two batches at half the rate are one of both: with cosines and a margin too. */
    @Test(timeOut = 60_000)
    public void twoBatchesWithAMargin() {
        TrainingRun ofOne =
                withMargin(
                        0.4f,
                        (trainer, manager, step) -> {
                            NDList x = both(data(manager, step), data(manager, 9 + step));
                            NDList y = both(labels(manager, step), labels(manager, 9 + step));
                            return 2 * TrainingRun.backward(trainer, x, y);
                        });
        assertSame(withMargin(0.2f, HeadsEqualDjlTest::twoBatches), ofOne);
    }

    private static TrainingRun withMargin(float rate, FusedTraining.Pass pass) {
        Block block = fused(head -> head.optBias(false).optMargin(Margin.arcFace(8, 0.3f)));
        return FusedTraining.run(TENSOR_2, block, loss(DEFAULT), Configs.sgd(rate), 3, pass);
    }

    private static NDList both(NDList a, NDList b) {
        return new NDList(NDArrays.concat(new NDList(a.head(), b.head())));
    }

    @DataProvider
    public Object[][] withAState() {
        Supplier<Optimizer> decays =
                () ->
                        Optimizer.sgd()
                                .setLearningRateTracker(Tracker.fixed(0.1f))
                                .optMomentum(0.9f)
                                .optWeightDecays(0.1f)
                                .build();
        Supplier<Optimizer> adamW =
                () -> Optimizer.adamW().optLearningRateTracker(Tracker.fixed(0.1f)).build();
        return new Object[][] {{"sgd", decays}, {"adamW", adamW}};
    }

    /**
     * Of two heads a step uses one: the other has a gradient of zero, as in DJL, and its momentum
     * and its weight decay go on.
     */
    @Test(dataProvider = "withAState", timeOut = 60_000)
    public void aHeadThatAStepDoesNotUse(String name, Supplier<Optimizer> optimizer) {
        TrainingRun expected = twoHeads(PLAIN, optimizer.get());
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2, TENSOR_3)) {
            assertSame(twoHeads(kind, optimizer.get()), expected);
        }
    }

    private static TrainingRun twoHeads(TrainerKind kind, Optimizer optimizer) {
        String[] used = {"first"};
        GraphBlock block =
                new GraphBlock(
                        new Shape(CLASSES), (call, input) -> call.list(used[0], input.head()));
        for (String name : List.of("first", "second")) {
            block.add(name, ClassificationHead.builder().setUnits(CLASSES).build(), FEATURES);
        }
        FusedTraining.Pass pass =
                (trainer, manager, step) -> {
                    used[0] = step >= 2 && step % 3 != 0 ? "second" : "first";
                    return backward(trainer, manager, step);
                };
        return FusedTraining.run(kind, block, loss(DEFAULT), optimizer, 8, pass);
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
                    "adagrad", () -> adagrad(0.05f));

    @DataProvider
    public Object[][] replicas() {
        return new Object[][] {
            {"fused", "sgd", DATA_2},
            {"cut", "adam", DATA_2},
            {"fused", "adam", DATA_3},
            {"fused", "adagrad", DATA_3},
            {"sampled", "sgd", DATA_3},
            {"sampled", "adam", DATA_2},
            {"sampled", "adagrad", DATA_3},
            {"margin", "sgd", DATA_2},
            {"margin", "adam", DATA_3},
            {"both", "adagrad", DATA_2},
            {"fused", "sgd", MESH_2X2},
            {"cut", "adagrad", MESH_2X2},
            {"fused", "adam", MESH_2X3},
            {"sampled", "adagrad", MESH_2X2},
            {"sampled", "sgd", MESH_3X2},
            {"margin", "adam", MESH_2X2},
            {"both", "adagrad", MESH_2X3}
        };
    }

    /**
     * Heads of which ranks have replicas, while the rows are cut, are trained as on one rank: with
     * batches that no number of ranks divides, and such as leave ranks without a row.
     */
    @Test(dataProvider = "replicas", timeOut = 60_000)
    public void headsOfReplicas(String head, String optimizer, TrainerKind kind) {
        assertSame(train(kind, head, optimizer), train(TENSOR_1, head, optimizer));
    }

    /** Notes the losses and accuracies of all steps, and logits. */
    private static TrainingRun train(TrainerKind kind, String head, String optimizer) {
        return TrainingRun.of(
                kind,
                fused(HEADS.get(head)),
                Configs.of(loss(DEFAULT), OPTIMIZERS.get(optimizer).get()),
                new Shape(ROWS, FEATURES),
                (trainer, manager, numbers) -> {
                    int step = 0;
                    for (int rows : new int[] {8, 7, 2, 1, 5}) {
                        NDList data = new NDList(random(manager, step, rows, FEATURES));
                        NDList labels =
                                new NDList(
                                        TrainingRun.labels(manager, 100 + step++, rows, CLASSES));
                        numbers.add(step(trainer, data, labels));
                        NDList output = trainer.evaluate(data);
                        numbers.add(trainer.getLoss().evaluate(labels, output).getFloat());
                        Evaluator accuracy = new VocabParallelAccuracy();
                        accuracy.addAccumulator("key");
                        accuracy.updateAccumulator("key", labels, output);
                        numbers.add(accuracy.getAccumulator("key"));
                        note(numbers, output.head());
                    }
                });
    }
}

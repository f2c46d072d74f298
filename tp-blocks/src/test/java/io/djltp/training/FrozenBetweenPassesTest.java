package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListener.BatchData;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.Recompute;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.testing.Configs;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;

/**
 * Parameters that are frozen and thawed between the forward pass, the backward pass and the step. A
 * parameter gets a gradient if it is trained in both passes, and a step uses the gradients of what
 * is not frozen: those of others wait. So it is under DJL's trainer, which everything is compared
 * with.
 */
public class FrozenBetweenPassesTest {

    private static final int ROWS = 7; // uneven over 2 and 3 ranks
    private static final int FEATURES = 4;
    private static final int CLASSES = 11;
    private static final int VOCABULARY = 13;
    private static final int STEPS = 6;
    private static final int WALKS = 4;
    private static final float RATE = 0.1f;

    private static final List<TrainerKind> KINDS =
            List.of(TENSOR_1, TENSOR_2, TENSOR_3, DATA_2, MIXED_2, MESH_2X2);

    private final Map<List<Object>, Result> ofDjl = new HashMap<>();

    /** What training has shown. */
    private record Result(List<Float> losses, List<float[]> weights) {

        void assertSame(Result expected, double tolerance, String what) {
            assertEquals(losses.size(), expected.losses.size(), what);
            for (int i = 0; i < losses.size(); i++) {
                assertEquals(
                        losses.get(i),
                        expected.losses.get(i),
                        tolerance * Math.abs(expected.losses.get(i)),
                        what + ", loss " + i);
            }
            assertAllClose(weights, expected.weights, tolerance, what + ", parameter");
        }
    }

    /** Networks whose {@link #trained} parameter always has a gradient. */
    private enum Net {
        FUSED(1),
        UNFUSED(1),
        COLUMNS(1),
        TIED(2),
        BAG(2);

        private final int trained; // the number of the parameter

        Net(int trained) {
            this.trained = trained;
        }

        Block block() {
            ClassificationHead.Builder head =
                    ClassificationHead.builder().setUnits(CLASSES).optBatchShardedInput(true);
            switch (this) {
                case FUSED:
                    return sequence(linear(6), tanh(), head.build());
                case UNFUSED:
                    return sequence(linear(6), tanh(), head.optFusedLoss(false).build());
                case COLUMNS:
                    return sequence(linear(6), tanh(), head(CLASSES));
                case TIED:
                    VocabParallelEmbedding embedding =
                            VocabParallelEmbedding.builder()
                                    .setVocabularySize(VOCABULARY)
                                    .setEmbeddingSize(6)
                                    .build();
                    return sequence(
                            embedding,
                            linear(6),
                            tanh(),
                            ClassificationHead.builder()
                                    .setUnits(VOCABULARY)
                                    .optTiedWeight(embedding)
                                    .optBatchShardedInput(true)
                                    .build());
                default:
                    return sequence(
                            new EmbeddingBag(VOCABULARY, 6), linear(6), tanh(), head.build());
            }
        }

        private boolean isOfIds() {
            return this == TIED || this == BAG;
        }

        Batches batches() {
            return (manager, step) -> {
                NDArray ids = labels(manager, 900 + step, ROWS * 3, VOCABULARY).reshape(ROWS, 3);
                NDArray data = isOfIds() ? ids : random(manager, step, ROWS, FEATURES);
                NDArray labels =
                        this == TIED
                                ? labels(manager, 50 + step, ROWS * 3, VOCABULARY).reshape(ROWS, 3)
                                : labels(manager, 50 + step, ROWS, CLASSES);
                return new NDList[] {new NDList(data), new NDList(labels)};
            };
        }

        /** Adam counts from a step at which it does not matter which parameter DJL takes first. */
        Optimizer optimizer(boolean adam) {
            Tracker rate = Tracker.fixed(adam ? RATE / 10 : RATE);
            return adam
                    ? Optimizer.adam()
                            .optLearningRateTracker(rate)
                            .optBeginNumUpdate(1_000_000)
                            .build()
                    : Optimizer.sgd()
                            .setLearningRateTracker(rate)
                            .optMomentum(this == BAG ? 0 : 0.5f) // else the table is no sparse one
                            .build();
        }
    }

    @DataProvider
    public Object[][] networks() {
        List<Object[]> cases = new ArrayList<>();
        for (Net net : Net.values()) {
            for (boolean adam : new boolean[] {false, true}) {
                KINDS.forEach(kind -> cases.add(new Object[] {net, adam, kind}));
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /** Steps of one or two batches; at every place something may be frozen or thawed. */
    @Test(dataProvider = "networks", timeOut = 60_000)
    public void inALoop(Net net, boolean adam, TrainerKind kind) {
        for (int i = 0; i < WALKS; i++) {
            int seed = i;
            Result expected =
                    ofDjl.computeIfAbsent(
                            List.of("loop", net, adam, seed),
                            key -> walk(net, net.optimizer(adam), PLAIN, seed));
            walk(net, net.optimizer(adam), kind, seed)
                    .assertSame(expected, adam ? 1e-4 : 1e-5, kind + ", walk " + seed);
        }
    }

    private static Result walk(Net net, Optimizer optimizer, TrainerKind kind, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        return train(
                net.block(),
                optimizer,
                kind,
                new TrainingListenerAdapter() {},
                net.batches(),
                (trainer, manager, losses) -> {
                    for (int step = 0; step < STEPS; step++) {
                        int passes = 1 + random.nextInt(2);
                        for (int pass = 0; pass < passes; pass++) {
                            change(trainer, random, net.trained);
                            NDList[] batch = net.batches().make(manager, 10 * step + pass);
                            losses.add(backward(trainer, batch, random, net.trained));
                        }
                        change(trainer, random, net.trained);
                        trainer.step();
                    }
                    NDList[] batch = net.batches().make(manager, 0);
                    NDList output = trainer.evaluate(batch[0]);
                    losses.add(trainer.getLoss().evaluate(batch[1], output).getFloat());
                });
    }

    private static float backward(
            Trainer trainer, NDList[] batch, SplittableRandom random, int trained) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            boolean early = random.nextBoolean(); // ranks compute the loss in the forward pass
            NDList output = early ? trainer.forward(batch[0], batch[1]) : trainer.forward(batch[0]);
            change(trainer, random, trained);
            NDArray loss = trainer.getLoss().evaluate(batch[1], output);
            if (random.nextInt(4) == 0) {
                collector.zeroGradients();
            }
            change(trainer, random, trained);
            collector.backward(loss);
            return loss.getFloat();
        }
    }

    /** Freezes or thaws some parameters, but one. */
    private static void change(Trainer trainer, SplittableRandom random, int trained) {
        List<Parameter> all = trainer.getModel().getBlock().getParameters().values();
        for (int i = 0; i < all.size(); i++) {
            if (random.nextInt(4) == 0 && i != trained && all.get(i) != all.get(trained)) {
                all.get(i).freeze(all.get(i).requiresGradient());
            }
        }
    }

    /** DJL tells a listener of a batch between its backward pass and its step. */
    @Test(dataProvider = "networks", timeOut = 60_000)
    public void byAListener(Net net, boolean adam, TrainerKind kind) {
        Result expected =
                ofDjl.computeIfAbsent(
                        List.of("listener", net, adam),
                        key -> fit(net, net.optimizer(adam), PLAIN));
        fit(net, net.optimizer(adam), kind).assertSame(expected, adam ? 1e-4 : 1e-5, "" + kind);
    }

    private static Result fit(Net net, Optimizer optimizer, TrainerKind kind) {
        SplittableRandom random = new SplittableRandom(5);
        TrainingListener listener =
                new TrainingListenerAdapter() {
                    @Override
                    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
                        change(trainer, random, net.trained);
                    }
                };
        return train(
                net.block(),
                optimizer,
                kind,
                listener,
                net.batches(),
                (trainer, manager, losses) -> {
                    NDList data = new NDList();
                    NDList labels = new NDList();
                    for (int i = 0; i < 2 * STEPS; i++) {
                        NDList[] batch = net.batches().make(manager, i);
                        data.add(batch[0].head());
                        labels.add(batch[1].head());
                    }
                    ArrayDataset set =
                            new ArrayDataset.Builder()
                                    .setData(NDArrays.concat(data))
                                    .optLabels(NDArrays.concat(labels))
                                    .setSampling(ROWS, false)
                                    .build();
                    EasyTrain.fit(trainer, 1, set, null);
                });
    }

    /** Something done with a trainer. */
    @FunctionalInterface
    private interface Use {
        void with(Trainer trainer, NDManager manager, List<Float> losses)
                throws IOException, TranslateException;
    }

    private static Result train(
            Block block,
            Optimizer optimizer,
            TrainerKind kind,
            TrainingListener listener,
            Batches batches,
            Use use) {
        Engine.getInstance().setRandomSeed(42);
        Result result = new Result(new ArrayList<>(), new ArrayList<>());
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), optimizer)
                            .addTrainingListeners(listener);
            try (Trainer trainer =
                    kind.open(model, config, batches.make(manager, 0)[0].getShapes())) {
                use.with(trainer, manager, result.losses);
            } catch (IOException | TranslateException e) {
                throw new AssertionError(e);
            }
            result.weights.addAll(weights(block));
        }
        return result;
    }

    /** Trains a network of one batch at a time, and says what must hold in between. */
    private static void use(Block block, TrainerKind kind, Use use) {
        Net net = Net.FUSED;
        train(
                block,
                net.optimizer(false),
                kind,
                new TrainingListenerAdapter() {},
                net.batches(),
                use);
    }

    private static float backward(Trainer trainer, NDManager manager, int step) {
        NDList[] batch = Net.FUSED.batches().make(manager, step);
        return TrainingRun.backward(trainer, batch[0].head(), batch[1].head());
    }

    /** A part that is recomputed has to be the same both times. */
    @Test(timeOut = 60_000)
    public void whatIsRecomputedIsNotFrozenInBetween() {
        Block net = sequence(new Recompute(linear(6)), tanh(), linear(6), Net.COLUMNS.block());
        RuntimeException e =
                expectThrows(
                        RuntimeException.class,
                        () ->
                                use(
                                        net,
                                        TENSOR_2,
                                        (trainer, manager, losses) -> {
                                            NDList[] batch = Net.COLUMNS.batches().make(manager, 0);
                                            Parameter weight = net.getParameters().valueAt(0);
                                            try (GradientCollector collector =
                                                    trainer.newGradientCollector()) {
                                                NDList y = trainer.forward(batch[0], batch[1]);
                                                NDArray loss =
                                                        trainer.getLoss().evaluate(batch[1], y);
                                                weight.freeze(true);
                                                collector.backward(loss);
                                            }
                                        }));
        assertTrue(("" + e).contains("may be frozen or thawed between"), "" + e);
    }

    /** The classes of a step are drawn for it: their gradient does not wait. */
    @Test(timeOut = 60_000)
    public void aHeadThatDrawsClassesForgetsWhatIsFrozen() {
        Block net =
                sequence(
                        linear(6),
                        tanh(),
                        ClassificationHead.builder()
                                .setUnits(CLASSES)
                                .optSampleShare(0.5f)
                                .optBias(false)
                                .build());
        use(
                net,
                TENSOR_2,
                (trainer, manager, losses) -> {
                    Parameter weight = net.getParameters().valueAt(2);
                    ParallelTrainer ranks = (ParallelTrainer) trainer;
                    backward(trainer, manager, 0);
                    weight.freeze(true);
                    float[] before = shard(ranks, weight);
                    trainer.step();
                    backward(trainer, manager, 1); // frozen in both passes
                    weight.freeze(false);
                    trainer.step();
                    assertEquals(shard(ranks, weight), before);
                    backward(trainer, manager, 2);
                    trainer.step();
                    assertNotEquals(shard(ranks, weight), before);
                });
    }

    private static float[] shard(ParallelTrainer trainer, Parameter weight) {
        return trainer.getParameterStore(0).getHeld(weight).toFloatArray();
    }
}

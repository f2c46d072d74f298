package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.EasyTrain;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListener.BatchData;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.Recompute;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
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
    private static final int CLASSES = 11;
    private static final int VOCABULARY = 13;
    private static final int STEPS = 6;
    private static final List<TrainerKind> KINDS =
            List.of(TENSOR_1, TENSOR_2, TENSOR_3, DATA_2, MIXED_2, MESH_2X2);

    private final Map<List<Object>, TrainingRun> ofDjl = new HashMap<>();

    /** Networks whose {@link #trained} parameter always has a gradient. */
    private enum Net {
        FUSED(1, Network.batches("7x4", "7:11")),
        UNFUSED(1, FUSED.batches),
        COLUMNS(1, FUSED.batches),
        TIED(2, Network.batches("7x3:13", "7x3:13")),
        BAG(2, Network.batches("7x3:13", "7:11"));

        private final int trained; // the number of the parameter
        private final Network.Batches batches;

        Net(int trained, Network.Batches batches) {
            this.trained = trained;
            this.batches = batches;
        }

        Block block() {
            ClassificationHead.Builder head =
                    ClassificationHead.builder().setUnits(CLASSES).optBatchShardedInput(true);
            return switch (this) {
                case FUSED -> sequence(linear(6), tanh(), head.build());
                case UNFUSED -> sequence(linear(6), tanh(), head.optFusedLoss(false).build());
                case COLUMNS -> sequence(linear(6), tanh(), head(CLASSES));
                case TIED -> {
                    VocabParallelEmbedding embedding = Blocks.table(VOCABULARY, 6).build();
                    head.setUnits(VOCABULARY).optTiedWeight(embedding);
                    yield sequence(embedding, linear(6), tanh(), head.build());
                }
                case BAG ->
                        sequence(new EmbeddingBag(VOCABULARY, 6), linear(6), tanh(), head.build());
            };
        }

        /** Adam counts from a step at which it does not matter which parameter DJL takes first. */
        Optimizer optimizer(boolean adam) {
            return adam
                    ? Optimizer.adam()
                            .optLearningRateTracker(Tracker.fixed(0.01f))
                            .optBeginNumUpdate(1_000_000)
                            .build()
                    : Configs.sgd(0.1f, this == BAG ? 0 : 0.5f); // else the table is no sparse one
        }
    }

    /** Steps of one or two batches; at every place something may be frozen or thawed. */
    private static TrainingRun walk(Net net, boolean adam, TrainerKind kind, long seed) {
        SplittableRandom random = new SplittableRandom(seed);
        return train(
                net,
                Configs.of(new VocabParallelCrossEntropyLoss(), net.optimizer(adam)),
                kind,
                (trainer, manager, losses) -> {
                    for (int step = 0; step < STEPS; step++) {
                        int passes = 1 + random.nextInt(2);
                        for (int pass = 0; pass < passes; pass++) {
                            change(trainer, random, net.trained);
                            NDList[] batch = net.batches.make(manager, 10 * step + pass);
                            losses.add(backward(trainer, batch, random, net.trained));
                        }
                        change(trainer, random, net.trained);
                        trainer.step();
                    }
                    NDList[] batch = net.batches.make(manager, 0);
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
    private static TrainingRun fit(Net net, boolean adam, TrainerKind kind) {
        SplittableRandom random = new SplittableRandom(5);
        TrainingListener listener =
                new TrainingListenerAdapter() {
                    @Override
                    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
                        change(trainer, random, net.trained);
                    }
                };
        return train(
                net,
                Configs.of(new VocabParallelCrossEntropyLoss(), net.optimizer(adam))
                        .addTrainingListeners(listener),
                kind,
                (trainer, manager, losses) -> {
                    NDList data = new NDList();
                    NDList labels = new NDList();
                    for (int i = 0; i < 2 * STEPS; i++) {
                        NDList[] batch = net.batches.make(manager, i);
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

    private static TrainingRun train(
            Net net, TrainingConfig config, TrainerKind kind, TrainingRun.Loop loop) {
        return TrainingRun.of(kind, net.block(), config, net.batches.shapes(), loop);
    }

    @DataProvider
    public Object[][] networks() {
        return TrainerKind.rows(List.of(Net.values()), List.of(false, true), KINDS);
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void trainsAsDjl(Net net, boolean adam, TrainerKind kind) {
        double tolerance = adam ? 1e-4 : 1e-5;
        for (long seed = 0; seed < 4; seed++) {
            long own = seed;
            TrainingRun expected =
                    ofDjl.computeIfAbsent(
                            List.of(net, adam, own), key -> walk(net, adam, PLAIN, own));
            walk(net, adam, kind, own).assertSame(expected, tolerance);
        }
        TrainingRun expected =
                ofDjl.computeIfAbsent(List.of(net, adam), key -> fit(net, adam, PLAIN));
        fit(net, adam, kind).assertSame(expected, tolerance);
    }

    /** A part that is recomputed has to be the same both times. */
    @Test(timeOut = 60_000)
    public void whatIsRecomputedIsNotFrozenInBetween() {
        Block net = sequence(new Recompute(linear(6)), tanh(), linear(6), Net.COLUMNS.block());
        TrainingRun.of(
                TENSOR_2,
                net,
                new VocabParallelCrossEntropyLoss(),
                Net.COLUMNS.batches.shapes()[0],
                (trainer, manager, losses) -> {
                    NDList[] batch = Net.COLUMNS.batches.make(manager, 0);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList y = trainer.forward(batch[0], batch[1]);
                        NDArray loss = trainer.getLoss().evaluate(batch[1], y);
                        net.getParameters().valueAt(0).freeze(true);
                        expect(
                                RuntimeException.class,
                                () -> collector.backward(loss),
                                "may be frozen or thawed between");
                    }
                });
    }

    /** The classes of a step are drawn for it: their gradient does not wait. */
    @Test(timeOut = 60_000)
    public void aHeadThatDrawsClassesForgetsWhatIsFrozen() {
        ClassificationHead.Builder head = ClassificationHead.builder().setUnits(CLASSES);
        Block net = sequence(linear(6), tanh(), head.optSampleShare(0.5f).optBias(false).build());
        TrainingRun.of(
                TENSOR_2,
                net,
                Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(0.1f, 0.5f)),
                Net.FUSED.batches.shapes(),
                (trainer, manager, losses) -> {
                    Parameter weight = net.getParameters().valueAt(2);
                    float[] before = shard(trainer, weight);
                    for (int i = 0; i < 3; i++) {
                        // frozen between the pass and the step, then in both passes
                        NDList[] batch = Net.FUSED.batches.make(manager, i);
                        TrainingRun.backward(trainer, batch[0], batch[1]);
                        weight.freeze(i == 0);
                        trainer.step();
                        boolean changed = !Arrays.equals(shard(trainer, weight), before);
                        assertEquals(changed, i == 2, "step " + i);
                    }
                });
    }

    private static float[] shard(Trainer trainer, Parameter weight) {
        return ((ParallelTrainer) trainer).getParameterStore(0).getHeld(weight).toFloatArray();
    }
}

package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.outputs;
import static io.djltp.testing.Blocks.parallel;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.loss.IndexLoss;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SimpleCompositeLoss;
import ai.djl.training.tracker.Tracker;

import io.djltp.job.Job;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Batches with fewer rows than there are ranks, such as the last one of an epoch. */
public class FewRowsTest {

    private static final int FEATURES = 5;
    private static final int CLASSES = 9;
    private static final int[] ROWS = {6, 1, 3, 2, 6}; // of the batches of the steps

    private static TrainerKind[] kinds() {
        return new TrainerKind[] {DATA_4, MIXED_4, MIXED_2, MESH_2X2, MESH_3X2};
    }

    @Test(timeOut = 60_000)
    public void classification() {
        for (boolean fused : new boolean[] {false, true}) {
            Network.of(
                            cut -> sequence(linear(6), tanh(), fused ? fused(9) : head(9)),
                            VocabParallelCrossEntropyLoss::new,
                            (manager, step) ->
                                    Network.classification(ROWS[step], FEATURES, CLASSES)
                                            .make(manager, step))
                    .assertEqual(kinds());
        }
    }

    @Test(timeOut = 60_000)
    public void regressionFromASmallBatchOn() {
        Network.of(
                        cut -> sequence(linear(6), tanh(), first(cut, 8), tanh(), row(cut, 3)),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                Network.regression(ROWS[(step + 1) % 5], FEATURES, 3)
                                        .make(manager, step))
                .assertEqual(kinds());
    }

    @Test(timeOut = 60_000)
    public void twoHeads() {
        Network.of(
                        cut -> sequence(linear(6), tanh(), outputs(head(9), fused(9))),
                        () -> {
                            Loss a = new IndexLoss(new VocabParallelCrossEntropyLoss(), 0, 0);
                            Loss b = new IndexLoss(new VocabParallelCrossEntropyLoss(), 1, 1);
                            return new SimpleCompositeLoss().addLoss(a).addLoss(b);
                        },
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(random(manager, step, ROWS[step], 5)),
                                    new NDList(
                                            labels(manager, step, ROWS[step], 9),
                                            labels(manager, 9 + step, ROWS[step], 9))
                                })
                .assertEqual(kinds());
    }

    private static Block mlp() {
        return ParallelMlp.builder().setUnits(6).setHiddenFeatures(7).optBatchSharded(true).build();
    }

    /**
     * Where a layer scatters a sum over the ranks to their rows, what it gives can be joined with
     * what branches off before it, on a rank without a row too.
     */
    @Test(timeOut = 60_000)
    public void branchesAroundAnMlp() {
        Network.of(
                        cut ->
                                sequence(
                                        linear(6),
                                        tanh(),
                                        parallel(linear(3), mlp()),
                                        linear(6),
                                        sum(Blocks.identityBlock(), mlp()),
                                        head(CLASSES)),
                        VocabParallelCrossEntropyLoss::new,
                        (manager, step) ->
                                Network.classification(ROWS[step], 5, CLASSES).make(manager, step))
                .assertEqual(kinds()[1], kinds()[2]);
    }

    /** Several tokens a row. */
    @Test(timeOut = 60_000)
    public void branchesBehindAnEmbedding() {
        Network.of(
                        cut ->
                                sequence(
                                        VocabParallelEmbedding.builder()
                                                .setVocabularySize(11)
                                                .setEmbeddingSize(6)
                                                .build(),
                                        sum(linear(6), mlp()),
                                        head(CLASSES)),
                        VocabParallelCrossEntropyLoss::new,
                        (manager, step) ->
                                new NDList[] {
                                    twoTokens(manager, step, ROWS[step], 11),
                                    twoTokens(manager, 9 + step, ROWS[step], CLASSES)
                                })
                .assertEqual(kinds()[1], kinds()[2]);
    }

    private static NDList twoTokens(NDManager manager, int seed, int rows, int vocabulary) {
        return new NDList(labels(manager, seed, 2 * rows, vocabulary).reshape(rows, 2));
    }

    @DataProvider
    public Object[][] trainers() {
        return new Object[][] {{kinds()[0]}, {kinds()[1]}, {kinds()[4]}};
    }

    @Test(dataProvider = "trainers", timeOut = 60_000)
    public void anIncompleteLastBatchOfEasyTrain(TrainerKind kind) throws Exception {
        List<float[]> expected = fit(PLAIN);
        List<float[]> actual = fit(kind);
        assertAllClose(actual, expected, 1e-5, "parameter");
    }

    private static List<float[]> fit(TrainerKind kind) throws Exception {
        Engine.getInstance().setRandomSeed(3);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Block block = sequence(linear(6), tanh(), head(CLASSES));
            model.setBlock(block);
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(0.1f));
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(random(manager, 1, 13, FEATURES))
                            .optLabels(labels(manager, 2, 13, CLASSES))
                            .setSampling(5, false) // 5, 5 and 3 rows
                            .build();
            try (Trainer trainer = kind.open(model, config, new Shape(5, FEATURES))) {
                EasyTrain.fit(trainer, 2, data, data);
            }
            return weights(block);
        }
    }

    /** Of two processes the second one has no row of a batch of one. */
    @Test(timeOut = 120_000)
    public void aProcessWithoutARow() throws Exception {
        for (boolean fused : new boolean[] {false, true}) {
            List<float[]> expected = process(null, fused);
            for (List<float[]> actual : ThreadedJob.run(4, job -> process(job, fused))) {
                assertAllClose(actual, expected, 1e-5, "fused " + fused);
            }
        }
    }

    /** Returns the shape, loss and accuracy of predictions, the losses of steps, and weights. */
    private static List<float[]> process(Job job, boolean fused) {
        List<float[]> results = new ArrayList<>();
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            Block last = fused ? fused(CLASSES) : head(CLASSES);
            Block block = sequence(linear(6), tanh(), job == null ? linear(CLASSES) : last);
            block.setInitializer( // not the generator, which threads share
                    (m, shape, type) -> random(m, shape.size(), shape.getShape()),
                    parameter -> true);
            model.setBlock(block);
            DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss());
            DeviceMesh mesh = DeviceMesh.of(DeviceMesh.DATA, 2, DeviceMesh.TENSOR, 2);
            try (Trainer trainer =
                    job == null
                            ? model.newTrainer(config)
                            : new ParallelTrainer(
                                    model,
                                    config,
                                    ParallelConfig.builder().setMesh(mesh).optJob(job).build())) {
                trainer.initialize(new Shape(6, FEATURES));
                for (int step = 0; step < ROWS.length; step++) {
                    NDArray data = random(manager, step, ROWS[step], FEATURES);
                    NDArray labels = labels(manager, 9 + step, ROWS[step], CLASSES);
                    NDList predictions = trainer.evaluate(new NDList(data));
                    NDArray right =
                            new VocabParallelAccuracy().evaluate(new NDList(labels), predictions);
                    results.add(new float[] {predictions.head().getShape().get(0)});
                    results.add(right.toType(DataType.FLOAT32, false).toFloatArray());
                    results.add(new float[] {backward(trainer, data, labels)});
                    trainer.step();
                }
            }
            results.addAll(weights(block));
        }
        return results;
    }

    /** The table is updated by the rows that the batch has used. */
    @Test(timeOut = 60_000)
    public void aTableUnderRowwiseAdagrad() {
        List<float[]> expected = trainTable(TENSOR_1);
        for (TrainerKind kind : kinds()) {
            List<float[]> actual = trainTable(kind);
            assertAllClose(actual, expected, 1e-5, "" + kind);
        }
    }

    private static List<float[]> trainTable(TrainerKind kind) {
        Engine.getInstance().setRandomSeed(3);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Block block = sequence(new EmbeddingBag(20, 4), linear(6), tanh(), fused(CLASSES));
            model.setBlock(block);
            DefaultTrainingConfig config =
                    Configs.of(
                            new VocabParallelCrossEntropyLoss(),
                            RowwiseAdagrad.builder()
                                    .optLearningRateTracker(Tracker.fixed(0.1f))
                                    .build());
            try (Trainer trainer = kind.open(model, config, new Shape(6, 3))) {
                for (int step = 0; step < ROWS.length; step++) {
                    NDArray ids = labels(manager, step, ROWS[step] * 3, 20);
                    NDArray labels = labels(manager, 9 + step, ROWS[step], CLASSES);
                    backward(trainer, ids.reshape(-1, 3), labels);
                    trainer.step();
                }
            }
            return weights(block);
        }
    }

    @Test(timeOut = 60_000)
    public void noRowsAtAll() {
        for (TrainerKind kind : kinds()) {
            Network net =
                    Network.of(
                            cut -> sequence(linear(6), tanh(), head(CLASSES)),
                            VocabParallelCrossEntropyLoss::new,
                            Network.classification(0, FEATURES, CLASSES));
            net.assertRefused(kind, "The batch has no rows");
        }
    }
}

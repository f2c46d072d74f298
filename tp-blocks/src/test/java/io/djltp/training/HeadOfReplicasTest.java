package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.nn.ClassificationHead;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Heads of which each rank has a replica, while the rows are cut: they train as on one rank, with
 * batches that no number of ranks divides, and such as leave ranks without a row.
 */
public class HeadOfReplicasTest {

    private static final int[] ROWS = {8, 7, 2, 1, 5};
    private static final TrainerKind ONE = new TrainerKind(ParallelMode.TENSOR, 1);

    private static final Map<String, Consumer<ClassificationHead.Builder>> HEADS =
            Map.of(
                    "fused", head -> {},
                    "cut",
                            head ->
                                    head.optShardingStrategy(
                                            ShardingStrategy.rowwise(
                                                    Cut.ofLengths(FusedTraining.CLASSES - 2, 2))),
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
                    "adam",
                            () ->
                                    Optimizer.adam()
                                            .optLearningRateTracker(Tracker.fixed(0.01f))
                                            .build(),
                    "adagrad",
                            () ->
                                    RowwiseAdagrad.builder()
                                            .optLearningRateTracker(Tracker.fixed(0.05f))
                                            .build());

    @DataProvider
    public Object[][] cases() {
        return new Object[][] {
            {"fused", "sgd", 2},
            {"cut", "adam", 2},
            {"fused", "adam", 3},
            {"fused", "adagrad", 3},
            {"sampled", "sgd", 3},
            {"sampled", "adam", 2},
            {"sampled", "adagrad", 3},
            {"margin", "sgd", 2},
            {"margin", "adam", 3},
            {"both", "adagrad", 2}
        };
    }

    private static Block network(String head) {
        return FusedTraining.network(builder -> HEADS.get(head).accept(builder.optFusedLoss(true)));
    }

    /** Trains, and returns the losses, an accuracy in training and logits, and the weights. */
    private static List<float[]> train(TrainerKind kind, String head, String optimizer) {
        Block block = network(head);
        float[] numbers = new float[3 * ROWS.length];
        List<float[]> results = new ArrayList<>();
        FusedTraining.use(
                kind,
                block,
                FusedTraining.loss(LossOptions.DEFAULT),
                OPTIMIZERS.get(optimizer).get(),
                (trainer, manager) -> {
                    for (int i = 0; i < ROWS.length; i++) {
                        NDArray data =
                                TrainingRun.random(manager, i, ROWS[i], FusedTraining.FEATURES);
                        NDArray labels = labels(manager, i);
                        numbers[3 * i] = TrainingRun.backward(trainer, data, labels);
                        trainer.step();
                        NDList output = trainer.evaluate(new NDList(data));
                        numbers[3 * i + 1] =
                                trainer.getLoss().evaluate(new NDList(labels), output).getFloat();
                        Evaluator accuracy = new VocabParallelAccuracy();
                        accuracy.addAccumulator("key");
                        accuracy.updateAccumulator("key", new NDList(labels), output);
                        numbers[3 * i + 2] = accuracy.getAccumulator("key");
                        results.add(output.head().toFloatArray());
                    }
                    trainer.close(); // hands the weights back
                    results.addAll(TrainingRun.weights(block));
                });
        results.add(numbers);
        return results;
    }

    private static NDArray labels(NDManager manager, int step) {
        return TrainingRun.labels(manager, 100 + step, ROWS[step], FusedTraining.CLASSES);
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void trainAsOnOneRank(String head, String optimizer, int ranks) {
        assertAsOnOneRank(new TrainerKind(ParallelMode.DATA, ranks), head, optimizer);
    }

    @DataProvider
    public Object[][] meshes() {
        return new Object[][] {
            {"fused", "sgd", 2, 2},
            {"cut", "adagrad", 2, 2},
            {"fused", "adam", 2, 3},
            {"sampled", "adagrad", 2, 2},
            {"sampled", "sgd", 3, 2},
            {"margin", "adam", 2, 2},
            {"both", "adagrad", 2, 3}
        };
    }

    @Test(dataProvider = "meshes", timeOut = 60_000)
    public void trainOnAMeshAsOnOneRank(String head, String optimizer, int data, int tensor) {
        assertAsOnOneRank(TrainerKind.mesh(data, tensor), head, optimizer);
    }

    private static void assertAsOnOneRank(TrainerKind kind, String head, String optimizer) {
        List<float[]> expected = train(ONE, head, optimizer);
        List<float[]> actual = train(kind, head, optimizer);
        Assert.assertEquals(actual.size(), expected.size());
        for (int i = 0; i < expected.size(); i++) {
            ArrayAssert.assertClose(actual.get(i), expected.get(i), 1e-5, "result " + i);
        }
    }
}

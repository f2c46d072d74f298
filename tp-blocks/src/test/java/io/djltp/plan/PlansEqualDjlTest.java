package io.djltp.plan;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import ai.djl.nn.transformer.BertBlock;
import ai.djl.nn.transformer.BertPretrainingLoss;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.Network.Batches;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.function.Supplier;
import java.util.stream.Stream;

/**
 * Models that a plan makes parallel are trained as by DJL's own trainer without the plan, their
 * files load where there is no plan, and they become DJL's blocks again: each style given by name,
 * each mode, and other optimizers.
 */
public class PlansEqualDjlTest {
    private static final int CLASSES = PlannedNetworks.CLASSES;
    private static final Batches ROWS = PlannedNetworks.numbers(5, 6);
    private static final Batches SENTENCES = PlannedNetworks.sentences(4);
    static final Plan SIDE_BY_SIDE =
            Plan.builder()
                    .add("*ParallelBlock.Linear", Style.column())
                    .add("02Linear", Style.row())
                    .build();

    @DataProvider
    public static Object[][] models() {
        PlanCase perceptron =
                of(
                                "column and row",
                                PlannedNetworks::perceptron,
                                Plan.builder()
                                        .add("01Linear", Style.column().batchShardedInput())
                                        .add("03Linear", Style.row().batchShardedOutput())
                                        .build(),
                                ROWS)
                        .on(TENSOR_2, DATA_2, MIXED_2, MIXED_3, MESH_2X2);
        Tracker rate = Tracker.fixed(0.01f);
        Plan vocabulary = Plan.of("*Embedding", Style.vocabulary());
        Batches words = PlannedNetworks.wordLists(5);
        Plan head = Plan.of("03Linear", Style.head());
        Plan normed =
                Plan.builder()
                        .add("BatchNorm", Style.batchNorm())
                        .add("04Linear", Style.head())
                        .build();
        Plan layerNormed =
                Plan.builder()
                        .add("01Linear", Style.column().batchShardedInput())
                        .add("LayerNorm", Style.layerNorm())
                        .add("04Linear", Style.row().batchShardedOutput())
                        .build();
        Plan attention = Plan.of("Scaled*", Style.attention());
        Batches sequences = PlannedNetworks.numbers(4, PlannedNetworks.LENGTH, 12);
        Plan gathered = Plan.of("Linear", Style.column().gatherOutput());
        Batches images = PlannedNetworks.numbers(4, 1, 8, 8);
        Plan bert =
                Plan.builder()
                        .add("*Bert*", Style.bert())
                        .add("Linear", Style.row().scatterInput())
                        .build();
        return Stream.of(
                        perceptron,
                        perceptron.with(() -> Configs.adam(0.01f), 1e-4),
                        perceptron.with(
                                () -> Optimizer.adamW().optLearningRateTracker(rate).build(), 1e-4),
                        of("vocabulary()", PlannedNetworks::words, vocabulary, words)
                                .on(TENSOR_2, TENSOR_3, DATA_2, MIXED_2, MESH_2X2),
                        of("head()", PlannedNetworks::perceptron, head, ROWS)
                                .on(TENSOR_2, TENSOR_3, DATA_2, MIXED_2, MIXED_3, MESH_2X2)
                                .with(PlansEqualDjlTest::lossOfHead),
                        of("batchNorm()", PlannedNetworks::normed, normed, ROWS)
                                .on(TENSOR_2, DATA_2, DATA_3, MIXED_2, MESH_2X2)
                                .with(PlansEqualDjlTest::lossOfHead),
                        of("layerNorm()", PlannedNetworks::layerNormed, layerNormed, ROWS)
                                .on(
                                        TENSOR_2, TENSOR_3, TENSOR_4, DATA_2, MIXED_2, MIXED_3,
                                        MESH_2X2),
                        of("shared in branches", PlannedNetworks::branches, Plan.auto(), ROWS)
                                .on(TENSOR_2, TENSOR_3, MESH_2X2),
                        of("a sum", PlansEqualDjlTest::sumOfSlices, SIDE_BY_SIDE, ROWS),
                        of("attention()", PlannedNetworks::attention, attention, sequences)
                                .on(TENSOR_2, TENSOR_3, DATA_2, MESH_2X2),
                        of(
                                        "BERT's heads",
                                        () -> PlannedNetworks.pretraining(false),
                                        Plan.auto(),
                                        PlannedNetworks.maskedSentences(4))
                                .with(parallel -> new BertPretrainingLoss()),
                        of("ResNet", PlannedNetworks::resnet, gathered, images),
                        of("Bert", () -> bert(PlannedNetworks.small()), bert, SENTENCES),
                        of(
                                        "custom",
                                        PlansEqualDjlTest::custom,
                                        PlannedNetworks.residualPlan(),
                                        ROWS)
                                .on(TENSOR_2, TENSOR_3, TENSOR_4, DATA_2, MESH_2X2))
                .map(each -> new Object[] {each})
                .toArray(Object[][]::new);
    }

    private static PlanCase of(String name, Supplier<Block> block, Plan plan, Batches batches) {
        return PlanCase.of(name, block, kind -> plan, batches);
    }

    private static Block sumOfSlices() {
        return PlannedNetworks.sideBySide(NDArray::add);
    }

    private static Block custom() {
        return new PlannedNetworks.Residual(6, CLASSES);
    }

    private static Block bert(BertBlock.Builder builder) {
        return PlannedNetworks.bert(builder, false);
    }

    private static Loss lossOfHead(boolean parallel) {
        return parallel ? new VocabParallelCrossEntropyLoss() : Loss.softmaxCrossEntropyLoss();
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void areTrainedAsByDjl(PlanCase model) {
        model.assertTrainedAsByDjl();
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void keepTheirValuesThereAndBack(PlanCase model)
            throws IOException, MalformedModelException {
        model.assertKeepsItsValuesThereAndBack();
    }

    /**
     * The preset that DJL has, by the plan that needs no names, at a rate at which rounding stays.
     */
    @Test(timeOut = 120_000)
    public void aPresetOfBertIsMadeParallelByItself() {
        PlanCase nano =
                of("BERT nano", () -> bert(BertBlock.builder().nano()), Plan.auto(), SENTENCES)
                        .with(() -> Configs.sgd(0.001f), 1e-5);
        nano.on(TENSOR_3).assertTrainedAsByDjl();
    }

    @Test(timeOut = 60_000)
    public void aSequenceIsMadeParallelByItself() {
        Network.of(
                        cut -> {
                            Block block = sequence(linear(9), tanh(), linear(5), relu(), linear(3));
                            return cut ? TensorParallel.parallelize(block, Plan.auto()) : block;
                        },
                        Loss::l2Loss,
                        Network.regression(4, 6, 3))
                .assertEqual(TENSOR_2, TENSOR_3, MESH_2X2);
    }

    /** DJL draws other masks: what is the same on any number of ranks is that of one. */
    @Test(timeOut = 120_000)
    public void dropoutIsTheSameOnAnyNumberOfRanks() {
        Network dropped =
                of(
                                "dropout",
                                () ->
                                        PlannedNetworks.bert(
                                                PlannedNetworks.small()
                                                        .optHiddenDropoutProbability(0.1f),
                                                true),
                                Plan.of("*Bert*", Style.bert()),
                                SENTENCES)
                        .network();
        TrainingRun one = dropped.train(TENSOR_1);
        dropped.train(TENSOR_2).assertSame(one, 1e-5, "2 ranks");
        dropped.train(TENSOR_3).assertSame(one, 1e-5, "3 ranks");
    }
}

package io.djltp.plan;

import static io.djltp.plan.PlanCase.DATA_2;
import static io.djltp.plan.PlanCase.MIXED_2;
import static io.djltp.plan.PlanCase.MIXED_3;
import static io.djltp.plan.PlanCase.TENSOR_2;
import static io.djltp.plan.PlanCase.TENSOR_3;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.nn.Block;
import ai.djl.nn.transformer.BertPretrainingLoss;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.function.Supplier;
import java.util.stream.Stream;

/** Each style given by name, each mode, and Adam: trained as by DJL, saved, and turned back. */
public class PlannedStylesTest {

    private static final TrainerKind MESH = TrainerKind.mesh(2, 2);
    private static final int CLASSES = PlannedNetworks.CLASSES;

    private static final Plan PERCEPTRON =
            Plan.builder()
                    .add("01Linear", Style.column().batchShardedInput())
                    .add("03Linear", Style.row().batchShardedOutput())
                    .build();

    private static final Plan SIDE_BY_SIDE =
            Plan.builder()
                    .add("*ParallelBlock.Linear", Style.column())
                    .add("02Linear", Style.row())
                    .build();

    private static Supplier<Optimizer> adam(boolean decoupled) {
        Tracker rate = Tracker.fixed(0.01f);
        return () ->
                decoupled
                        ? Optimizer.adamW().optLearningRateTracker(rate).build()
                        : Optimizer.adam().optLearningRateTracker(rate).build();
    }

    @DataProvider
    public static Object[][] styles() {
        PlanCase perceptron =
                PlanCase.of(
                        "column and row",
                        PlannedNetworks::perceptron,
                        PERCEPTRON,
                        Network.classification(5, 6, CLASSES),
                        TENSOR_2,
                        DATA_2,
                        MIXED_2,
                        MIXED_3,
                        MESH);
        return Stream.of(
                        perceptron,
                        perceptron.with(adam(false), 1e-4),
                        perceptron.with(adam(true), 1e-4),
                        PlanCase.of(
                                "vocabulary()",
                                PlannedNetworks::words,
                                Plan.of("*Embedding", Style.vocabulary()),
                                PlannedNetworks.wordLists(5),
                                TENSOR_2,
                                TENSOR_3,
                                DATA_2,
                                MIXED_2,
                                MESH),
                        PlanCase.of(
                                        "head()",
                                        PlannedNetworks::perceptron,
                                        Plan.of("03Linear", Style.head()),
                                        Network.classification(5, 6, CLASSES),
                                        TENSOR_2,
                                        TENSOR_3,
                                        DATA_2,
                                        MIXED_2,
                                        MIXED_3,
                                        MESH)
                                .with(PlannedStylesTest::lossOfHead),
                        PlanCase.of(
                                        "batchNorm()",
                                        PlannedNetworks::normed,
                                        Plan.builder()
                                                .add("BatchNorm", Style.batchNorm())
                                                .add("04Linear", Style.head())
                                                .build(),
                                        Network.classification(5, 6, CLASSES),
                                        TENSOR_2,
                                        DATA_2,
                                        new TrainerKind(ParallelMode.DATA, 3),
                                        MIXED_2,
                                        MESH)
                                .with(PlannedStylesTest::lossOfHead),
                        PlanCase.of(
                                "shared in branches",
                                PlannedNetworks::branches,
                                Plan.auto(),
                                Network.classification(5, 6, CLASSES),
                                TENSOR_2,
                                TENSOR_3,
                                MESH),
                        PlanCase.of(
                                "a sum of slices",
                                () -> PlannedNetworks.sideBySide(NDArray::add),
                                SIDE_BY_SIDE,
                                Network.classification(5, 6, CLASSES),
                                TENSOR_2,
                                TENSOR_3),
                        PlanCase.of(
                                "attention()",
                                PlannedNetworks::attention,
                                Plan.of("Scaled*", Style.attention()),
                                PlannedNetworks.sequences(4),
                                TENSOR_2,
                                TENSOR_3,
                                DATA_2,
                                MESH),
                        PlanCase.of(
                                        "BERT's heads",
                                        () -> PlannedNetworks.pretraining(false),
                                        Plan.auto(),
                                        PlannedNetworks.maskedSentences(4),
                                        TENSOR_2,
                                        TENSOR_3)
                                .with(parallel -> new BertPretrainingLoss()))
                .map(each -> new Object[] {each})
                .toArray(Object[][]::new);
    }

    private static Loss lossOfHead(boolean parallel) {
        return parallel ? new VocabParallelCrossEntropyLoss() : Loss.softmaxCrossEntropyLoss();
    }

    @Test(dataProvider = "styles", timeOut = 120_000)
    public void areTrainedAsByDjl(PlanCase model) {
        model.assertTrainedAsByDjl();
    }

    @Test(dataProvider = "styles", timeOut = 120_000)
    public void keepTheirValuesThereAndBack(PlanCase model)
            throws IOException, MalformedModelException {
        model.assertKeepsItsValuesThereAndBack();
    }

    /** Of slices of both, one after another, a rank's part is none of the whole. */
    @Test(timeOut = 120_000)
    public void slicesThatAFunctionPutsOneAfterAnother() {
        Network.of(
                        cut -> {
                            Block block = PlannedNetworks.sideBySide((x, y) -> x.concat(y, 1));
                            return cut ? TensorParallel.parallelize(block, SIDE_BY_SIDE) : block;
                        },
                        Loss::softmaxCrossEntropyLoss,
                        Network.classification(5, 6, CLASSES))
                .assertRefused(TENSOR_2, "ColumnParallelLinear", "optGatherOutput");
    }

    /** DJL draws other masks: what is the same on any number of ranks is that of one. */
    @Test(timeOut = 120_000)
    public void dropoutIsTheSameOnAnyNumberOfRanks() {
        PlanTraining one = dropped(new TrainerKind(ParallelMode.TENSOR, 1));
        dropped(TENSOR_2).assertSame("2 ranks", one, 1e-5);
        dropped(TENSOR_3).assertSame("3 ranks", one, 1e-5);
    }

    private static PlanTraining dropped(TrainerKind kind) {
        Block block =
                TensorParallel.parallelize(
                        PlannedNetworks.bert(
                                PlannedNetworks.small().optHiddenDropoutProbability(0.1f), true),
                        Plan.of("*Bert*", Style.bert()));
        return PlanTraining.of(kind, block, PlannedNetworks.sentences(4));
    }
}

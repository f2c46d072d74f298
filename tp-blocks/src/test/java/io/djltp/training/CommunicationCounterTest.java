package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.collective.TrafficTable.Traffic;
import io.djltp.internal.rank.CommunicationCounter;
import io.djltp.internal.rank.RankPool;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.DeviceMesh;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.CountedStep;

import org.testng.annotations.Test;

import java.util.List;
import java.util.function.Function;

/**
 * What a step communicates is counted by block and direction. A batch of 6 rows in float32; the
 * bytes are worked out by hand.
 */
public class CommunicationCounterTest {

    private static final int ROWS = 6;

    /** What is counted of a network of 3 features behind a layer of 8. */
    private static TrafficTable count(Loss loss, String mesh, Block... others) {
        Block network = sequence(linear(8), sequence(others).getChildren().values());
        Function<NDManager, NDList> batch =
                manager ->
                        new NDList(
                                manager.randomNormal(new Shape(ROWS, 3)),
                                loss instanceof VocabParallelCrossEntropyLoss
                                        ? manager.arange(ROWS)
                                        : manager.randomNormal(new Shape(ROWS, 10)));
        Optimizer sgd = Configs.sgd(0.01f);
        return CountedStep.run(network, loss, sgd, DeviceMesh.parse(mesh), false, batch).table(0);
    }

    private static Block sequence(Block first, List<Block> others) {
        return Blocks.sequence(first).addAll(others);
    }

    private static Block sequence(Block... blocks) {
        return Blocks.sequence(blocks);
    }

    /** Asserts entries such as "02Linear FORWARD ALL_REDUCE 2 240": ranks and bytes. */
    private static void assertCounted(TrafficTable actual, String... entries) {
        TrafficTable expected = new TrafficTable();
        for (String entry : entries) {
            String[] parts = entry.split(" ");
            int last = parts.length - 1;
            expected.add(
                    String.join(" ", List.of(parts).subList(0, last - 3)),
                    Direction.valueOf(parts[last - 3]),
                    Collective.valueOf(parts[last - 2]),
                    Integer.parseInt(parts[last - 1]),
                    Integer.parseInt(parts[last]));
        }
        if (!actual.equals(expected)) {
            assertEquals(actual.toString(), expected.toString());
        }
    }

    @Test(timeOut = 60_000)
    public void columnsReduceTheGradientOfTheirInput() {
        Block column = ColumnParallelLinear.builder().setUnits(10).optGatherOutput(true).build();
        assertCounted(
                count(Loss.l2Loss(), "1x2", column),
                "02ColumnParallelLinear FORWARD ALL_GATHER 2 " + ROWS * 10 * 4,
                "02ColumnParallelLinear BACKWARD ALL_REDUCE 2 " + ROWS * 8 * 4);
    }

    /** The two layers of each kind are told apart, in hooks too. */
    @Test(timeOut = 60_000)
    public void twoPerceptronsCountEachForItself() {
        TrafficTable counted =
                count(Loss.l2Loss(), "1x3", column(7), relu(), row(5), column(9), row(10));
        assertCounted(
                counted,
                "02ColumnParallelLinear BACKWARD ALL_REDUCE 3 " + ROWS * 8 * 4,
                "04RowParallelLinear FORWARD ALL_REDUCE 3 " + ROWS * 5 * 4,
                "05ColumnParallelLinear BACKWARD ALL_REDUCE 3 " + ROWS * 5 * 4,
                "06RowParallelLinear FORWARD ALL_REDUCE 3 " + ROWS * 10 * 4);
        Traffic row =
                counted.get("06RowParallelLinear", Direction.FORWARD).get(Collective.ALL_REDUCE);
        assertEquals(row, new Traffic(1, 240, 320)); // 2 * 2/3 * 240
        assertEquals(counted.getTotal(Direction.BACKWARD).calls(), 2);
        assertEquals(counted.getTotal().payload(), (8 + 5 + 5 + 10) * ROWS * 4);
    }

    @Test(timeOut = 60_000)
    public void aHeadReducesItsLoss() {
        assertCounted(
                count(
                        new VocabParallelCrossEntropyLoss(),
                        "1x2",
                        ClassificationHead.builder().setUnits(9).build()),
                "02ClassificationHead BACKWARD ALL_REDUCE 2 " + ROWS * 8 * 4,
                "VocabParallelCrossEntropyLoss FORWARD ALL_GATHER 2 " // float64, of each rank:
                        + 2 * ROWS * 3 * 8); // largest logits, sums and labels' logits
    }

    @Test(timeOut = 60_000)
    public void aStepSumsGradientsOverTheData() {
        assertCounted(
                count(Loss.l2Loss(), "3x1", linear(10)),
                "L2Loss FORWARD ALL_REDUCE 3 " + 2 * 4,
                "the gradients of 01Linear_weight, 01Linear_bias, 02Linear_weight, 02Linear_bias"
                        + " STEP ALL_REDUCE 3 "
                        + (8 * 3 + 8 + 10 * 8 + 10) * 4);
    }

    /** Shares of different lengths are counted as the whole. */
    @Test(timeOut = 60_000)
    public void wireBytesAreThoseOfARing() {
        assertEquals(Traffic.of(Collective.ALL_REDUCE, 4, 1000), new Traffic(1, 1000, 1500));
        assertEquals(Traffic.of(Collective.ALL_GATHER, 4, 1000), new Traffic(1, 1000, 750));
        assertEquals(Traffic.of(Collective.REDUCE_SCATTER, 4, 1000), new Traffic(1, 1000, 750));
    }

    @Test(timeOut = 60_000)
    public void aClosedCounterCountsNoMore() {
        try (RankPool ranks = new RankPool(TENSOR_2.config());
                NDManager manager = NDManager.newBaseManager()) {
            CommunicationCounter counter = new CommunicationCounter(ranks);
            for (int i = 0; i < 2; i++) {
                ranks.run(
                        context ->
                                context.getMappings()
                                        .reduceFromRegion(
                                                manager.newSubManager().ones(new Shape(4))));
                assertEquals(counter.getTable(1).getTotal(), new Traffic(1, 16, 16));
                counter.close();
            }
        }
    }
}

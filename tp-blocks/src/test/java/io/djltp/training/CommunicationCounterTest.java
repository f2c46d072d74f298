package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.collective.Collective;
import io.djltp.collective.Direction;
import io.djltp.collective.Traffic;
import io.djltp.collective.TrafficTable;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.CommunicationCounter;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankPool;
import io.djltp.testing.Configs;
import io.djltp.testing.CountedStep;

import org.testng.annotations.Test;

/**
 * What a step communicates is counted by block and direction. A batch of 6 rows in float32; the
 * bytes are worked out by hand.
 */
public class CommunicationCounterTest {

    private static final int ROWS = 6;

    private static Block body(Block... others) {
        SequentialBlock network = sequence(linear(8));
        for (Block other : others) {
            network.add(other);
        }
        return network;
    }

    private static TrafficTable count(Block network, Loss loss, String mesh, boolean classes) {
        Optimizer sgd = Configs.sgd(0.01f);
        return CountedStep.run(
                        network,
                        loss,
                        sgd,
                        DeviceMesh.parse(mesh),
                        manager -> batch(manager, classes))
                .table(0);
    }

    private static NDList batch(NDManager manager, boolean classes) {
        return new NDList(
                manager.randomNormal(new Shape(ROWS, 3)),
                classes ? manager.arange(ROWS) : manager.randomNormal(new Shape(ROWS, 10)));
    }

    private static TrafficTable table(Object... entries) {
        TrafficTable table = new TrafficTable();
        for (int i = 0; i < entries.length; i += 5) {
            table.add(
                    (String) entries[i],
                    (Direction) entries[i + 1],
                    (Collective) entries[i + 2],
                    (Integer) entries[i + 3],
                    (Integer) entries[i + 4]);
        }
        return table;
    }

    private static void assertSame(TrafficTable actual, TrafficTable expected) {
        if (!actual.equals(expected)) {
            assertEquals(actual.toString(), expected.toString());
        }
    }

    @Test(timeOut = 60_000)
    public void columnsReduceTheGradientOfTheirInput() {
        Block column = ColumnParallelLinear.builder().setUnits(10).optGatherOutput(true).build();
        assertSame(
                count(body(column), Loss.l2Loss(), "1x2", false),
                table(
                        "02ColumnParallelLinear",
                        Direction.FORWARD,
                        Collective.ALL_GATHER,
                        2,
                        ROWS * 10 * 4,
                        "02ColumnParallelLinear",
                        Direction.BACKWARD,
                        Collective.ALL_REDUCE,
                        2,
                        ROWS * 8 * 4));
    }

    /** The two layers of each kind are told apart, in hooks too. */
    @Test(timeOut = 60_000)
    public void twoPerceptronsCountEachForItself() {
        Block network = body(column(7), Activation.reluBlock(), row(5), column(9), row(10));
        TrafficTable counted = count(network, Loss.l2Loss(), "1x3", false);
        assertSame(
                counted,
                table(
                        "02ColumnParallelLinear",
                        Direction.BACKWARD,
                        Collective.ALL_REDUCE,
                        3,
                        ROWS * 8 * 4,
                        "04RowParallelLinear",
                        Direction.FORWARD,
                        Collective.ALL_REDUCE,
                        3,
                        ROWS * 5 * 4,
                        "05ColumnParallelLinear",
                        Direction.BACKWARD,
                        Collective.ALL_REDUCE,
                        3,
                        ROWS * 5 * 4,
                        "06RowParallelLinear",
                        Direction.FORWARD,
                        Collective.ALL_REDUCE,
                        3,
                        ROWS * 10 * 4));
        Traffic row =
                counted.get("06RowParallelLinear", Direction.FORWARD).get(Collective.ALL_REDUCE);
        assertEquals(row, new Traffic(1, 240, 320)); // 2 * 2/3 * 240
        assertEquals(counted.getTotal(Direction.BACKWARD).calls(), 2);
        assertEquals(counted.getTotal().payload(), (8 + 5 + 5 + 10) * ROWS * 4);
    }

    @Test(timeOut = 60_000)
    public void aHeadReducesItsLoss() {
        Block head = ClassificationHead.builder().setUnits(9).build();
        assertSame(
                count(body(head), new VocabParallelCrossEntropyLoss(), "1x2", true),
                table(
                        "02ClassificationHead",
                        Direction.BACKWARD,
                        Collective.ALL_REDUCE,
                        2,
                        ROWS * 8 * 4,
                        "VocabParallelCrossEntropyLoss",
                        Direction.FORWARD,
                        Collective.ALL_REDUCE,
                        2,
                        ROWS * 4, // the largest logits
                        "VocabParallelCrossEntropyLoss",
                        Direction.FORWARD,
                        Collective.ALL_REDUCE,
                        2,
                        ROWS * 2 * 8)); // the sums and the labels' logits, in float64
    }

    @Test(timeOut = 60_000)
    public void aStepSumsGradientsOverTheData() {
        Block row = linear(10);
        assertSame(
                count(body(row), Loss.l2Loss(), "3x1", false),
                table(
                        "L2Loss",
                        Direction.FORWARD,
                        Collective.ALL_REDUCE,
                        3,
                        2 * 4,
                        "the gradients of 01Linear_weight, 01Linear_bias, 02Linear_weight,"
                                + " 02Linear_bias",
                        Direction.STEP,
                        Collective.ALL_REDUCE,
                        3,
                        (8 * 3 + 8 + 10 * 8 + 10) * 4));
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
        ParallelConfig two = ParallelConfig.builder().setMesh(DeviceMesh.parse("1x2")).build();
        try (RankPool ranks = new RankPool(two);
                NDManager manager = NDManager.newBaseManager()) {
            CommunicationCounter counter = new CommunicationCounter(ranks);
            reduce(ranks, manager);
            assertEquals(counter.getTable(1).getTotal(), new Traffic(1, 16, 16));
            counter.close();
            reduce(ranks, manager);
            assertEquals(counter.getTable(1).getTotal(), new Traffic(1, 16, 16));
        }
    }

    private static void reduce(RankPool ranks, NDManager manager) {
        ranks.run(
                context ->
                        context.getMappings()
                                .reduceFromRegion(manager.newSubManager().ones(new Shape(4))));
    }
}

package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.fused;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.logged;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.MESH_3X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.TENSOR_3;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.LossScaling;
import io.djltp.testing.Configs;
import io.djltp.testing.CountedStep;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.bytedeco.javacpp.Pointer;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/**
 * Ranks that share out the state of the optimizer train as ranks that each have all of it, bit for
 * bit, with as many bytes on the way and the memory of the formula.
 */
public class ShardedOptimizerTest {

    private static final Map<String, Supplier<Optimizer>> RULES = new LinkedHashMap<>();
    private static final Tracker RATE = step -> 0.1f / (1 + step);

    static {
        RULES.put("adam", () -> Optimizer.adam().optLearningRateTracker(RATE).build());
        RULES.put(
                "adamw",
                () -> Optimizer.adamW().optLearningRateTracker(RATE).optWeightDecays(0.1f).build());
        RULES.put(
                "clipped adam",
                () ->
                        Optimizer.adam()
                                .optLearningRateTracker(RATE)
                                .setRescaleGrad(0.5f)
                                .optClipGrad(0.01f)
                                .build());
        RULES.put("momentum", () -> Configs.sgd(0.1f, 0.9f));
        RULES.put("adagrad", () -> FusedTraining.adagrad(0.1f));
        RULES.put("sgd", () -> Configs.sgd(0.1f));
        RULES.put("rowwise", () -> RowwiseAdagrad.builder().optLearningRateTracker(RATE).build());
    }

    /** Uneven layers, replicas and shards, parameters smaller than the ranks. */
    private static Block network() {
        return sequence(
                linear(37), tanh(), linear(1), linear(19), tanh(), head(29), tanh(), row(true, 5));
    }

    private static TrainingRun train(TrainerKind kind, Block block, Optimizer rule, int batches) {
        Shape input = new Shape(7, 11);
        return TrainingRun.of(
                kind,
                block,
                Configs.of(Loss.l2Loss(), rule),
                input,
                (trainer, manager, losses) -> {
                    for (int step = 0; step < 5; step++) {
                        Block third = block.getChildren().valueAt(3);
                        third.freezeParameters(step == 2);
                        for (int i = 0; i < batches; i++) {
                            NDArray data = TrainingRun.random(manager, 10 * step + i, 7, 11);
                            NDArray labels =
                                    TrainingRun.random(manager, 500 + 10 * step + i, 7, 5).mul(9);
                            losses.add(TrainingRun.backward(trainer, data, labels));
                        }
                        trainer.step();
                        if (trainer instanceof ParallelTrainer parallel && kind.clipNorm() > 0) {
                            losses.add((float) parallel.getGradientNorm());
                        }
                    }
                });
    }

    @DataProvider
    public Object[][] rules() {
        List<Object[]> rows = new ArrayList<>();
        for (TrainerKind kind : List.of(DATA_2, MIXED_3, MESH_3X2)) {
            rows.add(new Object[] {"adam", kind});
        }
        rows.addAll(List.of(TrainerKind.rows(RULES.keySet(), List.of(DATA_3, MESH_2X2))));
        return rows.toArray(new Object[0][]);
    }

    @Test(dataProvider = "rules", timeOut = 60_000)
    public void noBitDiffers(String rule, TrainerKind kind) {
        assertSame(kind, RULES.get(rule), ShardedOptimizerTest::network, 1);
    }

    /** Who asks for it where it does nothing is told once. */
    @Test(timeOut = 60_000)
    public void isOfNoEffect() {
        for (String rule : List.of("sgd", "adam")) {
            String said =
                    logged(() -> train(DATA_2.sharded(), network(), RULES.get(rule).get(), 1));
            int times = said.split("optShardOptimizer\\(true\\) has no effect", -1).length - 1;
            Assert.assertEquals(times, "sgd".equals(rule) ? 1 : 0, said);
        }
    }

    @DataProvider
    public Object[][] kinds() {
        LossScaling scaling = LossScaling.builder().optInitialScale(0x1p127f).build();
        List<Object[]> rows = new ArrayList<>();
        for (TrainerKind kind : List.of(DATA_1, DATA_4, MIXED_3, TENSOR_3, MESH_2X3)) {
            rows.add(new Object[] {kind.clippedTo(0.05f), 2});
        }
        for (TrainerKind kind : List.of(DATA_2, MIXED_4, MESH_2X2)) {
            rows.add(new Object[] {kind.scaledBy(scaling).clippedTo(0.5f), 1});
        }
        rows.add(new Object[] {MESH_2X2.clippedTo(Float.POSITIVE_INFINITY), 1});
        return rows.toArray(new Object[0][]);
    }

    /** With gradients of several batches, limited by their norm, and of a loss that overflows. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void noBitDiffersOfScaledGradients(TrainerKind kind, int batches) {
        assertSame(kind, RULES.get("adam"), ShardedOptimizerTest::network, batches);
    }

    /** A gradient of more than 2 MiB is not copied into a bucket. */
    @Test(timeOut = 60_000)
    public void noBitDiffersOfLargeParameters() {
        Supplier<Block> block = () -> sequence(linear(701), tanh(), linear(1_003), linear(5));
        assertSame(DATA_3, RULES.get("adam"), block, 1);
    }

    private static void assertSame(
            TrainerKind kind, Supplier<Optimizer> rule, Supplier<Block> block, int batches) {
        if (!kind.isOfBackend()) {
            return;
        }
        TrainingRun expected = train(kind, block.get(), rule.get(), batches);
        TrainingRun actual = train(kind.sharded(), block.get(), rule.get(), batches);
        Assert.assertEquals(actual.getNumbers(), expected.getNumbers());
        assertAllBitEqual(actual.getWeights(), expected.getWeights(), kind + " parameter");
    }

    /** A fused head has its own state, and the body's is shared out. */
    @Test(timeOut = 60_000)
    public void aBodyWithAFusedHead() {
        Network.Batches batches = Network.batches("6x4", "6:11");
        for (TrainerKind kind : List.of(MIXED_3, MESH_2X2)) {
            List<TrainingRun> runs = new ArrayList<>();
            for (TrainerKind each : List.of(kind, kind.sharded())) {
                runs.add(
                        TrainingRun.of(
                                each,
                                sequence(linear(33), tanh(), fused(11)),
                                Configs.of(
                                        new VocabParallelCrossEntropyLoss(),
                                        RULES.get("adam").get()),
                                batches,
                                4));
            }
            Assert.assertEquals(runs.get(1).getNumbers(), runs.get(0).getNumbers());
            assertAllBitEqual(runs.get(1).getWeights(), runs.get(0).getWeights(), "parameter");
        }
    }

    @DataProvider
    public Object[][] memory() {
        return new Object[][] {{"3x1", 3}, {"4x1", 4}, {"2x2", 2}};
    }

    /** Adam keeps 8/d bytes for a parameter; what is sent is what an all-reduce sends. */
    @Test(dataProvider = "memory", timeOut = 60_000)
    public void bytesOfStateAndOnTheWay(String mesh, int data) {
        CountedStep with = count(mesh, true);
        CountedStep without = count(mesh, false);
        int ranks = DeviceMesh.parse(mesh).getRanks();
        for (int rank = 0; rank < ranks; rank++) {
            double formula = 8. / 4 * with.cost(rank).weights() / data;
            Assert.assertEquals(with.cost(rank).state(), formula, 0.03 * formula, "rank " + rank);
            Assert.assertEquals(without.cost(rank).state(), 2 * without.cost(rank).weights());
            TrafficTable one = with.table(rank);
            TrafficTable other = without.table(rank);
            Assert.assertEquals(
                    one.getTotal(Direction.STEP).wire(),
                    other.getTotal(Direction.STEP).wire(),
                    2. * one.getTotal().calls());
            Assert.assertTrue(one.toString().contains(Collective.REDUCE_SCATTER.toString()));
            Assert.assertFalse(other.toString().contains(Collective.REDUCE_SCATTER.toString()));
        }
    }

    private static CountedStep count(String mesh, boolean sharded) {
        return CountedStep.run(
                sequence(linear(96), tanh(), column(96), tanh(), row(true, 64), linear(48)),
                Loss.l2Loss(),
                RULES.get("adam").get(),
                DeviceMesh.parse(mesh),
                sharded,
                ShardedOptimizerTest::batch);
    }

    private static NDList batch(NDManager manager) {
        return new NDList(
                TrainingRun.random(manager, 1, 12, 80), TrainingRun.random(manager, 2, 12, 48));
    }

    @DataProvider
    public Object[][] leaving() {
        return TrainerKind.rows(DATA_2, DATA_2.sharded(), MESH_2X2.sharded());
    }

    /** No step leaves a tensor to Java's collector: it would hold a large gradient until then. */
    @Test(dataProvider = "leaving", timeOut = 60_000)
    public void stepsFreeWhatTheyMake(TrainerKind kind) {
        if (!kind.isOfBackend()) {
            return;
        }
        List<Long> counts = new ArrayList<>();
        TrainingRun.of(
                kind,
                sequence(linear(701), tanh(), linear(1_003), tanh(), linear(5)),
                Configs.of(Loss.l2Loss(), RULES.get("adam").get()),
                new Shape(7, 11),
                (trainer, manager, losses) -> {
                    NDArray data = TrainingRun.random(manager, 1, 7, 11);
                    NDArray labels = TrainingRun.random(manager, 2, 7, 5);
                    System.gc(); // what other tests have left
                    for (int step = 0; step < 12; step++) {
                        TrainingRun.step(trainer, data, labels);
                        counts.add(Pointer.totalCount());
                    }
                });
        Assert.assertTrue(counts.get(11) < counts.get(1) + 10, "" + counts);
    }
}

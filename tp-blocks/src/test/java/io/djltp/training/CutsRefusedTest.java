package io.djltp.training;

import static io.djltp.testing.Blocks.sequence;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.util.List;

/** Cuts that do not fit: one error, before the first step, that says what to do. */
public class CutsRefusedTest {

    private static final Cut EVENS_AND_ODDS =
            Cut.of(
                    8,
                    2,
                    rank -> List.of(new ShardRange(rank * 2, 2), new ShardRange(4 + rank * 2, 2)));

    private static ColumnParallelLinear column(Cut cut) {
        return ColumnParallelLinear.builder()
                .setUnits(8)
                .optShardingStrategy(ShardingStrategy.rowwise(cut))
                .build();
    }

    private static RowParallelLinear row(Cut cut) {
        return RowParallelLinear.builder()
                .setUnits(3)
                .optShardingStrategy(ShardingStrategy.columnwise(cut))
                .build();
    }

    @Test(timeOut = 60_000)
    public void aStrategyForAnotherAxis() {
        Refusals.expect(
                IllegalArgumentException.class,
                () ->
                        ColumnParallelLinear.builder()
                                .setUnits(8)
                                .optShardingStrategy(ShardingStrategy.columnwise())
                                .build(),
                "ColumnParallelLinear cuts axis 0",
                "output features",
                "axiswise(1)");
        Refusals.expect(
                IllegalArgumentException.class,
                () ->
                        RowParallelLinear.builder()
                                .setUnits(8)
                                .optShardingStrategy(ShardingStrategy.replicate())
                                .build(),
                "RowParallelLinear cuts axis 1",
                "input features",
                "replicate");
    }

    @Test(timeOut = 60_000)
    public void lengthsThatDoNotSumToTheAxis() {
        assertInitializeRefused(
                column(Cut.ofLengths(5, 4)),
                "weight (8, 4)",
                "2 ranks",
                "[0,5) | [5,9) of 9",
                "cuts 9 elements, and axis 0 has 8");
    }

    @Test(timeOut = 60_000)
    public void aCutForAnotherNumberOfRanks() {
        assertInitializeRefused(
                column(Cut.ofLengths(3, 3, 2)), "weight (8, 4)", "for 3 ranks, not for 2");
    }

    @Test(timeOut = 60_000)
    public void aRankWithoutAnything() {
        assertInitializeRefused(
                column(Cut.ofLengths(8, 0)),
                "weight (8, 4)",
                "leaves rank 1 empty. Give every rank one or more");
    }

    @Test(timeOut = 60_000)
    public void replicatedInputFeatures() {
        Block block =
                RowParallelLinear.builder()
                        .setUnits(3)
                        .optInputIsParallel(false)
                        .optShardingStrategy(
                                ShardingStrategy.columnwise(
                                        Cut.of(4, 2, rank -> List.of(new ShardRange(rank, 3)))))
                        .build();
        assertInitializeRefused(
                block, "weight (3, 4)", "[0,3) | [1,4) of 4", "gives several ranks the same");
    }

    /** Of one length on a rank, or not: what is compared is the cut. */
    @Test(timeOut = 60_000)
    public void columnAndRowCutOtherwise() {
        for (Cut other : List.of(Cut.ofLengths(4, 4), EVENS_AND_ODDS)) {
            Block block = sequence(column(Cut.ofLengths(5, 3)), row(other));
            assertForwardRefused(
                    block,
                    "RowParallelLinear with a weight of (3, 8)",
                    "[0,5) | [5,8) of 8",
                    other.toString());
        }
        assertForwardRefused(
                sequence(column(EVENS_AND_ODDS), row(Cut.balanced(8, 2))),
                "[0,2) [4,6) | [2,4) [6,8) of 8",
                "[0,4) | [4,8) of 8");
    }

    /** The parameter is the first operand: only the graph knows of the slice. */
    @Test(timeOut = 60_000)
    public void columnAndRowCutOtherwiseBehindAnOperation() {
        GraphBlock scaled =
                new GraphBlock(
                        new Shape(8),
                        (call, input) -> {
                            NDArray y = call.call("column", input.head());
                            return new NDList(call.value("scale").mul(y));
                        });
        scaled.add("column", column(EVENS_AND_ODDS), 4).add("scale", new Shape(1, 1));
        assertForwardRefused(
                sequence(scaled, row(Cut.balanced(8, 2))),
                "ColumnParallelLinear (8, 4)",
                "[0,2) [4,6) | [2,4) [6,8) of 8",
                "[0,4) | [4,8) of 8");
    }

    @Test(timeOut = 60_000)
    public void slicesOfTwoCutsInOneSum() {
        GraphBlock sum =
                new GraphBlock(
                        new Shape(8),
                        (call, input) ->
                                new NDList(
                                        call.call("one", input.head())
                                                .add(call.call("other", input.head()))));
        sum.add("one", column(EVENS_AND_ODDS), 4).add("other", column(Cut.balanced(8, 2)), 4);
        assertForwardRefused(
                sequence(sum, row(EVENS_AND_ODDS)),
                "ColumnParallelLinear (8, 4) is cut over the ranks as",
                "[0,2) [4,6) | [2,4) [6,8) of 8",
                "[0,4) | [4,8) of 8",
                "optGatherOutput(true)");
    }

    private static void assertInitializeRefused(Block block, String... parts) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block);
            try (Trainer trainer = open(model)) {
                Refusals.expect(
                        IllegalArgumentException.class,
                        () -> trainer.initialize(new Shape(6, 4)),
                        parts);
            }
        }
    }

    private static void assertForwardRefused(Block block, String... parts) {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block);
            try (Trainer trainer = open(model)) {
                trainer.initialize(new Shape(6, 4));
                NDArray data = TrainingRun.random(trainer.getManager(), 1, 6, 4);
                NDArray labels = TrainingRun.random(trainer.getManager(), 2, 6, 3);
                Refusals.expect(
                        RuntimeException.class,
                        () -> trainer.forward(new NDList(data), new NDList(labels)),
                        parts);
            }
        }
    }

    private static Trainer open(Model model) {
        return new ParallelTrainer(
                model,
                new DefaultTrainingConfig(new HalfSquareLoss()),
                Ranks.config(ParallelMode.TENSOR, 2));
    }

    /** In a network of many layers, which one? */
    @Test(timeOut = 60_000)
    public void theLayerIsNamed() {
        assertInitializeRefused(
                sequence(
                        column(Cut.balanced(8, 2)),
                        Blocks.row(1),
                        ColumnParallelLinear.builder().setUnits(1).optGatherOutput(true).build()),
                "Parameter 03ColumnParallelLinear_weight (1, 1) cannot be cut over 2 ranks");
    }
}

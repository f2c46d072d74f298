package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.Trainer;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Configs;
import io.djltp.testing.GraphBlock;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;

import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * A network that cannot be cut is refused when it is built or initialized, or before its first
 * step, with one clear error, which names the value, the limit and what to do.
 */
public class BadModelTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 4;
    private static final int CLASSES = 7;
    private static final Cut EVENS_AND_ODDS =
            Cut.of(
                    8,
                    2,
                    rank -> List.of(new ShardRange(rank * 2, 2), new ShardRange(4 + rank * 2, 2)));
    private static final String EVENS = "[0,2) [4,6) | [2,4) [6,8) of 8";
    private static final String HALVES = "[0,4) | [4,8) of 8";

    private static ColumnParallelLinear columnOf(Cut cut) {
        return ColumnParallelLinear.builder()
                .setUnits(8)
                .optShardingStrategy(ShardingStrategy.rowwise(cut))
                .build();
    }

    private static RowParallelLinear.Builder rowOf(Cut cut) {
        return RowParallelLinear.builder()
                .setUnits(3)
                .optShardingStrategy(ShardingStrategy.columnwise(cut));
    }

    private static Object[] build(ThrowingRunnable builder, String... parts) {
        return new Object[] {builder, parts};
    }

    @DataProvider
    public Object[][] builders() {
        return new Object[][] {
            build(() -> column(0), "units", "1 or more", "0"),
            build(() -> column(-3), "units", "1 or more", "-3"),
            build(() -> row(0), "units", "1 or more", "0"),
            build(() -> row(-3), "units", "1 or more", "-3"),
            build(
                    RowParallelLinear.builder().setUnits(3).optBatchShardedInput(true)::build,
                    "optInputIsParallel(false)"),
            build(
                    ColumnParallelLinear.builder()
                                    .setUnits(8)
                                    .optShardingStrategy(ShardingStrategy.columnwise())
                            ::build,
                    "ColumnParallelLinear cuts axis 0",
                    "output features",
                    "axiswise(1)"),
            build(
                    RowParallelLinear.builder()
                                    .setUnits(8)
                                    .optShardingStrategy(ShardingStrategy.replicate())
                            ::build,
                    "RowParallelLinear cuts axis 1",
                    "input features",
                    "replicate"),
        };
    }

    @Test(dataProvider = "builders")
    public void isNotBuilt(ThrowingRunnable builder, String... parts) {
        throwsArgument(builder, parts);
    }

    private static Object[] network(TrainerKind kind, Block block, String... parts) {
        return new Object[] {kind, block, parts};
    }

    @DataProvider
    public Object[][] uninitialized() {
        return new Object[][] {
            network(
                    TENSOR_4,
                    column(3),
                    "weight (3, 4)",
                    "over 4 ranks",
                    "axis 0 has length 3",
                    "rank 3 empty",
                    "at most 3 ranks"),
            network(
                    new TrainerKind(ParallelMode.TENSOR, 6),
                    RowParallelLinear.builder().setUnits(30).optInputIsParallel(false).build(),
                    "weight (30, 4)",
                    "axis 1 has length 4",
                    "at most 4 ranks"),
            network(MIXED_2, column(CLASSES), "MIXED mode", "optBatchShardedInput(true)"),
            network(
                    TENSOR_2,
                    columnOf(Cut.ofLengths(5, 4)),
                    "weight (8, 4)",
                    "2 ranks",
                    "[0,5) | [5,9) of 9",
                    "cuts 9 elements, and axis 0 has 8"),
            network(
                    TENSOR_2,
                    columnOf(Cut.ofLengths(3, 3, 2)),
                    "weight (8, 4)",
                    "for 3 ranks, not for 2"),
            network(
                    TENSOR_2,
                    columnOf(Cut.ofLengths(8, 0)),
                    "weight (8, 4)",
                    "leaves rank 1 empty. Give every rank one or more"),
            network( // replicated input features
                    TENSOR_2,
                    rowOf(Cut.of(4, 2, rank -> List.of(new ShardRange(rank, 3))))
                            .optInputIsParallel(false)
                            .build(),
                    "weight (3, 4)",
                    "[0,3) | [1,4) of 4",
                    "gives several ranks the same"),
            network( // of many layers, which one?
                    TENSOR_2,
                    sequence(
                            columnOf(Cut.balanced(8, 2)),
                            row(1),
                            ColumnParallelLinear.builder()
                                    .setUnits(1)
                                    .optGatherOutput(true)
                                    .build()),
                    "Parameter 03ColumnParallelLinear_weight (1, 1) cannot be cut over 2 ranks"),
        };
    }

    @Test(dataProvider = "uninitialized", timeOut = 60_000)
    public void isNotInitialized(TrainerKind kind, Block block, String... parts) {
        assertRefused(
                IllegalArgumentException.class,
                kind,
                block,
                trainer -> trainer.initialize(new Shape(ROWS, FEATURES)),
                parts);
    }

    /** DJL's native code has no such arrays, and would end the process. */
    @Test(timeOut = 60_000)
    public void arraysInBfloat16() {
        for (int ranks = 1; ranks <= 2; ranks++) {
            assertRefused(
                    IllegalArgumentException.class,
                    new TrainerKind(ParallelMode.TENSOR, ranks),
                    column(CLASSES),
                    trainer -> {
                        trainer.getModel().setDataType(DataType.BFLOAT16);
                        trainer.initialize(new Shape(ROWS, FEATURES));
                    },
                    "bfloat16",
                    "setDataType(DataType.FLOAT32)",
                    "optPrecision(Precision.BFLOAT16)");
        }
    }

    /** Two layers, or a layer and a block, that cut one axis in two ways. */
    @DataProvider
    public Object[][] otherwise() {
        return new Object[][] {
            // of one length on a rank, or not: what is compared is the cut
            network(
                    TENSOR_2,
                    sequence(columnOf(Cut.ofLengths(5, 3)), rowOf(Cut.ofLengths(4, 4)).build()),
                    "RowParallelLinear with a weight of (3, 8)",
                    "[0,5) | [5,8) of 8",
                    HALVES),
            network(
                    TENSOR_2,
                    sequence(columnOf(Cut.ofLengths(5, 3)), rowOf(EVENS_AND_ODDS).build()),
                    "RowParallelLinear with a weight of (3, 8)",
                    "[0,5) | [5,8) of 8",
                    EVENS_AND_ODDS.toString()),
            network(
                    TENSOR_2,
                    sequence(columnOf(EVENS_AND_ODDS), rowOf(Cut.balanced(8, 2)).build()),
                    EVENS,
                    HALVES),
            // the parameter is the first operand: only the graph knows of the slice
            network(
                    TENSOR_2,
                    sequence(
                            new GraphBlock(
                                            new Shape(8),
                                            (call, input) -> {
                                                NDArray y = call.call("column", input.head());
                                                return new NDList(call.value("scale").mul(y));
                                            })
                                    .add("column", columnOf(EVENS_AND_ODDS), FEATURES)
                                    .add("scale", new Shape(1, 1)),
                            rowOf(Cut.balanced(8, 2)).build()),
                    "ColumnParallelLinear (8, 4)",
                    EVENS,
                    HALVES),
            network(
                    TENSOR_2,
                    sequence(
                            new GraphBlock(
                                            new Shape(8),
                                            (call, input) -> {
                                                NDArray one = call.call("one", input.head());
                                                NDArray other = call.call("other", input.head());
                                                return new NDList(one.add(other));
                                            })
                                    .add("one", columnOf(EVENS_AND_ODDS), FEATURES)
                                    .add("other", columnOf(Cut.balanced(8, 2)), FEATURES),
                            rowOf(EVENS_AND_ODDS).build()),
                    "ColumnParallelLinear (8, 4) is cut over the ranks as",
                    EVENS,
                    HALVES,
                    "optGatherOutput(true)"),
        };
    }

    @Test(dataProvider = "otherwise", timeOut = 60_000)
    public void isCutOtherwise(TrainerKind kind, Block block, String... parts) {
        assertRefused(
                RuntimeException.class,
                kind,
                block,
                trainer -> {
                    trainer.initialize(new Shape(ROWS, FEATURES));
                    NDArray data = random(trainer.getManager(), 1, ROWS, FEATURES);
                    NDArray labels = random(trainer.getManager(), 2, ROWS, 3);
                    trainer.forward(new NDList(data), new NDList(labels));
                },
                parts);
    }

    private static Block dropoutThenHead() {
        return sequence(Dropout.builder().build(), head(CLASSES));
    }

    private static Block headThenDropout() {
        return sequence(head(CLASSES), Dropout.builder().build());
    }

    @DataProvider
    public Object[][] dropout() {
        return new Object[][] {
            {TENSOR_2, (Supplier<Block>) BadModelTest::dropoutThenHead},
            {TENSOR_2, (Supplier<Block>) BadModelTest::headThenDropout},
            {MIXED_2, (Supplier<Block>) BadModelTest::headThenDropout}
        };
    }

    @Test(dataProvider = "dropout", timeOut = 60_000)
    public void dropoutWhereAllRanksMustAgree(TrainerKind kind, Supplier<Block> block) {
        assertRefused(
                UnsupportedOperationException.class,
                kind,
                block.get(),
                trainer ->
                        trainer.forward(
                                new NDList(trainer.getManager().ones(new Shape(ROWS, FEATURES)))),
                "Dropout",
                "same mask",
                "data-parallel body");
    }

    @Test(timeOut = 60_000)
    public void dropoutWhereTheMasksAreTheRanksOwn() {
        for (TrainerKind kind : List.of(MIXED_2, DATA_2)) {
            use(kind, dropoutThenHead(), trainer -> trainer.initialize(new Shape(ROWS, FEATURES)));
        }
    }

    private static void assertRefused(
            Class<? extends Exception> type,
            TrainerKind kind,
            Block block,
            Consumer<Trainer> call,
            String... parts) {
        use(kind, block, trainer -> expect(type, () -> call.accept(trainer), parts));
    }

    private static void use(TrainerKind kind, Block block, Consumer<Trainer> call) {
        Engine.getInstance().setRandomSeed(1);
        try (Model model = Model.newInstance("net")) {
            model.setBlock(block);
            try (Trainer trainer = kind.open(model, Configs.of(new HalfSquareLoss()))) {
                call.accept(trainer);
            }
        }
    }
}

package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.norm.Dropout;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.Test;

import java.util.function.Consumer;

/**
 * A network that cannot be cut is refused when it is built or initialized, with one clear error,
 * which names the value, the limit and what to do.
 */
public class BadModelTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;

    @Test(timeOut = 60_000)
    public void aLayerThatLeavesARankEmpty() {
        TrainerKind four = new TrainerKind(ParallelMode.TENSOR, 4);
        assertNotInitialized(
                four,
                column(3),
                "weight (3, 5)",
                "over 4 ranks",
                "axis 0 has length 3",
                "rank 3 empty",
                "at most 3 ranks");
        assertNotInitialized(
                new TrainerKind(ParallelMode.TENSOR, 6),
                RowParallelLinear.builder().setUnits(30).optInputIsParallel(false).build(),
                "weight (30, 5)",
                "axis 1 has length 5",
                "at most 5 ranks");
    }

    @Test
    public void aLayerWithoutUnits() {
        for (long units : new long[] {0, -3}) {
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> column(units),
                    "units",
                    "1 or more",
                    "" + units);
            Refusals.expect(
                    IllegalArgumentException.class,
                    () -> row(units),
                    "units",
                    "1 or more",
                    "" + units);
        }
    }

    @Test
    public void anInputThatIsCutTwice() {
        Refusals.expect(
                IllegalArgumentException.class,
                () -> RowParallelLinear.builder().setUnits(3).optBatchShardedInput(true).build(),
                "optInputIsParallel(false)");
    }

    @Test(timeOut = 60_000)
    public void mixedModeWithoutALayerThatGathersTheBatch() {
        assertNotInitialized(
                new TrainerKind(ParallelMode.MIXED, 2),
                column(CLASSES),
                "MIXED mode",
                "optBatchShardedInput(true)");
    }

    private static NDList ones(Trainer trainer) {
        return new NDList(trainer.getManager().ones(new Shape(ROWS, FEATURES)));
    }

    @Test(timeOut = 60_000)
    public void dropoutWhereAllRanksMustAgree() {
        String[] message = {"Dropout", "same mask", "data-parallel body"};
        for (Block block : new Block[] {dropoutThenHead(), headThenDropout()}) {
            assertRefused(
                    UnsupportedOperationException.class,
                    new TrainerKind(ParallelMode.TENSOR, 2),
                    block,
                    trainer -> trainer.forward(ones(trainer)),
                    message);
        }
        assertRefused(
                UnsupportedOperationException.class,
                new TrainerKind(ParallelMode.MIXED, 2),
                headThenDropout(),
                trainer -> trainer.forward(ones(trainer)),
                message);
        for (ParallelMode mode : new ParallelMode[] {ParallelMode.MIXED, ParallelMode.DATA}) {
            try (Model model = model(dropoutThenHead());
                    Trainer trainer = open(model, new TrainerKind(mode, 2), Loss.l2Loss())) {
                trainer.initialize(new Shape(ROWS, FEATURES)); // here the masks are the rank's own
            }
        }
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

    private static Block head() {
        return Blocks.head(CLASSES);
    }

    private static Block dropoutThenHead() {
        return sequence(Dropout.builder().build(), head());
    }

    private static Block headThenDropout() {
        return sequence(head(), Dropout.builder().build());
    }

    private static Model model(Block block) {
        Engine.getInstance().setRandomSeed(1);
        Model model = Model.newInstance("net");
        model.setBlock(block);
        return model;
    }

    private static Trainer open(Model model, TrainerKind kind, Loss loss) {
        return kind.open(model, Configs.of(loss));
    }

    private static void assertNotInitialized(TrainerKind kind, Block block, String... parts) {
        assertRefused(
                IllegalArgumentException.class,
                kind,
                block,
                trainer -> trainer.initialize(new Shape(ROWS, FEATURES)),
                parts);
    }

    private static void assertRefused(
            Class<? extends Exception> type,
            TrainerKind kind,
            Block block,
            Consumer<Trainer> call,
            String... parts) {
        try (Model model = model(block);
                Trainer trainer = open(model, kind, Loss.l2Loss())) {
            Refusals.expect(type, () -> call.accept(trainer), parts);
        }
    }
}

package io.djltp.conformance;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ParallelDropout;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

/**
 * Dropout of a slice that was divided to heads has the mask of the whole; where features or rows
 * lie on another axis, it has no place in the whole that a rank could know, and is refused.
 */
public class DropoutPlacesTest {

    private static final int ROWS = 7;
    private static final int TOKENS = 6;
    private static final double TOLERANCE = 5e-6;

    private static final TrainerKind ONE = new TrainerKind(ParallelMode.TENSOR, 1);
    private static final TrainerKind[] CUT = {
        new TrainerKind(ParallelMode.TENSOR, 2),
        new TrainerKind(ParallelMode.TENSOR, 4),
        TrainerKind.mesh(2, 3),
        new TrainerKind(ParallelMode.MIXED, 2),
    };

    @Test(timeOut = 120_000)
    public void headsOfTheLastAxis() {
        TrainingRun expected = train(ONE, heads());
        for (TrainerKind kind : CUT) {
            train(kind, heads()).assertSame(expected, TOLERANCE);
        }
    }

    private static Block heads() {
        return sequence(
                first(true, 24),
                map(x -> x.reshape(x.getShape().get(0), TOKENS, -1, 2)),
                dropout(),
                map(x -> x.reshape(x.getShape().get(0), TOKENS, -1)),
                row(true, 5));
    }

    @Test(timeOut = 120_000)
    public void featuresElsewhere() {
        for (TrainerKind kind : CUT) {
            Block heads =
                    sequence(
                            first(true, 24),
                            map(x -> x.reshape(x.getShape().get(0), TOKENS, -1, 2).swapAxes(1, 2)),
                            dropout(),
                            map(DropoutPlacesTest::headsTogether),
                            row(true, 5));
            assertRefused(kind, heads, "features");
            Block swapped = // on 4 ranks as many features as tokens
                    sequence(
                            first(true, 24),
                            map(x -> x.swapAxes(1, 2)),
                            dropout(),
                            map(x -> x.swapAxes(1, 2)),
                            row(true, 5));
            assertRefused(kind, swapped, "features");
        }
    }

    private static NDArray headsTogether(NDArray x) {
        return x.swapAxes(1, 2).reshape(x.getShape().get(0), TOKENS, -1);
    }

    @Test(timeOut = 120_000)
    public void rowsElsewhere() {
        TrainerKind[] kinds = {
            new TrainerKind(ParallelMode.DATA, 2),
            new TrainerKind(ParallelMode.DATA, 3),
            TrainerKind.mesh(2, 1),
        };
        for (TrainerKind kind : kinds) {
            Block swapped =
                    sequence(
                            linear(5),
                            map(x -> x.swapAxes(0, 1)),
                            dropout(),
                            map(x -> x.swapAxes(0, 1)),
                            linear(5));
            assertRefused(kind, swapped, "rows are not axis 0");
        }
    }

    private static Block dropout() {
        return ParallelDropout.builder().optRate(0.5f).optSeed(5).build();
    }

    private static void assertRefused(TrainerKind kind, Block block, String part) {
        Refusals.expect(IllegalArgumentException.class, () -> train(kind, block), "ropout", part);
    }

    private static TrainingRun train(TrainerKind kind, Block block) {
        return TrainingRun.of(
                kind,
                block,
                new HalfSquareLoss(),
                new Shape(ROWS, TOKENS, 4),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 2; step++) {
                        NDArray data = TrainingRun.random(manager, step, ROWS, TOKENS, 4);
                        NDArray labels = TrainingRun.random(manager, 9 + step, ROWS, TOKENS, 5);
                        numbers.add(TrainingRun.backward(trainer, data, labels));
                        trainer.step();
                    }
                });
    }
}

package io.djltp.training;

import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.zeroGradients;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/**
 * The first pass of a trainer is watched, and computes what the later ones do, bit for bit: a
 * training that goes on from a checkpoint has its first pass elsewhere.
 */
public class WatchedPassBitsTest {

    private static final int[] ROWS = {7, 9, 13};
    private static final int FEATURES = 37; // rows begin anywhere in a cache line

    private static Block network() {
        return sequence(linear(19), Activation.tanhBlock(), gathered(11));
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_2, DATA_2, DATA_3, MIXED_3, MESH_2X2);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theFirstPassHasTheBitsOfTheOthers(TrainerKind kind) {
        for (int rows : ROWS) {
            TrainingRun first = run(kind, rows, false);
            TrainingRun later = run(kind, rows, true);
            later.assertSame(first, 0);
        }
    }

    /** One step, of the first pass or of one after another whose gradients are forgotten. */
    private static TrainingRun run(TrainerKind kind, int rows, boolean later) {
        return TrainingRun.of(
                kind,
                network(),
                Loss.l2Loss(),
                new Shape(rows, FEATURES),
                (trainer, manager, numbers) -> {
                    if (later) {
                        backward(trainer, manager, rows, 1);
                        zeroGradients(trainer);
                    }
                    numbers.add(backward(trainer, manager, rows, 0));
                    trainer.step();
                });
    }

    private static float backward(Trainer trainer, NDManager manager, int rows, int seed) {
        return TrainingRun.backward(
                trainer,
                random(manager, seed, rows, FEATURES),
                random(manager, 9 + seed, rows, 11));
    }
}

package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * A training that has diverged goes on with NaN, as DJL's own does, also where ranks have replicas
 * of a key head at different places in their shards: the bits of their NaN differ.
 */
public class DivergedTrainingTest {

    private static final int STEPS = 6;

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(PLAIN, TENSOR_2, TENSOR_3, TENSOR_4, TENSOR_3, TENSOR_4, MESH_2X3);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void goesOnWithNaN(TrainerKind kind) {
        List<Float> losses = train(kind, false);
        assertTrue(Float.isFinite(losses.get(0)), "loss " + losses.get(0));
        assertEquals(losses.size(), STEPS);
        for (float loss : losses.subList(1, STEPS)) {
            assertTrue(Float.isNaN(loss), losses.toString());
        }
    }

    /** A rank that has a number where the others have NaN has drifted apart still. */
    @Test(timeOut = 60_000)
    public void aNumberIsNoNaN() {
        TrainerKind kind = TENSOR_3.clippedTo(1);
        expect(
                RankFailedException.class,
                () -> train(kind, true),
                "after step 6 rank 1",
                "drifted apart");
    }

    private static List<Float> train(TrainerKind kind, boolean changed) {
        List<Float> losses = new ArrayList<>();
        TrainingRun.of(
                kind,
                sequence(
                        linear(12),
                        ParallelMultiHeadAttention.builder()
                                .setEmbeddingSize(12)
                                .setHeads(6)
                                .optKeyValueHeads(2)
                                .build(),
                        linear(8)),
                new HalfSquareLoss(),
                new Shape(2, 3, 8),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < STEPS; step++) {
                        NDArray x = random(manager, step, 2, 3, 8);
                        if (step == 1) {
                            float[] values = x.toFloatArray();
                            values[7] = Float.NaN;
                            x = manager.create(values, x.getShape());
                        }
                        NDArray labels = random(manager, 9, 2, 3, 8);
                        losses.add(backward(trainer, x, labels));
                        trainer.step();
                    }
                    if (changed) {
                        setZero((ParallelTrainer) trainer);
                    }
                });
        return losses;
    }

    /** Sets an element of the first layer's weight of rank 1. */
    private static void setZero(ParallelTrainer trainer) {
        NDArray weight =
                trainer.getParameterStore(1)
                        .getValue(
                                trainer.getModel().getBlock().getParameters().valueAt(0),
                                null,
                                true);
        trainer.getRanks()
                .run(
                        context -> {
                            if (context.getRank() == 1) {
                                weight.stopGradient().set(new NDIndex("0, 0"), 0);
                            }
                            return null;
                        });
    }
}

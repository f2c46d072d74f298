package io.djltp.nn;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** A small transformer learns in bfloat16 what it learns in float32, in as many steps. */
public class PrecisionTrainingTest {

    private static final int WIDTH = 16;
    private static final int STEPS = 80;
    private static final int LAST = 10; // steps whose mean loss is compared
    private static final double TOLERANCE = 0.02; // of the loss in float32

    @Test(timeOut = 120_000)
    public void aTransformerReachesTheSameLoss() {
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isPresent()) {
            throw new SkipException("the processor has no bfloat16");
        }
        List<Float> wide = losses(TrainerKind.PLAIN, Precision.FLOAT32);
        double reached = mean(wide);
        Assert.assertTrue(reached < 0.5 * wide.get(0), "it learns: " + wide);
        for (int ranks : new int[] {1, 3}) {
            TrainerKind kind = new TrainerKind(ParallelMode.TENSOR, ranks);
            double narrow = mean(losses(kind, Precision.BFLOAT16));
            Assert.assertEquals(narrow, reached, TOLERANCE * reached, kind + "");
        }
    }

    private static double mean(List<Float> losses) {
        return losses.subList(STEPS - LAST, STEPS).stream()
                .mapToDouble(Float::doubleValue)
                .average()
                .orElseThrow();
    }

    /** What is to be learned is the square of each token, and the mean of those up to it. */
    private static List<Float> losses(TrainerKind kind, Precision precision) {
        List<Float> losses = new ArrayList<>();
        TrainingRun.of(
                kind,
                network(precision),
                Loss.l2Loss(),
                new Shape(16, 6, 4),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < STEPS; step++) {
                        NDArray data = TrainingRun.random(manager, step, 16, 6, 4);
                        NDArray target = data.square().mul(2).add(data.cumSum(1).mul(0.3f));
                        losses.add(TrainingRun.backward(trainer, data, target));
                        trainer.step();
                    }
                });
        return losses;
    }

    private static Block network(Precision precision) {
        Block layer =
                ParallelTransformerDecoderLayer.builder()
                        .setAttention(
                                ParallelMultiHeadAttention.builder()
                                        .setEmbeddingSize(WIDTH)
                                        .setHeads(4)
                                        .optKeyValueHeads(2)
                                        .optCausal(true)
                                        .optPrecision(precision)
                                        .build())
                        .setMlp(
                                ParallelMlp.builder()
                                        .setUnits(WIDTH)
                                        .setHiddenFeatures(33)
                                        .optGated(true)
                                        .optPrecision(precision)
                                        .build())
                        .setNorm(() -> RmsNorm.builder().build())
                        .optPreNorm(true)
                        .build();
        return sequence(linear(WIDTH), layer, linear(4));
    }
}

package io.djltp.conformance;

import static io.djltp.testing.Blocks.attention;
import static io.djltp.testing.Blocks.mlp;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.table;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.HashSet;
import java.util.List;

/**
 * Conformance case 24, in one network: norms between cut tokens, norms of the queries and keys of a
 * rank's heads, biases of row-parallel layers with cut tokens, and an embedding that is the head
 * too. Parameters after three steps are those of one rank and of DJL's trainer, replicas are the
 * same bit for bit, and the norm of all gradients counts replicas and the tied weight once.
 */
public class NormsAndTiesTest {

    private static final int VOCABULARY = 11;
    private static final int WIDTH = 8;
    private static final int TOKENS = 5;
    private static final int ROWS = 3;

    private static Block network(boolean cutTokens) {
        VocabParallelEmbedding embedding =
                table(VOCABULARY, WIDTH).optSequenceParallel(cutTokens).build();
        ParallelTransformerDecoderLayer layer =
                ParallelTransformerDecoderLayer.builder()
                        .setAttention(
                                attention(WIDTH, 4)
                                        .optKeyValueHeads(2)
                                        .optQueryKeyNorm(1e-6f)
                                        .optCausal(true)
                                        .optSequenceParallel(cutTokens)
                                        .build())
                        .setMlp(mlp(WIDTH, 7).optGated(true).optSequenceParallel(cutTokens).build())
                        .setNorm(() -> RmsNorm.builder().build())
                        .optPreNorm(true)
                        .build();
        return sequence(
                embedding,
                new ParallelTransformer(List.of(layer), RmsNorm.builder().build()),
                newColumn(VOCABULARY)
                        .optTiedWeight(embedding)
                        .optBias(false)
                        .optSequenceParallel(cutTokens)
                        .build());
    }

    /** Notes losses and the norms of the gradients. */
    private static TrainingRun train(Block block, TrainerKind kind) {
        return TrainingRun.of(
                kind,
                block,
                new VocabParallelCrossEntropyLoss(),
                new Shape(ROWS, TOKENS),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        NDArray labels = ids(manager, 9 + step);
                        numbers.add(TrainingRun.step(trainer, ids(manager, step), labels));
                        if (trainer instanceof ParallelTrainer parallel) {
                            numbers.add((float) parallel.getGradientNorm());
                        }
                    }
                    if (trainer instanceof ParallelTrainer parallel) {
                        assertReplicasAreEqual(parallel, block);
                    }
                });
    }

    private static NDArray ids(NDManager manager, int seed) {
        return TrainingRun.labels(manager, seed, ROWS * TOKENS, VOCABULARY).reshape(ROWS, TOKENS);
    }

    private static void assertReplicasAreEqual(ParallelTrainer trainer, Block block) {
        int replicas = 0;
        for (Parameter parameter : new HashSet<>(block.getParameters().values())) {
            float[] first = value(trainer, 0, parameter);
            if (first.length < parameter.getShape().size()) {
                continue; // is cut
            }
            replicas++;
            for (int rank = 1; rank < trainer.getRanks().size(); rank++) {
                ArrayAssert.assertBitEqual(
                        value(trainer, rank, parameter), first, parameter.getName());
            }
        }
        // norms of two parts and the last, of queries and keys, biases of output and down
        Assert.assertTrue(replicas >= 7, replicas + " replicas");
    }

    private static float[] value(ParallelTrainer trainer, int rank, Parameter parameter) {
        return trainer.getParameterStore(rank).getValue(parameter, null, true).toFloatArray();
    }

    @Test(timeOut = 120_000)
    public void replicasAreSummedAndCountedOnce() {
        float none = Float.POSITIVE_INFINITY; // the norm is computed, and limits nothing
        TrainingRun dense = train(network(false), PLAIN);
        TrainerKind alone = TENSOR_1.clippedTo(none);
        TrainingRun one = train(network(false), alone);
        ArrayAssert.assertAllClose(one.getWeights(), dense.getWeights(), 1e-5, "one rank");
        for (boolean cutTokens : new boolean[] {false, true}) {
            for (TrainerKind kind : List.of(TENSOR_2, TENSOR_3, TENSOR_4, MESH_2X2)) {
                train(network(cutTokens), kind.clippedTo(none)).assertSame(one, 1e-5);
            }
        }
    }
}

package io.djltp.conformance;

import static io.djltp.testing.Blocks.sequence;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.nn.norm.RmsNorm;
import io.djltp.nn.transformer.ParallelTransformer;
import io.djltp.nn.transformer.ParallelTransformerDecoderLayer;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
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
    private static final float RATE = 0.1f;

    private static Block network(boolean cutTokens) {
        VocabParallelEmbedding embedding =
                VocabParallelEmbedding.builder()
                        .setVocabularySize(VOCABULARY)
                        .setEmbeddingSize(WIDTH)
                        .optSequenceParallel(cutTokens)
                        .build();
        ParallelTransformerDecoderLayer layer =
                ParallelTransformerDecoderLayer.builder()
                        .setAttention(
                                ParallelMultiHeadAttention.builder()
                                        .setEmbeddingSize(WIDTH)
                                        .setHeads(4)
                                        .optKeyValueHeads(2)
                                        .optQueryKeyNorm(1e-6f)
                                        .optCausal(true)
                                        .optSequenceParallel(cutTokens)
                                        .build())
                        .setMlp(
                                ParallelMlp.builder()
                                        .setUnits(WIDTH)
                                        .setHiddenFeatures(7)
                                        .optGated(true)
                                        .optSequenceParallel(cutTokens)
                                        .build())
                        .setNorm(() -> RmsNorm.builder().build())
                        .optPreNorm(true)
                        .build();
        return sequence(
                embedding,
                new ParallelTransformer(List.of(layer), RmsNorm.builder().build()),
                ColumnParallelLinear.builder()
                        .setUnits(VOCABULARY)
                        .optTiedWeight(embedding)
                        .optBias(false)
                        .optSequenceParallel(cutTokens)
                        .build());
    }

    /** What three steps of plain SGD leave: so the first step tells every gradient. */
    private record Result(List<float[]> weights, List<Double> norms) {}

    private static Result train(Block block, DeviceMesh mesh) {
        Result result = new Result(new ArrayList<>(), new ArrayList<>());
        Engine.getInstance().setRandomSeed(24);
        try (Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block);
            block.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(ROWS, TOKENS));
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(RATE));
            try (Trainer trainer = open(model, config, mesh)) {
                trainer.initialize(new Shape(ROWS, TOKENS));
                for (int step = 0; step < 3; step++) {
                    NDArray ids = ids(manager, step);
                    TrainingRun.backward(trainer, ids, ids(manager, 9 + step));
                    trainer.step();
                    if (trainer instanceof ParallelTrainer parallel) {
                        result.norms.add(parallel.getGradientNorm());
                    }
                }
                if (trainer instanceof ParallelTrainer parallel) {
                    assertReplicasAreEqual(parallel, block, mesh);
                }
            }
            result.weights.addAll(TrainingRun.weights(block));
        }
        return result;
    }

    private static NDArray ids(NDManager manager, int seed) {
        return TrainingRun.labels(manager, seed, ROWS * TOKENS, VOCABULARY).reshape(ROWS, TOKENS);
    }

    private static Trainer open(Model model, DefaultTrainingConfig config, DeviceMesh mesh) {
        if (mesh == null) {
            return model.newTrainer(config);
        }
        ParallelConfig ranks =
                ParallelConfig.builder()
                        .setMesh(mesh)
                        .optGradientClipNorm(Float.POSITIVE_INFINITY)
                        .build();
        return new ParallelTrainer(model, config, ranks);
    }

    private static void assertReplicasAreEqual(
            ParallelTrainer trainer, Block block, DeviceMesh mesh) {
        int replicas = 0;
        for (Parameter parameter : new HashSet<>(block.getParameters().values())) {
            float[] first = value(trainer, 0, parameter);
            if (first.length < parameter.getShape().size()) {
                continue; // is cut
            }
            replicas++;
            for (int rank = 1; rank < mesh.getRanks(); rank++) {
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
        Result dense = train(network(false), null);
        Result one = train(network(false), DeviceMesh.of(ParallelMode.TENSOR, 1));
        assertSame(one, dense, "one rank");
        for (boolean cutTokens : new boolean[] {false, true}) {
            for (DeviceMesh mesh :
                    List.of(
                            DeviceMesh.of(ParallelMode.TENSOR, 2),
                            DeviceMesh.of(ParallelMode.TENSOR, 3),
                            DeviceMesh.of(ParallelMode.TENSOR, 4),
                            DeviceMesh.of(DeviceMesh.DATA, 2, DeviceMesh.TENSOR, 2))) {
                String what = mesh + (cutTokens ? " with cut tokens" : "");
                Result actual = train(network(cutTokens), mesh);
                assertSame(actual, dense, what);
                for (int step = 0; step < 3; step++) {
                    double norm = one.norms.get(step);
                    Assert.assertEquals(actual.norms.get(step), norm, 1e-5 * norm, what);
                }
            }
        }
    }

    private static void assertSame(Result actual, Result expected, String what) {
        ArrayAssert.assertAllClose(actual.weights, expected.weights, 1e-5, what);
    }
}

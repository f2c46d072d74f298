package io.djltp.llm;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.cost.ModelCost;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.DeviceMesh;
import io.djltp.testing.CountedStep;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** What a step of a decoder communicates is what is forecast from shapes alone. */
public class DecoderCostTest {

    private static final Shape INPUT = new Shape(4, 7);

    @DataProvider
    public static Object[][] models() {
        return new Object[][] {
            {"llama", "'tie_word_embeddings': true", "1x3"},
            {"qwen3", "", "1x2"},
            {"qwen2", "'tie_word_embeddings': true", "2x2"},
            {"smollm3", "'no_rope_layers': [1, 0]", "1x2"},
            {"phi3", "", "1x3"},
            {"gpt2", "", "1x4"},
        };
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void testForecastIsMeasured(String type, String fields, String meshName)
            throws Exception {
        ModelConfig read = ModelConfig.parse(RandomFolder.config(type, fields).toString());
        DeviceMesh mesh = DeviceMesh.parse(meshName);
        VocabParallelCrossEntropyLoss loss = new VocabParallelCrossEntropyLoss();
        Block network = read.newBlock(true);
        ModelCost cost =
                ModelCost.builder()
                        .setBlock(network)
                        .setMesh(mesh)
                        .setInputs(INPUT)
                        .setLoss(loss)
                        .setOptimizer(Optimizer.adam().build())
                        .build();
        CountedStep step =
                CountedStep.run(
                        network,
                        loss,
                        Optimizer.adam().build(),
                        mesh,
                        false,
                        manager ->
                                new NDList(
                                        manager.ones(INPUT, DataType.INT32),
                                        manager.ones(INPUT, DataType.INT32)));
        for (int rank = 0; rank < mesh.getRanks(); rank++) {
            Assert.assertEquals(step.table(rank), cost.getTraffic(rank), "of " + rank);
        }
    }
}

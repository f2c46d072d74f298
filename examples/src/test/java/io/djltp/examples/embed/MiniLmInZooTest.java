package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.inference.Predictor;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.nn.Parameter;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.JsonUtils;
import ai.djl.util.Pair;

import io.djltp.zoo.RankedNetwork;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;

/** The MiniLM of the zoo, found by DJL: the outputs of ONNX Runtime at any degree. */
public class MiniLmInZooTest {

    private static final double TOLERANCE = 1e-5;

    private List<String> texts;
    private float[][] expected;

    @BeforeClass
    public void computeByOnnxRuntime() throws Exception {
        texts = Sentences.read().subList(0, 8);
        try (OnnxReference reference = new OnnxReference(2)) {
            expected = reference.embed(texts);
        }
    }

    private static <I, O> ZooModel<I, O> load(Class<I> input, Class<O> output, Object degree)
            throws Exception {
        return Criteria.builder()
                .setTypes(input, output)
                .optGroupId("io.djltp")
                .optArtifactId("all-MiniLM-L6-v2")
                .optArgument("tensor_parallel_degree", degree)
                .optDevice(Device.cpu())
                .build()
                .loadModel();
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{1}, {2}, {3}};
    }

    @Test(dataProvider = "degrees", timeOut = 120_000)
    public void embedsAsOnnxRuntimeDoes(int degree) throws Exception {
        try (ZooModel<String, float[]> model = load(String.class, float[].class, degree);
                Predictor<String, float[]> predictor = model.newPredictor()) {
            List<float[]> actual = predictor.batchPredict(texts);
            for (int i = 0; i < texts.size(); i++) {
                double difference = EmbeddedText.largestDifference(actual.get(i), expected[i]);
                assertEquals(difference, 0, TOLERANCE, texts.get(i));
            }
            float[] one = predictor.predict(texts.get(3));
            assertEquals(EmbeddedText.largestDifference(one, expected[3]), 0, TOLERANCE);
            if (degree > 1) {
                checkBytes(model);
            }
        }
    }

    /** Every rank has read its shards, and one of them what is not cut. */
    private static void checkBytes(ZooModel<?, ?> model) {
        RankedNetwork network = (RankedNetwork) model.getBlock();
        long whole = 0;
        for (Pair<String, Parameter> named : model.getBlock().getParameters()) {
            whole += named.getValue().getShape().size() * Float.BYTES;
        }
        assertEquals(network.getBytesRead(), whole); // nothing twice
    }

    @Test(timeOut = 60_000)
    public void djlServingGetsJson() throws Exception {
        try (ZooModel<Input, Output> model = load(Input.class, Output.class, 2)) {
            Input input = new Input();
            input.addProperty("Content-Type", "text/plain");
            input.add("data", texts.get(0));
            Output output = model.newPredictor().predict(input);
            float[] vector = JsonUtils.GSON.fromJson(output.getData().getAsString(), float[].class);
            assertEquals(EmbeddedText.largestDifference(vector, expected[0]), 0, TOLERANCE);
        }
    }

    @Test(timeOut = 60_000)
    public void moreRanksThanHeadsAreRefused() throws Exception {
        try {
            load(String.class, float[].class, 13).close();
            throw new AssertionError("13 ranks share 12 heads");
        } catch (IllegalArgumentException e) {
            assertTrue(e.getMessage().contains("tensor_parallel_degree 13"), e.getMessage());
            assertTrue(e.getMessage().contains("over 12 ranks at most"), e.getMessage());
        }
    }
}

package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.testing.Blocks;
import io.djltp.testing.PyTorch;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Scaled rotary positions against PyTorch's float64, and windows of attention against masks. */
public class RotaryScalingTest extends RecordedTest {

    private static final int LONGEST = 16;

    private static final List<String> SCALINGS =
            List.of(
                    "{'type': 'linear', 'factor': 3.5}",
                    "{'rope_type': 'dynamic', 'factor': 2.0}",
                    "{'rope_type': 'dynamic', 'factor': 1.0, 'type': 'dynamic'}",
                    "{'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0,"
                            + " 'high_freq_factor': 4.0, 'original_max_position_embeddings': 9}",
                    "{'rope_type': 'yarn', 'factor': 4.0}",
                    "{'rope_type': 'yarn', 'original_max_position_embeddings': 4}",
                    "{'type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 11,"
                            + " 'attention_factor': 1.5, 'beta_fast': 3, 'beta_slow': 0.5,"
                            + " 'truncate': false}",
                    "{'rope_type': 'yarn', 'factor': 40, 'mscale': 1.0, 'mscale_all_dim': 0.7,"
                            + " 'beta_fast': 2, 'beta_slow': 2, 'rope_theta': 100}");

    private record Case(String scaling, double base, int start, Shape shape) {}

    @Test(timeOut = 120_000)
    public void testEqualsPyTorch() throws Exception {
        List<Case> cases = new ArrayList<>();
        for (String scaling : SCALINGS) {
            String json = scaling.replace('\'', '"');
            cases.add(new Case(json, 100, 0, new Shape(1, 7, 3, 8)));
            cases.add(new Case(json, 10_000, 0, new Shape(2, 53, 1, 32)));
            cases.add(new Case(json, 500_000, 41, new Shape(1, 3, 2, 64)));
        }
        List<NDArray> heads = new ArrayList<>();
        List<String> lines = new ArrayList<>();
        for (Case each : cases) {
            NDArray x = manager.randomNormal(each.shape()).toType(DataType.FLOAT32, false);
            heads.add(x);
            JsonObject line = new JsonObject();
            line.add("scaling", new Gson().fromJson(each.scaling(), JsonObject.class));
            line.addProperty("base", each.base());
            line.addProperty("longest", LONGEST);
            line.addProperty("start", each.start());
            line.add("shape", new Gson().toJsonTree(each.shape().getShape()));
            line.add("heads", new Gson().toJsonTree(x.toFloatArray()));
            lines.add(line.toString());
        }
        List<String> results = PyTorch.run("rotary/scaling.py", lines);
        for (int i = 0; i < cases.size(); i++) {
            Case each = cases.get(i);
            double[] expected = new Gson().fromJson(results.get(i), double[].class);
            RotaryEmbedding rotary = rotary(each.scaling(), each.base());
            float[] found = rotary.apply(heads.get(i), each.start()).toFloatArray();
            Assert.assertEquals(found.length, expected.length);
            for (int k = 0; k < found.length; k++) {
                Assert.assertEquals(found[k], expected[k], 2e-6, each + " at " + k);
            }
        }
    }

    private static RotaryEmbedding rotary(String json, double base) {
        return RotaryEmbedding.builder()
                .optBase(base)
                .optScaling(RotaryScaling.parse(json, LONGEST))
                .build();
    }

    @Test
    public void testFactoriesAreWhatConfigsSay() {
        String llama3 = SCALINGS.get(3).replace('\'', '"');
        Assert.assertEquals(RotaryScaling.parse(llama3, 1000), RotaryScaling.llama3(8, 1, 4, 9));
        String original = ", \"original_max_position_embeddings\": 9";
        Assert.assertTrue(llama3.contains(original), llama3);
        Assert.assertEquals(
                RotaryScaling.parse(llama3.replace(original, ""), 1000),
                RotaryScaling.llama3(8, 1, 4, 1000));
        Assert.assertEquals(
                RotaryScaling.parse(llama3, 1000, 20), RotaryScaling.llama3(8, 1, 4, 20));
        Assert.assertEquals(
                RotaryScaling.parse("{\"type\": \"yarn\", \"factor\": 4}", 16),
                RotaryScaling.yarn(4, 16));
        Assert.assertEquals(
                RotaryScaling.parse("{\"type\": \"dynamic\", \"factor\": 4}", 16),
                RotaryScaling.dynamic(4, 16));
        Assert.assertEquals(
                RotaryScaling.parse("{\"type\": \"linear\", \"factor\": 4}", 16),
                RotaryScaling.linear(4));
        Assert.assertNull(RotaryScaling.parse("{\"type\": \"default\"}", 16));
        Assert.assertEquals(RotaryScaling.yarn(4, 16).getMaxPositions(16), 64);
        Assert.assertEquals(RotaryScaling.llama3(2, 1, 4, 9).getMaxPositions(16), 16);
        Assert.assertEquals(RotaryScaling.linear(2).getMaxPositions(16), 32);
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {"{'factor': 2}", "rope_type is null; known are default and dynamic, linear, llama3"},
            {"{'rope_type': 'su'}", "rope_type is \"su\"; known are"},
            {"{'rope_type': 'longrope'}", "short_factor of rotary positions must be a list"},
            {"{'rope_type': 'linear'}", "linear needs the field factor"},
            {"{'rope_type': 'linear', 'factor': 'x'}", "factor of rotary positions is \"x\""},
            {"{'rope_type': 'linear', 'factor': 0.5}", "must be 1 or more, not 0.5"},
            {"{'rope_type': 'linear', 'factor': 2, 'beta_fast': 1}", "has no field beta_fast"},
            {"{'type': 'llama3', 'factor': 2, 'low_freq_factor': 1}", "needs .. high_freq_factor"},
            {
                "{'type': 'llama3', 'factor': 2, 'low_freq_factor': 4, 'high_freq_factor': 1,"
                        + " 'original_max_position_embeddings': 8}",
                "high_freq_factor 1.0 above that"
            },
            {
                "{'type': 'dynamic', 'factor': 2, 'original_max_position_embeddings': 8}",
                "original_max_position_embeddings 8.0 is not"
            },
            {"{'type': 'yarn', 'factor': 2, 'beta_slow': 40}", "beta_fast 32.0 at least that"},
        };
    }

    @Test(dataProvider = "wrong")
    public void testRefuses(String json, String message) {
        Refusals.throwsArgument(
                () -> RotaryScaling.parse(json.replace('\'', '"'), LONGEST), message);
    }

    /** A window is what a mask of two axes says, on any input. */
    @Test(timeOut = 60_000)
    public void testWindowIsAMask() {
        int length = 7;
        int window = 3;
        NDArray x = manager.randomNormal(new Shape(2, length, 8));
        NDArray mask = manager.ones(new Shape(2, length, length));
        for (int t = 0; t < length; t++) {
            for (int s = 0; s <= t - window; s++) {
                mask.set(new ai.djl.ndarray.index.NDIndex(":, {}, {}", t, s), 0);
            }
        }
        NDArray padding = manager.create(new float[] {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0});
        padding = padding.reshape(2, length);
        ParallelMultiHeadAttention plain = attention(0);
        ParallelMultiHeadAttention slides = attention(window);
        ParallelMultiHeadAttention wide = attention(length);
        plain.initialize(manager, DataType.FLOAT32, x.getShape());
        for (ParallelMultiHeadAttention each : List.of(slides, wide)) {
            each.initialize(manager, DataType.FLOAT32, x.getShape());
            for (String name : plain.getParameters().keys()) {
                NDArray value = plain.getParameters().get(name).getArray();
                value.copyTo(each.getParameters().get(name).getArray());
            }
        }
        ParameterStore store = new ParameterStore(manager, false);
        NDArray expected = plain.forward(store, new NDList(x, mask), false).head();
        Assert.assertTrue(slides.forward(store, new NDList(x), false).head().allClose(expected));
        Assert.assertFalse(wide.forward(store, new NDList(x), false).head().allClose(expected));
        NDArray both = mask.mul(padding.reshape(2, 1, length));
        expected = plain.forward(store, new NDList(x, both), false).head();
        Assert.assertTrue(
                slides.forward(store, new NDList(x, padding), false).head().allClose(expected));
    }

    private static ParallelMultiHeadAttention attention(int window) {
        return Blocks.attention(8, 2).optCausal(true).optWindow(window).build();
    }
}

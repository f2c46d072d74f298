package io.djltp.nn.transformer;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;

import io.djltp.nn.attention.ParallelMultiHeadAttention;
import io.djltp.nn.attention.RotaryEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Attention and layers, unsharded, against PyTorch 1.13: output, gradients of inputs and of all
 * parameters. The numbers are made by {@code src/test/resources/transformers/reference.py}.
 */
public class TransformersEqualPyTorchTest {

    private static final long BATCH = 2;
    private static final long LENGTH = 4;
    private static final long MEMORY = 3;
    private static final long WIDTH = 8;
    private static final int HEADS = 4;
    private static final long HIDDEN = 10;

    // what stands for a bias of the scores, and for one with a mask before it
    private static final int[] ALIBI = {};
    private static final int[] ALIBI_PADDING = {1, 1, 1, 1, 1, 0, 0, 0};

    private final Map<String, float[]> reference = new HashMap<>();

    @BeforeClass
    public void read() throws IOException {
        try (InputStream is = getClass().getResourceAsStream("/transformers/reference.txt")) {
            String text = new String(is.readAllBytes(), StandardCharsets.UTF_8);
            for (String line : text.split("\n")) {
                String[] words = line.split(" ");
                float[] values = new float[words.length - 2];
                for (int i = 0; i < values.length; i++) {
                    values[i] = Float.parseFloat(words[i + 2]);
                }
                reference.put(words[0] + " " + words[1], values);
            }
        }
    }

    @DataProvider
    public Object[][] cases() {
        return new Object[][] {
            {"attention", attention().build(), null, false},
            {"causal", attention().optCausal(true).build(), null, false},
            {"padding", attention().build(), new int[] {1, 1, 1, 1, 1, 0, 0, 0}, false},
            {"alibi", attention().build(), ALIBI, false},
            {"alibi-causal", attention().optCausal(true).build(), ALIBI_PADDING, false},
            {"sinusoidal", new SinusoidalPositions(), null, false},
            {"post-norm", encoder(false), new int[] {1, 1, 1, 1, 1, 1, 0, 0}, false},
            {"pre-norm", encoder(true), new int[] {1, 1, 1, 1, 1, 1, 0, 0}, false},
            {"decoder", decoder(false), new int[] {1, 0, 1, 1, 1, 1}, true},
            {"decoder-pre-norm", decoder(true), new int[] {1, 0, 1, 1, 1, 1}, true},
            {
                "llama",
                ParallelTransformerDecoderLayer.llama(
                        WIDTH,
                        HEADS,
                        2,
                        HIDDEN,
                        RotaryEmbedding.builder().optBase(100).build(),
                        1e-5f),
                null,
                false
            },
            {
                "llama-rotary",
                grouped(6, 3, 4).optFusedQkv(true).optRotary(rotary(10000).build()).build(),
                null,
                false
            },
            {
                "gptj-rotary",
                grouped(2, 1, 6)
                        .optRotary(rotary(50).optDim(4).optInterleaved(true).build())
                        .build(),
                null,
                false
            },
            {
                "neox-rotary",
                grouped(2, 2, 6)
                        .optRotary(rotary(50).optDim(4).build())
                        .optQueryKeyNorm(1e-6f)
                        .build(),
                null,
                false
            },
        };
    }

    private static RotaryEmbedding.Builder rotary(double base) {
        return RotaryEmbedding.builder().optBase(base);
    }

    private static ParallelMultiHeadAttention.Builder attention() {
        return Blocks.attention(WIDTH, HEADS);
    }

    private static ParallelMultiHeadAttention.Builder grouped(int heads, int groups, int dim) {
        return Blocks.attention(WIDTH, heads)
                .optKeyValueHeads(groups)
                .optHeadDim(dim)
                .optBias(false)
                .optCausal(true);
    }

    private static ParallelMlp mlp(Block activation) {
        return Blocks.mlp(WIDTH, HIDDEN).optActivation(activation).build();
    }

    private static Block encoder(boolean preNorm) {
        return ParallelTransformerEncoderLayer.builder()
                .setAttention(attention().build())
                .setMlp(mlp(Activation.geluBlock()))
                .setNorm(() -> LayerNorm.builder().axis(2).build())
                .optPreNorm(preNorm)
                .build();
    }

    private static Block decoder(boolean preNorm) {
        return ParallelTransformerDecoderLayer.builder()
                .setAttention(attention().optCausal(true).build())
                .optCrossAttention(attention().optCrossAttention(true).build())
                .setMlp(mlp(Activation.reluBlock()))
                .setNorm(() -> LayerNorm.builder().axis(2).build())
                .optPreNorm(preNorm)
                .build();
    }

    @Test(dataProvider = "cases", timeOut = 60_000)
    public void isEqual(String name, Block block, int[] mask, boolean crossed) {
        try (NDManager manager = NDManager.newBaseManager()) {
            NDList inputs = new NDList(numbers(manager, 50, new Shape(BATCH, LENGTH, WIDTH)));
            if (crossed) {
                inputs.add(numbers(manager, 51, new Shape(BATCH, MEMORY, WIDTH)));
            }
            block.initialize(manager, DataType.FLOAT32, inputs.getShapes());
            List<Parameter> parameters = block.getParameters().values();
            for (int i = 0; i < parameters.size(); i++) {
                Parameter parameter = parameters.get(i);
                NDArray value = numbers(manager, i + 1, parameter.getShape());
                value.copyTo(parameter.getArray());
                parameter.getArray().setRequiresGradient(true);
            }
            inputs.forEach(input -> input.setRequiresGradient(true));
            NDList all = new NDList(inputs);
            if (mask != null && mask != ALIBI) {
                all.add(manager.create(mask, new Shape(BATCH, mask.length / BATCH)));
            }
            if (mask == ALIBI || mask == ALIBI_PADDING) {
                all.add(alibi(manager));
            }
            try (GradientCollector collector = Engine.getInstance().newGradientCollector()) {
                NDArray y = block.forward(new ParameterStore(manager, false), all, true).head();
                collector.backward(y.mul(numbers(manager, 99, y.getShape())).sum());
                check(name, "output", y);
            }
            for (int i = 0; i < inputs.size(); i++) {
                check(name, "input" + i, inputs.get(i).getGradient());
            }
            for (int i = 0; i < parameters.size(); i++) {
                NDArray gradient = parameters.get(i).getArray().getGradient();
                check(name, "parameter" + (i + 1), gradient);
            }
            String next = name + " parameter" + (parameters.size() + 1);
            Assert.assertNull(reference.get(next), next);
        }
    }

    private static NDArray alibi(NDManager manager) {
        float[] bias = new float[(int) (HEADS * LENGTH * LENGTH)];
        for (int i = 0; i < bias.length; i++) {
            double slope = Math.pow(2, -8.0 * (i / (LENGTH * LENGTH) + 1) / HEADS);
            bias[i] = (float) (-slope * Math.abs(i / LENGTH % LENGTH - i % LENGTH));
        }
        return manager.create(bias, new Shape(1, HEADS, LENGTH, LENGTH));
    }

    private void check(String name, String array, NDArray actual) {
        float[] expected = reference.get(name + " " + array);
        double largest = 0;
        for (float value : expected) {
            largest = Math.max(largest, Math.abs(value));
        }
        if (largest < 1e-12) { // of the bias of keys: it cancels out
            for (float value : actual.toFloatArray()) {
                Assert.assertEquals(value, 0, 1e-7, name + ", " + array);
            }
            return;
        }
        ArrayAssert.assertClose(actual.toFloatArray(), expected, 1e-5, name + ", " + array);
    }

    private static NDArray numbers(NDManager manager, int seed, Shape shape) {
        float[] numbers = new float[(int) shape.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = (float) ((i * 7 + seed * 13) % 23 / 23.0 - 0.5);
        }
        return manager.create(numbers, shape);
    }
}

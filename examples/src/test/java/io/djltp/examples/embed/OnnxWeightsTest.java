package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.onnx.proto.OnnxMl.GraphProto;
import ai.onnx.proto.OnnxMl.ModelProto;
import ai.onnx.proto.OnnxMl.NodeProto;
import ai.onnx.proto.OnnxMl.TensorProto;

import com.google.protobuf.ByteString;

import io.djltp.zoo.minilm.MiniLmModel;
import io.djltp.zoo.minilm.OnnxWeights;

import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Set;

/** The weights of a file have the names and shapes that they had before it was exported. */
public class OnnxWeightsTest {

    @Test(timeOut = 60_000)
    public void theModelHasAllWeightsOfBert() throws IOException {
        try (InputStream file = MiniLmModel.openOnnx();
                NDManager manager = NDManager.newBaseManager()) {
            OnnxWeights weights = OnnxWeights.read(file);
            Set<String> names = weights.names();
            // 6 layers of 16, 5 of the embeddings with the numbers of the positions, 2 unused
            assertEquals(names.size(), 6 * 16 + 6 + 2, names.toString());
            for (int layer = 0; layer < 6; layer++) {
                for (String name :
                        new String[] {"attention.self.query", "attention.output.LayerNorm"}) {
                    String prefix = "encoder.layer." + layer + "." + name;
                    assertTrue(names.contains(prefix + ".weight"), names.toString());
                    assertTrue(names.contains(prefix + ".bias"), names.toString());
                }
            }
            NDArray words =
                    weights.get(
                            manager, "embeddings.word_embeddings.weight", new Shape(30_522, 384));
            assertEquals(words.get("0").abs().sum().getFloat() > 0, true);
            String intermediate = "encoder.layer.3.intermediate.dense.weight";
            assertEquals(
                    weights.get(manager, intermediate, new Shape(1536, 384)).getShape(),
                    new Shape(1536, 384));
        }
    }

    private static TensorProto tensor(String name, long rows, long columns, float... values) {
        ByteBuffer raw = ByteBuffer.allocate(4 * values.length).order(ByteOrder.LITTLE_ENDIAN);
        raw.asFloatBuffer().put(values);
        return TensorProto.newBuilder()
                .setName(name)
                .addDims(rows)
                .addDims(columns)
                .setDataType(TensorProto.DataType.FLOAT_VALUE)
                .setRawData(ByteString.copyFrom(raw))
                .build();
    }

    @Test
    public void halfAFileIsRefused() {
        byte[] half = Arrays.copyOf(file(), file().length / 2);
        String message =
                expectThrows(
                                IOException.class,
                                () -> OnnxWeights.read(new ByteArrayInputStream(half)))
                        .getMessage();
        assertTrue(
                message.contains("cannot be read") && message.contains("ended unexpectedly"),
                message);
    }

    private static OnnxWeights small() throws IOException {
        return OnnxWeights.read(new ByteArrayInputStream(file()));
    }

    private static byte[] file() {
        NodeProto product =
                NodeProto.newBuilder()
                        .setOpType("MatMul")
                        .setName("/top/layer.1/dense/MatMul")
                        .addInput("x")
                        .addInput("onnx::MatMul_7")
                        .build();
        GraphProto graph =
                GraphProto.newBuilder()
                        .addInitializer(tensor("onnx::MatMul_7", 2, 3, 1, 2, 3, 4, 5, 6))
                        .addInitializer(tensor("top.table.weight", 1, 2, 8, 9))
                        .addNode(product)
                        .build();
        return ModelProto.newBuilder().setGraph(graph).build().toByteArray();
    }

    @Test(timeOut = 60_000)
    public void aLinearLayersWeightIsTurnedBack() throws IOException {
        try (NDManager manager = NDManager.newBaseManager()) {
            OnnxWeights weights = small();
            assertEquals(weights.names(), Set.of("top.layer.1.dense.weight", "top.table.weight"));
            NDArray dense = weights.get(manager, "top.layer.1.dense.weight", new Shape(3, 2));
            assertEquals(dense.toFloatArray(), new float[] {1, 4, 2, 5, 3, 6});
            NDArray table = weights.get(manager, "top.table.weight", new Shape(1, 2));
            assertEquals(table.toFloatArray(), new float[] {8, 9});
        }
    }

    @Test(timeOut = 60_000)
    public void whatIsNotThereIsNamed() throws IOException {
        try (NDManager manager = NDManager.newBaseManager()) {
            OnnxWeights weights = small();
            String missing = refusal(weights, manager, "top.bias", new Shape(2));
            assertTrue(missing.contains("no weight top.bias"), missing);
            String shape = refusal(weights, manager, "top.table.weight", new Shape(2, 1));
            assertTrue(shape.contains("(1, 2)") && shape.contains("(2, 1)"), shape);
        }
    }

    private static String refusal(
            OnnxWeights weights, NDManager manager, String name, Shape shape) {
        return expectThrows(IllegalArgumentException.class, () -> weights.get(manager, name, shape))
                .getMessage();
    }
}

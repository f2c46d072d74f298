package io.djltp.zoo.minilm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.onnx.proto.OnnxMl.GraphProto;
import ai.onnx.proto.OnnxMl.ModelProto;
import ai.onnx.proto.OnnxMl.NodeProto;
import ai.onnx.proto.OnnxMl.TensorProto;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * The weights in an ONNX file that PyTorch has exported, by the names that they had there. Needs
 * {@code org.tribuo:tribuo-util-onnx}, which has ONNX's messages as classes.
 *
 * <p>The exporter keeps the names of parameters, but not of a linear layer's weight [out, in]: it
 * becomes an initializer {@code onnx::MatMul_885} of shape [in, out]. Its name is in that of the
 * node that multiplies with it: {@code /encoder/layer.0/attention/self/query/MatMul}.
 */
public final class OnnxWeights {

    private static final String MATMUL = "MatMul";

    private final Map<String, TensorProto> tensors = new HashMap<>();
    private final Map<String, TensorProto> transposed = new HashMap<>();

    private OnnxWeights(GraphProto graph) {
        graph.getInitializerList().forEach(tensor -> tensors.put(tensor.getName(), tensor));
        for (NodeProto node : graph.getNodeList()) {
            if (node.getOpType().equals(MATMUL) && tensors.containsKey(node.getInput(1))) {
                transposed.put(weightOf(node.getName()), tensors.get(node.getInput(1)));
            }
        }
        tensors.keySet().removeIf(name -> name.startsWith("onnx::"));
    }

    /**
     * Reads a file.
     *
     * @param file the file
     * @return its weights
     * @throws IOException if it cannot be read, or is no ONNX file
     */
    public static OnnxWeights read(InputStream file) throws IOException {
        try {
            return new OnnxWeights(ModelProto.parseFrom(file).getGraph());
        } catch (IOException e) {
            throw new IOException("The ONNX file cannot be read: " + e.getMessage(), e);
        } catch (NoClassDefFoundError e) {
            throw new IOException(
                    "The ONNX file cannot be read, for its messages are not on the class path: add"
                            + " org.tribuo:tribuo-util-onnx",
                    e);
        }
    }

    private static String weightOf(String node) {
        return node.substring(1, node.length() - MATMUL.length()).replace('/', '.') + "weight";
    }

    /**
     * Returns the names of all weights.
     *
     * @return the names
     */
    public Set<String> names() {
        Set<String> names = new TreeSet<>(tensors.keySet());
        names.addAll(transposed.keySet());
        return names;
    }

    /**
     * Returns a weight.
     *
     * @param manager the manager of the result
     * @param name the name in PyTorch
     * @param shape the shape in PyTorch: of a linear layer [out, in]
     * @return the weight, float32
     * @throws IllegalArgumentException if there is none of the name, shape and type
     */
    public NDArray get(NDManager manager, String name, Shape shape) {
        boolean turned = transposed.containsKey(name);
        TensorProto tensor = turned ? transposed.get(name) : tensors.get(name);
        if (tensor == null) {
            throw new IllegalArgumentException(
                    "The ONNX file has no weight " + name + ", but " + names());
        }
        Shape stored =
                new Shape(tensor.getDimsList().stream().mapToLong(Long::longValue).toArray());
        Shape whole = turned ? new Shape(stored.get(1), stored.get(0)) : stored;
        ByteBuffer values =
                tensor.getRawData().asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
        if (!whole.equals(shape)
                || tensor.getDataType() != TensorProto.DataType.FLOAT_VALUE
                || values.remaining() != Float.BYTES * shape.size()) {
            throw new IllegalArgumentException(
                    "The weight "
                            + name
                            + " in the ONNX file is "
                            + whole
                            + " and not float32 "
                            + shape);
        }
        NDArray array = manager.create(values.asFloatBuffer(), stored);
        if (!turned) {
            return array;
        }
        try (array;
                NDArray view = array.transpose()) { // whose copy would have its order in memory
            return manager.create(view.toFloatArray(), whole);
        }
    }
}

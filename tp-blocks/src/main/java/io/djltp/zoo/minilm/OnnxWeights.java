package io.djltp.zoo.minilm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * The weights in an ONNX file that PyTorch has exported, by the names that they had there.
 *
 * <p>The exporter keeps the names of parameters, but not of a linear layer's weight [out, in]: it
 * becomes an initializer {@code onnx::MatMul_885} of shape [in, out]. Its name is in that of the
 * node that multiplies with it: {@code /encoder/layer.0/attention/self/query/MatMul}.
 */
public final class OnnxWeights {

    private static final String MATMUL = "MatMul";

    private final Map<String, OnnxTensor> tensors;
    private final Map<String, OnnxTensor> transposed = new HashMap<>();

    private OnnxWeights(OnnxFile graph) {
        tensors = graph.getInitializers();
        for (OnnxFile.Node node : graph.getNodes()) {
            if (node.operation().equals(MATMUL) && tensors.containsKey(node.inputs().get(1))) {
                transposed.put(weightOf(node.name()), tensors.get(node.inputs().get(1)));
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
            return new OnnxWeights(OnnxFile.read(ByteBuffer.wrap(file.readAllBytes())));
        } catch (IOException e) {
            throw new IOException("The ONNX file cannot be read: " + e.getMessage(), e);
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
        OnnxTensor tensor = transposed.getOrDefault(name, tensors.get(name));
        if (tensor == null) {
            throw new IllegalArgumentException(
                    "The ONNX file has no weight " + name + ", but " + names());
        }
        Shape stored = tensor.shape();
        boolean turned = transposed.containsKey(name);
        Shape whole = turned ? new Shape(stored.get(1), stored.get(0)) : stored;
        if (!whole.equals(shape) || !tensor.isWholeFloat32()) {
            throw new IllegalArgumentException(
                    "The weight "
                            + name
                            + " in the ONNX file is "
                            + whole
                            + " and not float32 "
                            + shape);
        }
        NDArray array = manager.create(tensor.elements().asFloatBuffer(), stored);
        if (!turned) {
            return array;
        }
        try (array;
                NDArray view = array.transpose()) { // whose copy would have its order in memory
            return manager.create(view.toFloatArray(), whole);
        }
    }
}

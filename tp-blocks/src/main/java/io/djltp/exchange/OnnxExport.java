package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.util.Preconditions;
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

import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.BiFunction;
import java.util.stream.LongStream;

/**
 * Writes a trained network as an ONNX file: a {@link io.djltp.nn.ClassificationHead} or a linear
 * layer, DJL's or ours, an {@link io.djltp.nn.EmbeddingBag}, what {@link #builder} is told about,
 * and {@link ai.djl.nn.SequentialBlock}s of these.
 *
 * <pre>{@code
 * OnnxExport.builder()
 *         .setInput("features", DataType.FLOAT32, new Shape(-1, 512))
 *         .optOutput("logits")
 *         .build()
 *         .write(model, path);
 * }</pre>
 *
 * <p>Opset 17, of ONNX 1.12 (2022). Weights are float32. If they have more than 1 GiB they are in a
 * file beside it, {@code path} with {@code .data} behind it, as ONNX's external data: protobuf ends
 * at 2 GiB. Needs {@code org.tribuo:tribuo-util-onnx}, which has ONNX's messages as classes.
 */
public final class OnnxExport {

    /** The version of ONNX's operators. */
    public static final int OPSET = 17;

    private final String input;
    private final DataType inputType;
    private final Shape inputShape;
    private final String output;
    private final long externalAbove;
    private final boolean overwrite;
    private final Map<String, BiFunction<Graph, String, String>> lambdas;

    private OnnxExport(Builder builder, String input) {
        this.input = input;
        inputType = builder.inputType;
        inputShape = builder.inputShape;
        output = builder.output;
        externalAbove = builder.externalAbove;
        overwrite = builder.overwrite;
        lambdas = Map.copyOf(builder.lambdas);
    }

    /**
     * Writes a network.
     *
     * @param model the model with the network, initialized; it may be in training
     * @param path the file
     * @throws FileAlreadyExistsException if the file is there, or that of its weights, and {@code
     *     optOverwrite(true)} does not let them be replaced; nothing is written
     * @throws IOException if it cannot be written
     * @throws IllegalArgumentException if the network has a block that is none of those above, or
     *     takes another data type than the input has
     */
    public void write(Model model, Path path) throws IOException {
        Block block = model.getBlock();
        String name = path.getFileName().toString();
        Path weights = path.resolveSibling(name + ".data");
        if (!overwrite) {
            WeightExport.checkNone(List.of(path, weights));
        }
        String location = weights.getFileName().toString();
        Path folder = Objects.requireNonNull(path.toAbsolutePath().getParent(), "folder");
        try (SideFolder side = SideFolder.in(folder)) {
            try (FileChannel external =
                    bytes(block) > externalAbove
                            ? FileChannel.open(
                                    side.resolve(location),
                                    StandardOpenOption.CREATE_NEW,
                                    StandardOpenOption.WRITE)
                            : null) {
                Graph graph = new Graph(external, location);
                String last = add(graph, block, "", input);
                ModelProto file =
                        graph.build(
                                model.getName(),
                                Graph.value(input, inputType, inputShape, "batch"),
                                last,
                                Graph.value(
                                        output, DataType.FLOAT32, outputShape(block), "output"));
                try (OutputStream out = Files.newOutputStream(side.resolve(name))) {
                    file.writeTo(out);
                }
                if (external != null) {
                    external.force(true);
                }
            }
            if (!side.replace(name).contains(location)) {
                Files.deleteIfExists(weights); // of the file that is replaced
            }
        }
    }

    /** Returns the shape of the output, -1 where it is another with another input. */
    private Shape outputShape(Block block) {
        long[] lengths = outputShape(block, 2).getShape().clone();
        Shape others = outputShape(block, 3);
        for (int i = 0; i < lengths.length; i++) {
            lengths[i] = lengths[i] == others.get(i) ? lengths[i] : -1;
        }
        return new Shape(lengths);
    }

    private Shape outputShape(Block block, long length) {
        long[] lengths =
                LongStream.of(inputShape.getShape()).map(n -> n < 0 ? length : n).toArray();
        return block.getOutputShapes(new Shape[] {new Shape(lengths)})[0];
    }

    private static long bytes(Block block) {
        return ParameterPaths.of(block).values().stream()
                .mapToLong(each -> each.getArray().getShape().size() * Float.BYTES)
                .sum();
    }

    /**
     * Creates a builder to build an {@code OnnxExport}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct an {@link OnnxExport}. */
    public static final class Builder {

        private @Nullable String input;
        private DataType inputType = DataType.FLOAT32;
        private Shape inputShape = new Shape();
        private String output = "output";
        private long externalAbove = 1L << 30;
        private boolean overwrite;
        private final Map<String, BiFunction<Graph, String, String>> lambdas =
                new LinkedHashMap<>();

        private Builder() {}

        /**
         * Sets the input.
         *
         * @param name its name in the file
         * @param type its data type, float32, int32 or int64
         * @param shape its shape, -1 where any length goes
         * @return this builder
         */
        public Builder setInput(String name, DataType type, Shape shape) {
            input = name;
            inputType = type;
            inputShape = shape;
            return this;
        }

        /**
         * Sets the name of the output. Default: {@code output}.
         *
         * @param name its name in the file
         * @return this builder
         */
        public Builder optOutput(String name) {
            output = name;
            return this;
        }

        /**
         * Says what a block computes that is only known as Java code, such as a {@link
         * ai.djl.nn.LambdaBlock}.
         *
         * @param path the path of the block, as {@link NameMapping#paths} names it, or the name of
         *     {@code LambdaBlock}s
         * @param nodes what adds its operators to the graph: gets the value that goes into the
         *     block, and returns the one that comes out
         * @return this builder
         */
        public Builder optBlock(String path, BiFunction<Graph, String, String> nodes) {
            lambdas.put(path, nodes);
            return this;
        }

        /**
         * Sets from how many bytes of weights on they are in a file of their own. Default: 1 GiB.
         *
         * @param bytes the number of bytes, below 2 GiB
         * @return this builder
         */
        public Builder optExternalAbove(long bytes) {
            Preconditions.checkArgument(
                    bytes < 1L << 31,
                    "An ONNX file has less than 2 GiB, 2147483648 bytes: weights of "
                            + bytes
                            + " bytes do not fit into it");
            externalAbove = bytes;
            return this;
        }

        /**
         * Lets a file that is there be replaced. Default: it is not, and nothing is written.
         *
         * @param overwrite whether it is replaced
         * @return this builder
         */
        public Builder optOverwrite(boolean overwrite) {
            this.overwrite = overwrite;
            return this;
        }

        /**
         * Builds the export.
         *
         * @return the export
         * @throws IllegalStateException if {@code org.tribuo:tribuo-util-onnx} is not on the class
         *     path
         */
        public OnnxExport build() {
            checkLibrary();
            return new OnnxExport(this, Errors.given(input, "An OnnxExport needs setInput"));
        }
    }

    /** Throws if the optional dependency with ONNX's messages, or what it needs, is missing. */
    private static void checkLibrary() {
        ClassLoader loader = OnnxExport.class.getClassLoader();
        try {
            Class.forName("ai.onnx.proto.OnnxMl", false, loader);
            Class.forName("com.google.protobuf.ByteString", false, loader);
        } catch (ClassNotFoundException | LinkageError e) {
            throw new IllegalStateException(
                    "OnnxExport needs org.tribuo:tribuo-util-onnx:4.3.2, which is not on the class"
                            + " path: add it to the dependencies of your project",
                    e);
        }
    }

    /** Adds a block to a graph, and returns the value that it computes. */
    private String add(Graph graph, Block block, String path, String from) {
        String key = block instanceof LambdaBlock lambda ? lambda.getName() : path;
        for (String name : List.of(path, key)) {
            if (lambdas.containsKey(name)) {
                return lambdas.get(name).apply(graph, from);
            }
        }
        if (block instanceof SequentialBlock) {
            String value = from;
            for (Map.Entry<String, Block> child : ParameterPaths.children(block).entrySet()) {
                value = add(graph, child.getValue(), name(path, child.getKey()), value);
            }
            return value;
        }
        if (block instanceof EmbeddingBag) {
            checkType(from, true, block);
            return bag(graph, block, path, from);
        }
        boolean margin = block instanceof ClassificationHead head && head.getMargin() != null;
        boolean known = block instanceof Linear; // of DJL, or one of ours
        boolean skips = // the bias is an output of its own
                known
                        && block.isInitialized()
                        && block.getOutputShapes(block.getInputShapes()).length > 1;
        boolean adapted = known && block.getChildren().size() > 0;
        if (!known || margin || skips || adapted) {
            throw Errors.argument(
                    "%s is a %s%s, which is not known in ONNX's operators: say what it computes"
                            + " with optBlock(\"%s\", ...)",
                    path.isEmpty() ? "The network" : path,
                    block.getClass().getSimpleName(),
                    margin
                            ? " with a margin"
                            : skips ? " with optSkipBiasAdd" : adapted ? " with an adapter" : "",
                    path);
        }
        checkType(from, false, block);
        return linear(graph, block, path, from);
    }

    /** Throws if the input of the network is not what ONNX's operator for a block takes. */
    private void checkType(String value, boolean takesIntegers, Block block) {
        boolean integers = inputType != DataType.FLOAT32;
        if (value.equals(input) && takesIntegers != integers) {
            throw Errors.argument(
                    "The input %s has %s, and a %s takes %s: say so with setInput",
                    input,
                    integers ? "integers" : "float32",
                    block.getClass().getSimpleName(),
                    integers ? "float32" : "int32 or int64");
        }
    }

    /** y = x Wᵀ + b over the last axis. */
    private String linear(Graph graph, Block block, String path, String from) {
        List<String> inputs = new ArrayList<>(List.of(from));
        for (String each : List.of("weight", "bias")) {
            if (block.getDirectParameters().contains(each)) {
                inputs.add(graph.weight(name(path, each), block.getDirectParameters().get(each)));
            }
        }
        if (inputShape.dimension() == 2) {
            return graph.add("Gemm", Map.of("transB", 1L), inputs.toArray(String[]::new));
        }
        // Gemm takes no other number of axes
        String product = graph.add("MatMul", from, graph.add("Transpose", inputs.get(1)));
        return inputs.size() == 2 ? product : graph.add("Add", product, inputs.get(2));
    }

    /** y = m R: the rows R [B, places, D], of which those of row number 0 do not count. */
    private static String bag(Graph graph, Block block, String path, String ids) {
        Parameter table = block.getDirectParameters().get("embedding");
        String numbers = graph.add("Cast", Map.of("to", 7L), ids); // to int64
        String rows = graph.add("Gather", graph.weight(name(path, "embedding"), table), numbers);
        String counts = graph.add("Not", graph.add("Equal", numbers, graph.integers(0)));
        String mask = graph.add("Cast", Map.of("to", 1L), counts); // to float32
        String axis = graph.integers(1);
        String product = graph.add("MatMul", graph.add("Unsqueeze", mask, axis), rows);
        return graph.add("Squeeze", product, axis); // [B, 1, D] to [B, D]
    }

    private static String name(String path, String name) {
        return path.isEmpty() ? name : path + "." + name;
    }

    /**
     * The operators and weights of an ONNX file that is being made. Values are known by name.
     * Weights are in the file, or one after another in a second one beside it, each from a multiple
     * of 4096 bytes on, so that it can be mapped into memory.
     */
    public static final class Graph {

        private static final int VERSION = 8; // of the format, with opset 17
        private static final long PAGE = 4096;

        private final GraphProto.Builder graph = GraphProto.newBuilder();
        private final @Nullable FileChannel external; // of weights in a second file
        private final String location; // the name of that file
        private int values;

        private Graph(@Nullable FileChannel external, String location) {
            this.external = external;
            this.location = location;
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
                    NodeProto.newBuilder()
                            .setOpType(operator)
                            .setName(operator + "_" + output)
                            .addAllInput(List.of(inputs))
                            .addOutput(output);
            attributes.forEach(
                    (name, number) ->
                            node.addAttribute(
                                    AttributeProto.newBuilder()
                                            .setName(name)
                                            .setType(AttributeProto.AttributeType.INT)
                                            .setI(number)));
            graph.addNode(node);
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
            return constant(
                    TensorProto.newBuilder()
                            .setDataType(TensorProto.DataType.FLOAT_VALUE)
                            .addFloatData(number));
        }

        private String constant(TensorProto.Builder tensor) {
            String name = "c" + values++;
            graph.addInitializer(tensor.setName(name));
            return name;
        }

        /**
         * Adds integers.
         *
         * @param numbers the integers
         * @return the value, int64 with one axis
         */
        public String integers(long... numbers) {
            return constant(
                    TensorProto.newBuilder()
                            .addDims(numbers.length)
                            .setDataType(TensorProto.DataType.INT64_VALUE)
                            .addAllInt64Data(LongStream.of(numbers).boxed().toList()));
        }

        /** Adds a weight by its name in the file, and returns its value, in float32. */
        String weight(String name, Parameter parameter) {
            try {
                graph.addInitializer(tensor(name, parameter));
                return name;
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        private ModelProto build(
                String name, ValueInfoProto input, String last, ValueInfoProto output) {
            graph.setName(name)
                    .addInput(input)
                    .addNode(
                            NodeProto.newBuilder()
                                    .setOpType("Identity")
                                    .addInput(last)
                                    .addOutput(output.getName()))
                    .addOutput(output);
            return ModelProto.newBuilder()
                    .setIrVersion(VERSION)
                    .setProducerName("DJL Tensor Parallel")
                    .addOpsetImport(OperatorSetIdProto.newBuilder().setVersion(OPSET))
                    .setGraph(graph)
                    .build();
        }

        private static ValueInfoProto value(String name, DataType type, Shape shape, String any) {
            TensorShapeProto.Builder lengths = TensorShapeProto.newBuilder();
            for (long length : shape.getShape()) {
                TensorShapeProto.Dimension.Builder axis = TensorShapeProto.Dimension.newBuilder();
                lengths.addDim(
                        length < 0
                                ? axis.setDimParam(any + lengths.getDimCount())
                                : axis.setDimValue(length));
            }
            TypeProto.Tensor.Builder tensor =
                    TypeProto.Tensor.newBuilder().setElemType(code(type)).setShape(lengths);
            return ValueInfoProto.newBuilder()
                    .setName(name)
                    .setType(TypeProto.newBuilder().setTensorType(tensor))
                    .build();
        }

        private static int code(DataType type) {
            return switch (type) {
                case FLOAT32 -> TensorProto.DataType.FLOAT_VALUE;
                case INT32 -> TensorProto.DataType.INT32_VALUE;
                case INT64 -> TensorProto.DataType.INT64_VALUE;
                default ->
                        throw new IllegalArgumentException(
                                "An ONNX file is written with float32, int32 and int64, not "
                                        + type);
            };
        }

        /** Adds a weight, whose bytes are written now where they have a file of their own. */
        private TensorProto tensor(String name, Parameter parameter) throws IOException {
            OutputTensor tensor =
                    OutputTensor.of(
                            name, DataType.FLOAT32, OutputTensor.Source.of(parameter, null));
            TensorProto.Builder proto =
                    TensorProto.newBuilder()
                            .setName(name)
                            .setDataType(TensorProto.DataType.FLOAT_VALUE);
            for (long length : tensor.shape().getShape()) {
                proto.addDims(length);
            }
            if (external == null) {
                try (ByteString.Output bytes = ByteString.newOutput((int) tensor.bytes())) {
                    WritableByteChannel channel = Channels.newChannel(bytes);
                    tensor.write(channel::write);
                    return proto.setRawData(bytes.toByteString()).build();
                }
            }
            external.position((external.position() + PAGE - 1) / PAGE * PAGE);
            proto.setDataLocation(TensorProto.DataLocation.EXTERNAL)
                    .addExternalData(entry("location", location))
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
    }
}

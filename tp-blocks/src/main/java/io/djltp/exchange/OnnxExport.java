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

import io.djltp.internal.files.SideFolder;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.BiFunction;

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
 * <p>Opset 17, of ONNX 1.12 (2022). Weights are float32. If they have more than 1 GiB they lie in a
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
    private final Map<String, BiFunction<OnnxGraph, String, String>> lambdas;

    private OnnxExport(Builder builder) {
        input = builder.input;
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
     *     takes another number of features or another data type than the input has, or {@code
     *     optBlock} names a block that it has not, or a name is used twice
     */
    public void write(Model model, Path path) throws IOException {
        Block block = model.getBlock();
        checkInput(block);
        Path weights = OnnxGraph.weights(path);
        if (!overwrite) {
            OutputFiles.checkNone(List.of(path, weights));
        }
        String name = path.getFileName().toString();
        try (SideFolder side = SideFolder.in(path.toAbsolutePath().getParent());
                OnnxGraph graph = new OnnxGraph(side.resolve(name), bytes(block) > externalAbove)) {
            Blocks blocks = new Blocks(graph);
            String last = blocks.add(block, "", input);
            if (!blocks.unused.isEmpty()) {
                throw new IllegalArgumentException(
                        "optBlock names "
                                + String.join(", ", blocks.unused)
                                + ", and the network has no such block: children are named without"
                                + " DJL's count, and numbered where several have one name");
            }
            graph.write(model.getName(), input, inputType, inputShape, last, output);
            if (!side.replace(name).contains(weights.getFileName().toString())) {
                Files.deleteIfExists(weights); // of the file that is replaced
            }
        }
    }

    /** A file with another number of features would be written, and run by nobody. */
    private void checkInput(Block block) {
        Shape[] trained = block.isInitialized() ? block.getInputShapes() : new Shape[0];
        if (trained.length != 1 || trained[0].dimension() == 0 || inputShape.dimension() == 0) {
            return;
        }
        long features = trained[0].get(trained[0].dimension() - 1);
        long declared = inputShape.get(inputShape.dimension() - 1);
        if (inputType == DataType.FLOAT32
                && features > 0
                && declared >= 0
                && features != declared) {
            throw new IllegalArgumentException(
                    String.format(
                            Locale.ROOT,
                            "The input %s %s has %d features, and the network takes %d",
                            input,
                            inputShape,
                            declared,
                            features));
        }
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

        private String input;
        private DataType inputType;
        private Shape inputShape;
        private String output = "output";
        private long externalAbove = 1L << 30;
        private boolean overwrite;
        private final Map<String, BiFunction<OnnxGraph, String, String>> lambdas =
                new LinkedHashMap<>();

        private Builder() {}

        /**
         * Sets the input.
         *
         * @param name its name in the file
         * @param type its data type, float32, int32 or int64
         * @param shape its shape, -1 where any length goes
         * @return this builder
         * @throws IllegalArgumentException if the shape has no axis
         */
        public Builder setInput(String name, DataType type, Shape shape) {
            Preconditions.checkArgument(
                    shape.dimension() > 0,
                    "The input "
                            + name
                            + " needs the shape of a batch, such as [-1, features], not ()");
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
         * @param path the path of the block, as {@link ParameterPaths} names it, or the name of
         *     {@code LambdaBlock}s
         * @param nodes what adds its operators to the graph: gets the value that goes into the
         *     block, and returns the one that comes out
         * @return this builder
         */
        public Builder optBlock(String path, BiFunction<OnnxGraph, String, String> nodes) {
            lambdas.put(path, nodes);
            return this;
        }

        /**
         * Sets from how many bytes of weights on they lie in a file of their own. Default: 1 GiB.
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
         */
        public OnnxExport build() {
            Preconditions.checkArgument(input != null, "An OnnxExport needs setInput");
            return new OnnxExport(this);
        }
    }

    /** Which of ONNX's operators the blocks of a network are. */
    private final class Blocks {

        private final OnnxGraph graph;
        private final Set<String> unused = new TreeSet<>(lambdas.keySet()); // no block needed them

        Blocks(OnnxGraph graph) {
            this.graph = graph;
        }

        /** Adds a block, and returns the value that it computes. */
        String add(Block block, String path, String from) {
            String key = block instanceof LambdaBlock ? ((LambdaBlock) block).getName() : path;
            BiFunction<OnnxGraph, String, String> said =
                    lambdas.getOrDefault(path, lambdas.get(key));
            if (said != null) {
                unused.remove(lambdas.containsKey(path) ? path : key);
                String value = said.apply(graph, from);
                if (value == null) {
                    throw new IllegalArgumentException(
                            "What optBlock says of " + key + " returns no value");
                }
                return value;
            }
            if (block instanceof SequentialBlock) {
                String value = from;
                for (Map.Entry<String, Block> child : ParameterPaths.children(block).entrySet()) {
                    String name = path.isEmpty() ? child.getKey() : path + "." + child.getKey();
                    value = add(child.getValue(), name, value);
                }
                return value;
            }
            if (block instanceof EmbeddingBag) {
                checkInput(from, true, block);
                return bag(block, path, from);
            }
            boolean linear =
                    block instanceof Linear
                            || block instanceof ColumnParallelLinear
                            || block instanceof RowParallelLinear;
            boolean head = block instanceof ClassificationHead;
            if (!linear && !head || head && ((ClassificationHead) block).getMargin() != null) {
                throw refusal(block, path, head ? " with a margin" : "");
            }
            if (block.isInitialized() && block.getOutputShapes(block.getInputShapes()).length > 1) {
                throw refusal(
                        block, path, " with optSkipBiasAdd"); // the bias is an output of its own
            }
            checkInput(from, false, block);
            return linear(block, path, from);
        }

        private static IllegalArgumentException refusal(Block block, String path, String how) {
            return new IllegalArgumentException(
                    String.format(
                            "%s is a %s%s, which is not known in ONNX's operators: say what it"
                                    + " computes with optBlock(\"%s\", ...)",
                            path.isEmpty() ? "The network" : path,
                            block.getClass().getSimpleName(),
                            how,
                            path));
        }

        /** Refuses an input of the network that ONNX's operator for a block does not take. */
        private void checkInput(String value, boolean takesIntegers, Block block) {
            boolean integers = inputType != DataType.FLOAT32;
            if (value.equals(input) && takesIntegers != integers) {
                throw new IllegalArgumentException(
                        String.format(
                                "The input %s has %s, and a %s takes %s: say so with setInput",
                                input,
                                integers ? "integers" : "float32",
                                block.getClass().getSimpleName(),
                                integers ? "float32" : "int32 or int64"));
            }
        }

        /** y = x Wᵀ + b over the last axis. */
        private String linear(Block block, String path, String from) {
            Map<String, Parameter> own = new HashMap<>();
            block.getDirectParameters().forEach(each -> own.put(each.getKey(), each.getValue()));
            String weight = graph.weight(name(path, "weight"), own.get("weight"));
            String bias =
                    own.containsKey("bias")
                            ? graph.weight(name(path, "bias"), own.get("bias"))
                            : null;
            if (inputShape.dimension() != 2) { // Gemm takes no other number of axes
                String product = graph.add("MatMul", from, graph.add("Transpose", weight));
                return bias == null ? product : graph.add("Add", product, bias);
            }
            Map<String, Long> turned = Map.of("transB", 1L);
            return bias == null
                    ? graph.add("Gemm", turned, from, weight)
                    : graph.add("Gemm", turned, from, weight, bias);
        }

        /** y = m R: the rows R [B, places, D], of which those of row number 0 do not count. */
        private String bag(Block block, String path, String ids) {
            Parameter table = block.getDirectParameters().get("embedding");
            String numbers = graph.add("Cast", Map.of("to", 7L), ids); // to int64
            String rows =
                    graph.add("Gather", graph.weight(name(path, "embedding"), table), numbers);
            String zero = graph.integers(DataType.INT64, 0);
            String counts = graph.add("Not", graph.add("Equal", numbers, zero));
            String mask = graph.add("Cast", Map.of("to", 1L), counts); // to float32
            String axis = graph.integers(DataType.INT64, 1);
            String product = graph.add("MatMul", graph.add("Unsqueeze", mask, axis), rows);
            return graph.add("Squeeze", product, axis); // [B, 1, D] to [B, D]
        }

        private static String name(String path, String parameter) {
            return path.isEmpty() ? parameter : path + "." + parameter;
        }
    }
}

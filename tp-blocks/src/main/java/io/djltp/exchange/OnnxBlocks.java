package io.djltp.exchange;

import ai.djl.ndarray.types.DataType;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/** Which of ONNX's operators a block is. */
final class OnnxBlocks {

    private final OnnxGraph graph;
    private final Map<String, OnnxNodes> others;
    private final Set<String> unused;
    private final String networkInput;
    private final boolean integers; // the network takes, not float32
    private final boolean matrices; // values are [rows, features]

    /**
     * Creates the translation of a network.
     *
     * @param graph where the operators go
     * @param others what adds those of other blocks, by path or name
     * @param input the input of the network
     * @param type its data type
     * @param matrices whether values are [rows, features]
     */
    OnnxBlocks(
            OnnxGraph graph,
            Map<String, OnnxNodes> others,
            String input,
            DataType type,
            boolean matrices) {
        this.graph = graph;
        this.matrices = matrices;
        this.others = others;
        networkInput = input;
        integers = type != DataType.FLOAT32;
        unused = new TreeSet<>(others.keySet());
    }

    /** Returns which of the others no block has needed. */
    Set<String> getUnused() {
        return unused;
    }

    /** Adds a block, and returns the value that it computes. */
    String add(Block block, String path, String input) {
        String key = block instanceof LambdaBlock ? ((LambdaBlock) block).getName() : path;
        OnnxNodes said = others.getOrDefault(path, others.get(key));
        if (said != null) {
            unused.remove(others.containsKey(path) ? path : key);
            String value = said.add(graph, input);
            if (value == null) {
                throw new IllegalArgumentException(
                        "What optBlock says of " + key + " returns no value");
            }
            return value;
        }
        if (block instanceof SequentialBlock) {
            String value = input;
            for (Map.Entry<String, Block> child : ParameterPaths.children(block).entrySet()) {
                String name = path.isEmpty() ? child.getKey() : path + "." + child.getKey();
                value = add(child.getValue(), name, value);
            }
            return value;
        }
        if (block instanceof EmbeddingBag) {
            checkInput(input, true, block);
            return bag(block, path, input);
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
            throw refusal(block, path, " with optSkipBiasAdd"); // the bias is an output of its own
        }
        checkInput(input, false, block);
        return linear(block, path, input);
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
    private void checkInput(String input, boolean takesIntegers, Block block) {
        if (input.equals(networkInput) && takesIntegers != integers) {
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
    private String linear(Block block, String path, String input) {
        Map<String, Parameter> own = new HashMap<>();
        block.getDirectParameters().forEach(each -> own.put(each.getKey(), each.getValue()));
        String weight = graph.weight(name(path, "weight"), own.get("weight"));
        String bias =
                own.containsKey("bias") ? graph.weight(name(path, "bias"), own.get("bias")) : null;
        if (!matrices) { // Gemm takes no other number of axes
            String product = graph.add("MatMul", input, graph.add("Transpose", weight));
            return bias == null ? product : graph.add("Add", product, bias);
        }
        Map<String, Long> turned = Map.of("transB", 1L);
        return bias == null
                ? graph.add("Gemm", turned, input, weight)
                : graph.add("Gemm", turned, input, weight, bias);
    }

    /** y = m R: the rows R [B, places, D], of which those of row number 0 do not count. */
    private String bag(Block block, String path, String ids) {
        Parameter table = block.getDirectParameters().get("embedding");
        String numbers = graph.add("Cast", Map.of("to", 7L), ids); // to int64
        String rows = graph.add("Gather", graph.weight(name(path, "embedding"), table), numbers);
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

package io.djltp.torch;

import ai.djl.ndarray.NDArray;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.pytorch.Edge;
import org.bytedeco.pytorch.SymInt;
import org.bytedeco.pytorch.SymIntArrayRef;
import org.bytedeco.pytorch.Tensor;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The graph that libtorch has recorded of a forward pass, copied from a result down to the leaves:
 * what was computed of what. It says how a network was executed, whatever its blocks look like.
 *
 * <p>Nodes are known by their address, which is theirs as long as an array that was computed
 * through them is open.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class AutogradGraph {

    private final Map<Long, Node> nodes = new LinkedHashMap<>();
    private Map<Long, Set<Long>> consumers; // made when they are asked for

    private AutogradGraph() {}

    /**
     * An operation of the forward pass.
     *
     * @param address where libtorch keeps it
     * @param name the name of its backward function, such as {@code SoftmaxBackward0}
     * @param shape the shape of its result
     * @param inputs the operations whose results it has used, and leaves; no constants
     */
    public record Node(long address, String name, long[] shape, List<Long> inputs) {

        /**
         * Returns the name of the operation.
         *
         * @return the name without that of its backward function, such as {@code Softmax}
         */
        public String operation() {
            return name.replaceAll("Backward\\d*$", "");
        }
    }

    /**
     * Copies the graph of results.
     *
     * @param results the results
     * @return the graph; empty if no result depends on something that requires a gradient
     */
    public static AutogradGraph of(Iterable<NDArray> results) {
        AutogradGraph graph = new AutogradGraph();
        try (TorchScope scope = TorchScope.open()) {
            for (NDArray result : results) {
                org.bytedeco.pytorch.Node first = TensorView.of(result).tensor().grad_fn();
                if (first != null) {
                    graph.walk(first);
                }
            }
        }
        return graph;
    }

    /**
     * Returns the node that an array comes from.
     *
     * @param array the array
     * @return the address of the node, or 0 if the array is a leaf or needs no gradient
     */
    public static long nodeOf(NDArray array) {
        try (TorchScope scope = TorchScope.open()) {
            org.bytedeco.pytorch.Node node = TensorView.of(array).tensor().grad_fn();
            return node == null ? 0 : node.address();
        }
    }

    /**
     * Returns the number that libtorch has given to the operation of an array: it counts those that
     * the thread has recorded.
     *
     * @param array the array
     * @return the number, or 0 if the array is a leaf or needs no gradient
     */
    public static long numberOf(NDArray array) {
        try (TorchScope scope = TorchScope.open()) {
            org.bytedeco.pytorch.Node node = TensorView.of(array).tensor().grad_fn();
            return node == null ? 0 : node.sequence_nr();
        }
    }

    /**
     * Returns the node under which a graph knows a leaf.
     *
     * @param leaf an array that requires a gradient and was not computed
     * @return the address of the node
     */
    public static long nodeOfLeaf(NDArray leaf) {
        try (TorchScope scope = TorchScope.open();
                Autograd.GradMode mode = Autograd.gradMode(true)) {
            Tensor tensor = TensorView.of(leaf).tensor();
            return tensor.view_as(tensor).grad_fn().next_edge(0).function().address();
        }
    }

    /**
     * Returns a node.
     *
     * @param address its address
     * @return the node, or {@code null} if no result depends on it
     */
    public Node get(long address) {
        return nodes.get(address);
    }

    /**
     * Returns all nodes, from the results down.
     *
     * @return the nodes
     */
    public Iterable<Node> nodes() {
        return nodes.values();
    }

    /**
     * Returns what was computed of each node.
     *
     * @return the addresses of the nodes that have used the result of a node, by its address
     */
    public Map<Long, Set<Long>> consumers() {
        if (consumers == null) {
            consumers = new HashMap<>();
            for (Node node : nodes.values()) {
                for (long input : node.inputs()) {
                    consumers.computeIfAbsent(input, key -> new HashSet<>()).add(node.address());
                }
            }
        }
        return consumers;
    }

    private void walk(org.bytedeco.pytorch.Node first) {
        Deque<org.bytedeco.pytorch.Node> open = new ArrayDeque<>();
        open.add(first);
        while (!open.isEmpty()) {
            org.bytedeco.pytorch.Node node = open.poll();
            if (nodes.containsKey(node.address())) {
                continue;
            }
            List<Long> inputs = new ArrayList<>();
            for (int i = 0; i < node.num_outputs(); i++) {
                Edge edge = node.next_edge(i);
                if (edge.is_valid()) {
                    org.bytedeco.pytorch.Node input = edge.function();
                    inputs.add(input.address());
                    open.add(input);
                }
            }
            nodes.put(node.address(), new Node(node.address(), name(node), shapeOf(node), inputs));
        }
    }

    private static String name(org.bytedeco.pytorch.Node node) {
        try (BytePointer name = node.name()) {
            return name.getString();
        }
    }

    private static long[] shapeOf(org.bytedeco.pytorch.Node node) {
        if (node.num_inputs() == 0) {
            return new long[0];
        }
        SymIntArrayRef sizes = node.input_metadata(0).shape_as_dim_vector();
        long[] shape = new long[(int) sizes.size()];
        for (int i = 0; i < shape.length; i++) {
            try (SymInt size = sizes.get(i)) {
                shape[i] = size.expect_int();
            }
        }
        return shape;
    }
}

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
     * @param shapes the shape of each of its results
     * @param inputs the operations whose results it has used, and leaves; no constants
     * @param edges where each of them is used
     */
    public record Node(
            long address, String name, long[][] shapes, List<Long> inputs, List<Use> edges) {

        /**
         * A result that was used.
         *
         * @param operand the number of the operand, among those that may have a gradient
         * @param source the operation it is a result of
         * @param result the number of the result
         */
        public record Use(int operand, long source, int result) {}

        /**
         * Returns the shape of the result.
         *
         * @return the shape of the first result
         */
        public long[] shape() {
            return shapes[0];
        }

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

    /**
     * Returns all nodes, each behind what it was computed of.
     *
     * @return the nodes, leaves first
     */
    public List<Node> fromTheLeaves() {
        List<Node> order = new ArrayList<>(nodes.size());
        Map<Long, Integer> open = new HashMap<>(); // how many inputs are not in the order yet
        for (Node node : nodes.values()) {
            int inputs = new HashSet<>(node.inputs()).size();
            open.put(node.address(), inputs);
            if (inputs == 0) {
                order.add(node);
            }
        }
        for (int i = 0; i < order.size(); i++) { // it grows on the way
            for (long next : consumers().getOrDefault(order.get(i).address(), Set.of())) {
                if (open.merge(next, -1, Integer::sum) == 0) {
                    order.add(get(next));
                }
            }
        }
        return order;
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
            List<Node.Use> uses = new ArrayList<>();
            for (int i = 0; i < node.num_outputs(); i++) {
                Edge edge = node.next_edge(i);
                if (edge.is_valid()) {
                    edge = behindEmptySlice(edge);
                    org.bytedeco.pytorch.Node input = edge.function();
                    inputs.add(input.address());
                    uses.add(new Node.Use(i, input.address(), edge.input_nr()));
                    open.add(input);
                }
            }
            String name = name(node);
            long[][] shapes = shapesOf(node);
            shapes[0] = withAllFeatures(node, name, shapes[0]);
            nodes.put(node.address(), new Node(node.address(), name, shapes, inputs, uses));
        }
    }

    /** {@link OneDnnLinear} takes the first 0 features of what it computes with all of. */
    private static Edge behindEmptySlice(Edge edge) {
        org.bytedeco.pytorch.Node slice = edge.function();
        long[] shape = slice.num_inputs() == 1 ? shapeOf(slice, 0) : new long[0];
        boolean empty = shape.length > 1 && shape[shape.length - 1] == 0;
        return empty && name(slice).equals("SliceBackward0") ? slice.next_edge(0) : edge;
    }

    /** Returns the shape of a view of such features, as if they were all. */
    private static long[] withAllFeatures(
            org.bytedeco.pytorch.Node node, String name, long[] shape) {
        boolean none = shape.length == 2 && shape[0] * shape[1] == 0 && node.num_outputs() > 0;
        Edge edge = none ? node.next_edge(0) : null;
        Edge behind = edge == null || !edge.is_valid() ? edge : behindEmptySlice(edge);
        if (behind == edge) {
            return shape;
        }
        long[] all = shapeOf(behind.function(), behind.input_nr());
        boolean transposed = name.equals("TBackward0");
        return transposed
                ? new long[] {all[1], all[0]}
                : new long[] {shape[0], all[all.length - 1]};
    }

    private static String name(org.bytedeco.pytorch.Node node) {
        try (BytePointer name = node.name()) {
            return name.getString();
        }
    }

    private static long[][] shapesOf(org.bytedeco.pytorch.Node node) {
        long[][] shapes = new long[Math.max(1, node.num_inputs())][0];
        for (int i = 0; i < node.num_inputs(); i++) {
            shapes[i] = shapeOf(node, i); // of which the gradient is an input
        }
        return shapes;
    }

    private static long[] shapeOf(org.bytedeco.pytorch.Node node, int result) {
        SymIntArrayRef sizes = node.input_metadata(result).shape_as_dim_vector();
        long[] shape = new long[(int) sizes.size()];
        for (int i = 0; i < shape.length; i++) {
            try (SymInt size = sizes.get(i)) {
                shape[i] = size.expect_int();
            }
        }
        return shape;
    }
}

package io.djltp.torch;

import ai.djl.ndarray.NDArray;

import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.LongPointer;
import org.bytedeco.pytorch.Edge;
import org.bytedeco.pytorch.Node;
import org.bytedeco.pytorch.SymIntArrayRef;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * What the autograd graphs of two passes have in common that have done the same: the operations and
 * what each has used. Where an array is a part of a larger one, and on the way from there to where
 * it is whole again, the shapes and the axes too.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class GraphStructure {

    private static final Map<Long, String> NAMES = new ConcurrentHashMap<>(); // by C++ class

    private final Map<Long, Integer> numbers = new HashMap<>(); // by node, in the order of the walk
    private final List<Node> nodes = new ArrayList<>();
    private final List<List<Integer>> consumers = new ArrayList<>();
    private long hash = 17;

    private GraphStructure() {}

    /**
     * Returns a hash of the graph of a result.
     *
     * @param result the result
     * @param parts the addresses of the nodes from which on arrays are parts
     * @param ends the addresses of the nodes where they are taken
     * @return the hash; of what needs no gradient, always the same
     */
    public static long of(NDArray result, Set<Long> parts, Set<Long> ends) {
        GraphStructure structure = new GraphStructure();
        try (TorchScope scope = TorchScope.open()) {
            Node first = TensorView.of(result).tensor().grad_fn();
            if (first != null) {
                structure.number(first);
            }
            for (int i = 0; i < structure.nodes.size(); i++) { // it grows on the way
                structure.addOperation(i);
            }
            structure.addParts(parts, ends);
        }
        return structure.hash;
    }

    private int number(Node node) {
        Integer known = numbers.putIfAbsent(node.address(), nodes.size());
        if (known != null) {
            return known;
        }
        nodes.add(node);
        consumers.add(new ArrayList<>(2));
        return nodes.size() - 1;
    }

    /** Returns the name of an operation, which is that of its C++ class, and takes long to get. */
    private static String nameOf(Node node) {
        long type = new BytePointer(node).getLong(0); // where the methods of the class are
        return NAMES.computeIfAbsent(
                type,
                key -> {
                    try (BytePointer name = node.name()) {
                        return name.getString();
                    }
                });
    }

    private void addOperation(int number) {
        Node node = nodes.get(number);
        mix(nameOf(node).hashCode());
        int count = node.num_outputs();
        for (int i = 0; i < count; i++) {
            Edge edge = node.next_edge(i);
            if (edge.is_valid()) {
                int input = number(edge.function());
                consumers.get(input).add(number);
                mix(31L * input + edge.input_nr());
            }
            mix(i);
        }
    }

    private void addParts(Set<Long> parts, Set<Long> ends) {
        boolean[] seen = new boolean[nodes.size()];
        Deque<Integer> open = new ArrayDeque<>();
        for (int i = 0; i < seen.length && !parts.isEmpty(); i++) {
            if (parts.contains(nodes.get(i).address())) {
                open.add(i);
                seen[i] = true;
            }
        }
        while (!open.isEmpty()) {
            int number = open.poll();
            mix(number);
            addArguments(nodes.get(number));
            for (int next : consumers.get(number)) {
                if (!seen[next] && !ends.contains(nodes.get(next).address())) {
                    seen[next] = true;
                    open.add(next);
                }
            }
        }
    }

    private void addArguments(Node node) {
        if (OperationAxes.isKnown(nameOf(node))) {
            mix(Arrays.hashCode(OperationAxes.keyOf(node)));
        }
        if (node.num_inputs() > 0) {
            SymIntArrayRef sizes = node.input_metadata(0).shape_as_dim_vector();
            long[] shape = new long[(int) sizes.size()];
            if (shape.length > 0) {
                new LongPointer(sizes.data()).get(shape); // a length that is known is that number
            }
            mix(Arrays.hashCode(shape));
        }
    }

    private void mix(long value) {
        hash = 31 * hash + value;
        hash ^= hash >>> 32; // nothing of a long chain is shifted out
    }
}

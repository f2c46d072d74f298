package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;

import org.bytedeco.pytorch.Edge;
import org.bytedeco.pytorch.Node;
import org.bytedeco.pytorch.Tensor;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.Set;

/**
 * What was computed of what, in the graph that libtorch has recorded. Nodes are known by their
 * address, which is theirs as long as an array that was computed through them is open.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class AutogradGraph {

    private AutogradGraph() {}

    /**
     * Returns the nodes that results depend on.
     *
     * @param results the results
     * @return the addresses of their nodes, of all operations before, and of the leaves; none if no
     *     result depends on something that requires a gradient
     */
    public static Set<Long> nodesOf(Iterable<NDArray> results) {
        Set<Long> reached = new HashSet<>();
        try (TorchScope scope = TorchScope.open()) {
            Deque<Node> open = new ArrayDeque<>();
            for (NDArray result : results) {
                Node first = TensorView.of(result).tensor().grad_fn();
                if (first != null) {
                    open.add(first);
                }
            }
            while (!open.isEmpty()) {
                Node node = open.poll();
                if (reached.add(node.address())) {
                    for (int i = 0; i < node.num_outputs(); i++) {
                        Edge edge = node.next_edge(i);
                        if (edge.is_valid()) {
                            open.add(edge.function());
                        }
                    }
                }
            }
        }
        return reached;
    }

    /**
     * Returns the node that an array comes from.
     *
     * @param array the array
     * @return the address of the node, or 0 if the array is a leaf or needs no gradient
     */
    public static long nodeOf(NDArray array) {
        try (TorchScope scope = TorchScope.open()) {
            Node node = TensorView.of(array).tensor().grad_fn();
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
}

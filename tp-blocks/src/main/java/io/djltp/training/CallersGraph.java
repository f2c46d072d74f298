package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.torch.AutogradGraph;
import io.djltp.torch.TensorView;

import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The graph of what is to be differentiated, as the caller has computed it: down to the losses of
 * the ranks, whose own graphs it has nothing of, and to whatever else the caller has put in.
 *
 * <p>Leaves are known by their address, as long as what is differentiated is open.
 */
final class CallersGraph implements AutoCloseable {

    private final Map<Long, Shape> leaves = new HashMap<>();
    private final NDArray view; // of a leaf, or null

    /**
     * Looks at a graph.
     *
     * @param target what is to be differentiated
     */
    CallersGraph(NDArray target) {
        boolean leaf = isLeaf(target);
        view = leaf ? target.reshape(target.getShape()) : null; // a leaf alone has no graph
        for (AutogradGraph.Node node : AutogradGraph.of(List.of(leaf ? view : target)).nodes()) {
            if (node.inputs().isEmpty()) {
                leaves.put(node.address(), new Shape(node.shape()));
            }
        }
    }

    private static boolean isLeaf(NDArray array) {
        return TensorView.of(array).requiresGradient() && AutogradGraph.nodeOf(array) == 0;
    }

    /** Returns whether an array is a leaf of the graph. */
    boolean has(NDArray array) {
        return leaves.containsValue(array.getShape()) // known without a look at the array
                && isLeaf(array)
                && leaves.containsKey(AutogradGraph.nodeOfLeaf(array));
    }

    /** Returns the number of leaves. */
    int size() {
        return leaves.size();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (view != null) {
            view.close();
        }
    }
}

package io.djltp.search;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.ParameterList;
import ai.djl.nn.core.Linear;
import ai.djl.util.NativeResource;

import io.djltp.cut.Cut;
import io.djltp.head.Margin;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;
import io.djltp.internal.head.ChunkedEvaluation;
import io.djltp.internal.parameters.HeldParameters;
import io.djltp.nn.ClassificationHead;

import org.jspecify.annotations.Nullable;

/**
 * Finds the best classes of a linear layer with many of them, such as the last layer of a trained
 * classifier, outside of a trainer. A search is exact, and takes the time of reading the weight
 * once: the logits are computed a chunk of classes at a time, in memory that the next search uses
 * again, and only the best so far are kept.
 *
 * <pre>{@code
 * try (ClassSearch search = ClassSearch.of(head);
 *         TopClasses best = search.classify(features, 5)) {
 *     long[] classes = best.classes().toLongArray();
 *     float[] probabilities = best.probabilities().toFloatArray();
 * }
 * }</pre>
 *
 * <p>Uses all intra-op threads of libtorch for one search, and is safe to be shared by threads,
 * whose searches follow each other. The arrays of the layer stay its own: keep its model open until
 * the search is closed.
 */
public final class ClassSearch implements AutoCloseable {

    private final NDArray weight;
    private final @Nullable NDArray bias;
    private final Shape shape; // of the weight, known also after it is closed
    private final ChunkedEvaluation chunks;
    private boolean closed;

    ClassSearch(NDArray weight, @Nullable NDArray bias, @Nullable Margin margin) {
        this.weight = weight;
        this.bias = bias;
        shape = weight.getShape();
        Cut classes = Cut.ofLengths(shape.get(0));
        chunks = new ChunkedEvaluation(null, classes, Long.MAX_VALUE, 0, margin);
    }

    /**
     * Creates the search over the classes of a layer that has been trained or loaded: a {@link
     * Linear}, or a {@link ClassificationHead} whose trainer is closed. Where the latter has a
     * margin, the nearest classes are those with the largest cosines.
     *
     * @param layer the layer
     * @return the search
     * @throws IllegalArgumentException if the block is no linear layer
     * @throws IllegalStateException if it has no weight yet, is being trained by ranks, or its
     *     model is closed
     */
    public static ClassSearch of(Block layer) {
        if (!(layer instanceof Linear)) {
            throw new IllegalArgumentException(
                    "A search needs a Linear layer, not a " + layer.getClass().getSimpleName());
        }
        ParameterList parameters = layer.getDirectParameters();
        HeldParameters.checkWhole(parameters.get("weight"), "A search");
        Parameter bias = parameters.contains("bias") ? parameters.get("bias") : null;
        Margin margin = layer instanceof ClassificationHead head ? head.getMargin() : null;
        return new ClassSearch(
                parameters.get("weight").getArray(), bias == null ? null : bias.getArray(), margin);
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public long getClasses() {
        return shape.get(0);
    }

    /**
     * Returns the best classes of each row with their logits.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param k how many classes are wanted
     * @return the best classes, [x1, ..., xn, k], attached to the manager of the features
     * @throws IllegalArgumentException if there are fewer classes than {@code k}, or the features
     *     do not fit the weight
     * @throws ArithmeticException if a logit is NaN; the message names the row
     * @throws IllegalStateException if the search or the model of the layer is closed
     */
    public TopClasses topK(NDArray features, int k) {
        return search(features, k, false);
    }

    /**
     * Returns the best classes of each row with their logits and probabilities among all classes.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param k how many classes are wanted
     * @return the best classes, [x1, ..., xn, k], attached to the manager of the features
     * @throws IllegalArgumentException if there are fewer classes than {@code k}, or the features
     *     do not fit the weight
     * @throws ArithmeticException if a logit is NaN; the message names the row
     * @throws IllegalStateException if the search or the model of the layer is closed
     */
    public TopClasses classify(NDArray features, int k) {
        return search(features, k, true);
    }

    private synchronized TopClasses search(NDArray features, int k, boolean withProbabilities) {
        Errors.checkState(
                !closed,
                "The search over %d classes is closed: make another one, ClassSearch.of(layer)",
                getClasses());
        Errors.checkState(
                !((NativeResource<?>) weight).isReleased(),
                "The search over %d classes has lost its weight, which was closed with the model:"
                        + " keep the model open until the search is closed",
                getClasses());
        int last = features.getShape().dimension() - 1;
        if (last < 0 || features.getShape().get(last) != shape.get(1)) {
            throw new IllegalArgumentException(
                    "The features %s do not fit the weight %s: their last axis must have length %d"
                            .formatted(features.getShape(), shape, shape.get(1)));
        }
        return chunks.topK(features, weight, bias, k, withProbabilities).checked();
    }

    /** Frees the memory of the search; that of the layer stays. */
    @Override
    public synchronized void close() {
        closed = true;
        chunks.close();
    }
}

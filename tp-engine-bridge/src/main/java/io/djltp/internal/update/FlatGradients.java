package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;

/**
 * The gradients of several weights one after another in memory, so that they are summed over ranks
 * by one operation. The memory is made once and serves all steps.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FlatGradients implements AutoCloseable {

    private final Tensor flat; // [elements of all weights]
    private final List<NDArray> views = new ArrayList<>(); // of the flat tensor, as the weights

    /**
     * Makes the memory.
     *
     * @param weights the weights, of one type and on one device
     */
    public FlatGradients(List<NDArray> weights) {
        long elements = weights.stream().mapToLong(NDArray::size).sum();
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor like = TensorView.of(weights.get(0)).tensor();
            flat = WeightUpdate.zeros(like.options(), elements);
            long first = 0;
            for (NDArray weight : weights) {
                long count = weight.size();
                Tensor part = flat.narrow(0, first, count).view(weight.getShape().getShape());
                NDManager manager = weight.getManager();
                views.add(TensorView.toArray(part, manager));
                first += count;
            }
        }
    }

    /**
     * Copies the gradient of a weight to its place.
     *
     * @param place the number of the weight
     * @param gradient the gradient, of the weight's shape, or {@code null} if it is zero
     */
    public void set(int place, @Nullable NDArray gradient) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor part = TensorView.of(views.get(place)).tensor();
            if (gradient == null) {
                part.zero_();
            } else {
                part.copy_(TensorView.of(gradient).tensor());
            }
        }
    }

    /**
     * Copies what is in a weight's place into its gradient.
     *
     * @param place the number of the weight
     * @param gradient the gradient, of the weight's shape
     */
    public void copyTo(int place, NDArray gradient) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            TensorView.of(gradient).tensor().copy_(TensorView.of(views.get(place)).tensor());
        }
    }

    /**
     * Returns the gradient of a weight.
     *
     * @param place the number of the weight
     * @return a view in the weight's shape, which stays open
     */
    public NDArray get(int place) {
        return views.get(place);
    }

    /**
     * Returns all gradients.
     *
     * @return a view, [elements of all weights]
     */
    public TensorView getAll() {
        return TensorView.of(flat);
    }

    /** Frees the memory. */
    @Override
    public void close() {
        views.forEach(NDArray::close);
        views.clear();
        flat.close();
    }
}

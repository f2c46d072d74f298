package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.Objects;

/**
 * What the gradient of a head's weight has beside that of the last batch: the sum of those of
 * batches before, and that of some rows, which an embedding with the same weight has looked up. The
 * update adds it a chunk of the classes at a time, so that the sum of all is never made.
 *
 * @param whole the gradient of the rank's classes, float32 [classes/p, features], or {@code null}
 * @param places the rows among those of the rank, a row maybe several times, or none
 * @param rows their gradients in the same order, [places, features], or {@code null} for none
 */
@SuppressWarnings("try") // a scope is used by being open
public record AddedGradient(@Nullable NDArray whole, long[] places, @Nullable NDArray rows) {

    /**
     * Returns whether there is none.
     *
     * @return whether nothing is to be added
     */
    public boolean isEmpty() {
        return whole == null && places.length == 0;
    }

    /**
     * Returns the gradient of the rows alone.
     *
     * @return what is left without the whole
     */
    public AddedGradient ofRows() {
        return new AddedGradient(null, places, rows);
    }

    /**
     * Adds all of it to an array.
     *
     * @param target the array, float32 [classes/p, features]
     */
    public void addTo(NDArray target) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor all = TensorView.of(target).tensor();
            new Chunks(this).addTo(all, 0, all.size(0), 1);
        }
    }

    /** The same by chunks. Rows stay in the order in which they were looked up. */
    static final class Chunks {

        private final @Nullable Tensor whole;
        private final long[] columns; // ascending
        private final @Nullable Tensor rows; // of the columns

        /** Returns the chunks of a gradient, {@code null} if there is none. */
        static @Nullable Chunks of(@Nullable AddedGradient gradient) {
            return gradient == null || gradient.isEmpty() ? null : new Chunks(gradient);
        }

        private Chunks(AddedGradient gradient) {
            whole = gradient.whole == null ? null : TensorView.of(gradient.whole).tensor();
            columns = gradient.places.clone();
            Arrays.sort(columns);
            rows =
                    columns.length == 0
                            ? null
                            : sorted(
                                    Objects.requireNonNull(gradient.rows, "rows"), gradient.places);
        }

        private static Tensor sorted(NDArray rows, long[] places) {
            Tensor all = TensorView.of(rows).tensor().detach().to(ScalarType.Float);
            // equal places stay in their order
            return all.index_select(0, SoftmaxLoss.index(all, places).argsort(true, 0, false));
        }

        /**
         * Adds the gradient of consecutive classes times a factor.
         *
         * @param target what is added to, [length, features]
         * @param start the first class
         * @param length the number of classes
         * @param factor the factor
         */
        void addTo(Tensor target, long start, long length, float factor) {
            if (whole != null) {
                target.add_(whole.narrow(0, start, length), new Scalar(factor));
            }
            int from = ClassLabels.from(columns, start);
            int to = ClassLabels.from(columns, start + length);
            if (rows != null && from < to) {
                long[] places =
                        Arrays.stream(columns, from, to).map(column -> column - start).toArray();
                Tensor part = rows.narrow(0, from, to - from);
                target.index_add_(0, SoftmaxLoss.index(target, places), part, new Scalar(factor));
            }
        }
    }
}

package io.djltp.head;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

/**
 * The k best of many classes for each row, best first. Of equal logits that of the class with the
 * lower number comes first.
 *
 * @param classes the class numbers over all ranks, int64 [x1, ..., xn, k]
 * @param logits their logits, float32 [x1, ..., xn, k]
 * @param logProbabilities the logarithms of their probabilities among all classes, float32 [x1,
 *     ..., xn, k], or {@code null} if they were not asked for
 */
public record TopClasses(NDArray classes, NDArray logits, @Nullable NDArray logProbabilities)
        implements AutoCloseable {

    /**
     * Returns the probabilities among all classes.
     *
     * @return the probabilities, float32 [x1, ..., xn, k]
     * @throws IllegalStateException if they were not asked for
     */
    public NDArray probabilities() {
        String why =
                "There are no probabilities: they need a sum over all classes, which was not asked"
                        + " for";
        return Errors.present(logProbabilities, why).exp();
    }

    /**
     * Refuses rows that have no order. NaN comes before every number, so that it is the best logit
     * of a row if any class has it.
     *
     * @return this
     * @throws ArithmeticException if a row holds NaN, which is then freed with all others; the
     *     message names the first
     */
    public TopClasses checked() {
        float[] all = logits.toFloatArray();
        int k = (int) logits.getShape().get(logits.getShape().dimension() - 1);
        for (int i = 0; i < all.length; i += k) {
            if (Float.isNaN(all[i])) {
                close();
                throw new ArithmeticException(
                        ("Row %s of %s has no best classes, because a logit is NaN: its features,"
                                        + " the weight or the bias hold NaN or infinite values")
                                .formatted(i / k, all.length / k));
            }
        }
        return this;
    }

    /** Frees the arrays. */
    @Override
    public void close() {
        classes.close();
        logits.close();
        if (logProbabilities != null) {
            logProbabilities.close();
        }
    }
}

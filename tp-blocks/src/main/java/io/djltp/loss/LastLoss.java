package io.djltp.loss;

/**
 * The last loss of a head, and what its backward pass has said. As in PyTorch, a parameter gets a
 * gradient if it is trained in the forward pass and in the backward pass; what is frozen or thawed
 * afterwards decides which gradients a step uses, not which are there.
 */
final class LastLoss {

    private HeadParts parts; // that get a gradient, or have it
    private Float scale; // of the loss in the backward pass, null before it

    /**
     * Notes a loss.
     *
     * @param trained what was trained in the forward pass
     */
    LastLoss(HeadParts trained) {
        parts = trained;
    }

    /**
     * Notes the backward pass.
     *
     * @param above what the loss is multiplied with
     * @param trained what is trained now
     */
    void begin(float above, HeadParts trained) {
        scale = above;
        parts = parts.and(trained);
    }

    /** Returns whether the backward pass has come. */
    boolean isDifferentiated() {
        return scale != null;
    }

    /** Returns which parameters have a gradient of it. */
    HeadParts parts() {
        return scale == null ? HeadParts.NONE : parts;
    }

    /** Returns the factor of the loss in the backward pass. */
    float scale() {
        return scale;
    }

    /** Drops gradients. */
    void drop(HeadParts dropped) {
        if (scale != null) {
            parts = parts.without(dropped);
        }
    }

    /** Multiplies the gradients, and returns whether the factor is finite. */
    boolean unscale(float factor) {
        if (scale == null) {
            return true;
        }
        scale *= factor;
        return Float.isFinite(scale);
    }
}

package io.djltp.nn;

/** How much memory a rank needs for what is large. */
public final class MemoryEstimate {

    private static final long LEAST_FUSED_MEMORY = 64L << 20;

    private MemoryEstimate() {}

    /**
     * Returns how many bytes the logits of a batch may take on a rank if nothing else is said.
     *
     * @param classes the classes of the rank
     * @param features the features
     * @return the bytes
     */
    static long fusedMemory(long classes, long features) {
        return LEAST_FUSED_MEMORY + classes * features * Float.BYTES * 3 / 4;
    }
}

package io.djltp.collective;

/** What a rank is doing while it communicates. */
public enum Direction {
    /** It computes the outputs of layers, or a loss. */
    FORWARD("forward"),
    /** It computes gradients. */
    BACKWARD("backward"),
    /** It sums the gradients of parameters, and updates them. */
    STEP("step"),
    /** Something outside of the passes, such as an initialization or a check. */
    OTHER("other");

    private final String text;

    Direction(String text) {
        this.text = text;
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return text;
    }
}

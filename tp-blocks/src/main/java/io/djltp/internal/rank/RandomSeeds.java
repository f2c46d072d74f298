package io.djltp.internal.rank;

import io.djltp.internal.torch.DropoutMask;

/** What the random numbers of a rank's blocks follow from, and whether others may be drawn. */
public final class RandomSeeds {

    private boolean checked;
    private long seed;
    private long asked;

    RandomSeeds() {}

    /**
     * Sets what the random numbers of the rank's blocks follow from.
     *
     * @param value the same number on all ranks
     * @param check whether a draw from libtorch's generators throws while all ranks of the tensor
     *     group compute the same
     */
    public void begin(long value, boolean check) {
        seed = value;
        asked = 0;
        checked = check;
    }

    /**
     * What the next seeds follow from.
     *
     * @param seed the seed of the training
     * @param asked how many seeds were asked for
     */
    public record State(long seed, long asked) {}

    /**
     * Returns what the next seeds follow from.
     *
     * @return the state, the same on all ranks between two steps
     */
    public State getState() {
        return new State(seed, asked);
    }

    /**
     * Goes on with the seeds of another training.
     *
     * @param state what {@link #getState()} returned there
     */
    public void setState(State state) {
        seed = state.seed();
        asked = state.asked();
    }

    /** Returns whether draws from libtorch's generators throw where all ranks compute the same. */
    boolean isChecked() {
        return checked;
    }

    /**
     * Returns a seed for a block that has none of its own. The ranks run the same blocks in the
     * same order: a block that asks in its first pass gets the same seed on all of them.
     *
     * @return the seed, another at every call
     */
    public long next() {
        return DropoutMask.key(seed, asked++);
    }
}

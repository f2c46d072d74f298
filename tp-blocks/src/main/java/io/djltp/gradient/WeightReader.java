package io.djltp.gradient;

import io.djltp.update.RowReader;

/**
 * Who reads weights and what is kept of them in the background, while the ranks train them: each
 * row may change as soon as it was read.
 */
public interface WeightReader {

    /** Waits until all was read: before it is replaced, moved or freed. */
    void awaitAll();

    /**
     * Waits until all was read that a step may change but the parameters and what the optimizer
     * keeps of them.
     */
    void awaitOthers();

    /**
     * Returns who reads a parameter and what the optimizer keeps of it. The update waits for it, a
     * few rows at a time.
     *
     * @param localIndex the place of the rank among those of this process
     * @param name the name of the parameter
     * @return the reader, or {@code null} if nobody reads it
     */
    RowReader ofParameter(int localIndex, String name);
}

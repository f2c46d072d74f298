package io.djltp.checkpoint.store;

import io.djltp.safetensors.SafetensorsWriter;

import java.io.IOException;

/** Where the bytes of a part's share of a tensor come from. */
@FunctionalInterface
interface ArraySource {

    /**
     * Writes all bytes of the tensor, in row-major order, little-endian.
     *
     * @param out where they go
     * @throws IOException if they cannot be read or written
     */
    void stream(SafetensorsWriter out) throws IOException;

    /**
     * Returns the same bytes in memory, to be read once instead of {@link #stream}.
     *
     * @return the memory, or {@code null} if they do not lie there one after another
     */
    default ArrayMemory memory() {
        return null;
    }
}

package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;

import com.google.gson.JsonObject;

import java.io.Closeable;
import java.io.IOException;

/**
 * Writes what one process has of a checkpoint, in this order, on any one thread at a time:
 *
 * <pre>
 *   declare(tensor) ...       what the checkpoint holds: the same, in the same order, in every process
 *   put(name, part, array)    what the parts of this process hold of each
 *   stream()                  reads the arrays and writes the files: arrays must not change meanwhile
 *   finish(values)            syncs; the process of rank 0 waits for the others and completes
 *   close()                   if it was not finished, removes what was written
 * </pre>
 */
public final class CheckpointWriter implements Closeable {

    CheckpointWriter() {}

    /**
     * Declares a tensor.
     *
     * @param tensor the tensor, cut into as many parts as the checkpoint has
     * @throws IllegalArgumentException if there is one of this name, or it is cut into another
     *     number of parts
     */
    public void declare(CutTensor tensor) {
        throw new UnsupportedOperationException();
    }

    /**
     * Says what a part of this process holds of a tensor. Nothing is copied: the array is read by
     * {@link #stream()}. Of a tensor that is not cut, part 0 has the whole, and what is put for
     * others is not needed.
     *
     * @param name the name of a declared tensor
     * @param part the part
     * @param array the shard, on any device
     * @throws IllegalArgumentException if the tensor is not declared, the part is not this
     *     process's, or the array has another shape or data type
     */
    public void put(String name, int part, NDArray array) {
        throw new UnsupportedOperationException();
    }

    /**
     * Writes the parts of this process, a chunk at a time from the memory of the arrays. When it
     * returns, the arrays may change; the files are not synced yet.
     *
     * @throws IOException if they cannot be written; what was written is removed
     * @throws IllegalStateException if an array is missing
     */
    public void stream() throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Syncs the files of this process. The process of rank 0 then waits for the parts of all
     * others, writes the index and gives the checkpoint its name: from then on it is there,
     * whatever happens.
     *
     * @param values what else the checkpoint holds; only those of the process of rank 0 are kept
     * @throws CheckpointException if another process failed, or was not ready in time; what was
     *     written is removed
     * @throws IOException if the files cannot be written; what was written is removed
     */
    public void finish(JsonObject values) throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the bytes that this process has written so far.
     *
     * @return the number of bytes
     */
    public long getBytesWritten() {
        throw new UnsupportedOperationException();
    }

    /** Removes what was written, unless the checkpoint was finished. */
    @Override
    public void close() {
        throw new UnsupportedOperationException();
    }
}

package io.djltp.checkpoint.store;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import com.google.gson.JsonObject;

import io.djltp.cut.ShardRange;

import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * A complete checkpoint, of which any ranges are read, whatever parts they lie in. What is read is
 * checked: an array is as it was written, or there is none. Several threads may read at once.
 */
public final class Checkpoint implements Closeable {

    private Checkpoint() {}

    /**
     * Opens a checkpoint.
     *
     * @param path its folder, such as {@code out/step-00000120}
     * @return the checkpoint
     * @throws CheckpointException if it is damaged or incomplete, or of another version
     * @throws IOException if it cannot be read
     */
    public static Checkpoint open(Path path) throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the folder.
     *
     * @return the path
     */
    public Path getPath() {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the step after which it was taken.
     *
     * @return the step
     */
    public long getStep() {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the ranks of the run that wrote it.
     *
     * @return the mesh, for people to read
     */
    public String getMesh() {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the number of parts.
     *
     * @return the places of the tensor group of the run that wrote it
     */
    public int getParts() {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns what else the checkpoint holds.
     *
     * @return a copy of the values
     */
    public JsonObject getValues() {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns the tensors.
     *
     * @return the tensors by name, in the order in which they were declared
     */
    public Map<String, CutTensor> getTensors() {
        throw new UnsupportedOperationException();
    }

    /**
     * Reads a whole tensor.
     *
     * @param name its name
     * @param manager the manager of the array, whose device it gets
     * @return the array
     * @throws CheckpointException if there is none of this name, or it is damaged
     * @throws IOException if it cannot be read
     */
    public NDArray read(String name, NDManager manager) throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Reads ranges of an axis of a tensor: the blocks of the files that hold them, and no others.
     *
     * @param name its name
     * @param axis the axis, whether the tensor is cut along it or not
     * @param ranges the ranges, in the order in which the array has them
     * @param manager the manager of the array, whose device it gets
     * @return the array: the shape of the tensor, with the length of all ranges along the axis
     * @throws CheckpointException if there is none of this name, or it is damaged
     * @throws IOException if it cannot be read
     * @throws IllegalArgumentException if the tensor has no such axis or range
     */
    public NDArray read(String name, int axis, List<ShardRange> ranges, NDManager manager)
            throws IOException {
        throw new UnsupportedOperationException();
    }

    /**
     * Returns how many bytes of files were read so far, those that were only checked included.
     *
     * @return the number of bytes
     */
    public long getBytesRead() {
        throw new UnsupportedOperationException();
    }

    /**
     * Reads every byte and checks it.
     *
     * @return what is damaged: the file, the bytes and how; empty if all is as it was written
     * @throws IOException if a file cannot be read
     */
    public List<Damage> verify() throws IOException {
        throw new UnsupportedOperationException();
    }

    /** Closes the files. */
    @Override
    public void close() throws IOException {
        throw new UnsupportedOperationException();
    }
}

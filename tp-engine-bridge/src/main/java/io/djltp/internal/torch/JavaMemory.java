package io.djltp.internal.torch;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;

import java.util.UUID;

/**
 * Keeps the Java memory of the arrays of a pass until its graph is gone.
 *
 * <p>DJL makes an array of numbers, also that of {@code array.mul(2)}, from a direct buffer: the
 * tensor refers to the buffer's memory and does not own it, and the array refers to the buffer
 * until it is closed, at once in {@code mul}. The graph keeps the tensor for the backward pass, by
 * when the collector may have freed the buffer.
 *
 * <p>From {@code keep} to {@link #close} the buffers of all arrays are noted that the calling
 * thread makes, whatever their manager, and whether or not they are closed before. Not noted is
 * what other threads make, and the buffer that {@code array.set(values)} gives to an array later;
 * that one lives until its array is closed.
 */
public final class JavaMemory implements AutoCloseable {

    private final ArrayScopes scopes; // of the thread, or null where nothing is noted
    private final ArrayScopes.Notes notes = new ArrayScopes.Notes();
    private final ArrayScopes.Notes before; // where the thread's buffers were noted, or null
    private final boolean managed; // what is noted lives on, until a manager is closed

    private JavaMemory(NDManager manager) {
        scopes = Autograd.isRecording() ? ArrayScopes.ofThread() : null;
        before = scopes == null ? null : scopes.noteIn(notes);
        managed = manager != null;
    }

    /**
     * Begins to note, where the thread records a graph, and keeps what is noted until a manager is
     * closed.
     *
     * @param manager the manager, that of what lives as long as the graph
     * @return what ends the noting
     */
    public static JavaMemory keep(NDManager manager) {
        JavaMemory memory = new JavaMemory(manager);
        if (memory.scopes != null) {
            manager.attachUncappedInternal(UUID.randomUUID().toString(), memory.notes::clear);
        }
        return memory;
    }

    /**
     * Begins to note, where the thread records a graph, and keeps what is noted until {@link
     * #close}.
     *
     * @return what ends the noting
     */
    public static JavaMemory keep() {
        return new JavaMemory(null);
    }

    /**
     * Keeps the memory of arrays that were made before, where the thread records a graph: they may
     * be closed before the backward pass.
     *
     * @param arrays the arrays
     */
    public void add(NDList arrays) {
        if (scopes != null) {
            arrays.forEach(notes::add);
        }
    }

    /** Ends the noting; what was noted before in the thread goes on being noted. */
    @Override
    public void close() {
        notes.close();
        if (!managed) {
            notes.clear();
        }
        if (scopes != null) {
            scopes.noteIn(before);
        }
    }

    /**
     * Returns how many buffers are kept.
     *
     * @return the number
     */
    int size() {
        return notes.size();
    }
}

package io.djltp.internal.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.NDScope;
import ai.djl.pytorch.engine.PtNDArray;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.IdentityHashMap;
import java.util.List;
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

    private static final Logger logger = LoggerFactory.getLogger(JavaMemory.class);
    private static final @Nullable Fields FIELDS = Fields.find();

    private final @Nullable Scopes scopes; // of the thread, null where nothing is noted
    private final Notes notes = new Notes();
    private final @Nullable Notes before; // where the thread's buffers were noted
    private final boolean managed; // what is noted lives on, until a manager is closed

    private JavaMemory(@Nullable NDManager manager) {
        scopes = Autograd.isRecording() ? Scopes.ofThread() : null;
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
            manager.attachUncappedInternal(
                    UUID.randomUUID().toString(), memory.notes.buffers::clear);
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
            arrays.forEach(array -> notes.add(array, scopes.fields));
        }
    }

    /** Ends the noting; what was noted before in the thread goes on being noted. */
    @Override
    public void close() {
        notes.closed = true;
        if (!managed) {
            notes.buffers.clear();
        }
        if (scopes != null) {
            scopes.noteIn(before);
        }
    }

    /** Returns whether arrays that the calling thread makes may be those of a scope of DJL's. */
    static boolean isInScope() {
        return FIELDS == null || FIELDS.stack.get().peekLast() != null;
    }

    /** Returns how many buffers are kept. */
    int size() {
        return notes.buffers.size();
    }

    /**
     * Lets go of the buffer that an array was loaded into, and no longer points to. DJL keeps it
     * until the array is closed, as here where its field is another one.
     */
    static void release(NDArray array) {
        if (FIELDS != null && DelegatedArray.unwrap(array) instanceof PtNDArray own) {
            FIELDS.buffer.set(own, null);
        }
    }

    /** The buffers of arrays. They have no link to other notes, which may never be closed. */
    private static final class Notes {

        private final List<ByteBuffer> buffers = new ArrayList<>();
        private boolean closed; // what comes from here on is not noted

        void add(Object array, Fields fields) {
            ByteBuffer buffer =
                    array instanceof PtNDArray own ? (ByteBuffer) fields.buffer.get(own) : null;
            if (buffer != null && !closed) {
                buffers.add(buffer);
            }
        }
    }

    /**
     * The three private fields of DJL that are needed. If one is missing there is one warning, and
     * arrays are what they are under DJL's own trainer.
     */
    private record Fields(ThreadLocal<Deque<NDScope>> stack, VarHandle arrays, VarHandle buffer) {

        @SuppressWarnings("unchecked") // checked by the types of what is looked up, and by a test
        static @Nullable Fields find() {
            try {
                MethodHandles.Lookup own = MethodHandles.lookup();
                MethodHandles.Lookup scope = MethodHandles.privateLookupIn(NDScope.class, own);
                MethodHandles.Lookup array = MethodHandles.privateLookupIn(PtNDArray.class, own);
                return new Fields(
                        (ThreadLocal<Deque<NDScope>>)
                                scope.findStaticVarHandle(
                                                NDScope.class, "SCOPE_STACK", ThreadLocal.class)
                                        .get(),
                        scope.findVarHandle(NDScope.class, "resources", IdentityHashMap.class),
                        array.findVarHandle(PtNDArray.class, "dataRef", ByteBuffer.class));
            } catch (ReflectiveOperationException e) {
                logger.warn(
                        "This version of DJL is not one that was tested, 0.36.0 was: a number in a"
                                + " forward pass, such as that of array.mul(2), may be lost before"
                                + " the backward pass, as under DJL's own trainer",
                        e);
                return null;
            }
        }
    }

    /**
     * The stack of a thread's {@link NDScope}s instead of DJL's. The last thing an array of DJL
     * does when it is made is to register with the scope on top: {@code
     * stack.getLast().resources.put(array, array)}, unless the stack is empty. Its buffer is noted
     * there. Scopes are otherwise what they are to DJL; under them is one that keeps no array.
     */
    private static final class Scopes extends ArrayDeque<NDScope> {

        private static final long serialVersionUID = 1L;

        private final transient Fields fields;
        private final transient NDScope ground;
        private transient @Nullable Notes notes; // null: nothing is noted

        private Scopes(Deque<NDScope> before, Fields fields) {
            this.fields = fields;
            ground = new NDScope(); // which puts itself on the stack
            before.remove(ground);
            fields.arrays.set(ground, new Registered(false));
            before.forEach(this::addLast);
        }

        /** Returns the calling thread's, or {@code null} if DJL is another than expected. */
        static @Nullable Scopes ofThread() {
            Fields fields = FIELDS;
            if (fields == null) {
                return null;
            }
            Deque<NDScope> stack = fields.stack.get();
            if (stack instanceof Scopes own) {
                return own;
            }
            Scopes scopes = new Scopes(stack, fields);
            fields.stack.set(scopes);
            return scopes;
        }

        /** Sets where buffers are noted, or {@code null}, and returns where they were before. */
        @Nullable Notes noteIn(@Nullable Notes other) {
            Notes last = notes;
            notes = other;
            return last;
        }

        /** {@inheritDoc} */
        @Override
        public boolean isEmpty() {
            return notes == null && super.isEmpty();
        }

        /** {@inheritDoc} */
        @Override
        public NDScope getLast() {
            NDScope last = peekLast();
            return last == null ? ground : last;
        }

        /** {@inheritDoc} */
        @Override
        public void addLast(NDScope scope) {
            Registered arrays = new Registered(true);
            arrays.putAll((IdentityHashMap<?, ?>) fields.arrays.get(scope));
            fields.arrays.set(scope, arrays);
            super.addLast(scope);
        }

        /** The arrays of a scope. */
        private final class Registered extends IdentityHashMap<Object, Object> {

            private static final long serialVersionUID = 1L;

            private final boolean kept;

            Registered(boolean kept) {
                this.kept = kept;
            }

            @Override
            public @Nullable Object put(Object array, Object same) {
                if (notes != null) {
                    notes.add(array, fields);
                }
                return kept ? super.put(array, same) : null;
            }

            @Override
            public @Nullable Object remove(Object array) {
                return super.remove(
                        array instanceof DelegatedArray placed ? placed.getDelegate() : array);
            }
        }
    }
}

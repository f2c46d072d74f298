package io.djltp.internal.torch;

import ai.djl.ndarray.NDScope;
import ai.djl.pytorch.engine.PtNDArray;

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

/**
 * The stack of a thread's {@link NDScope}s, in the place of DJL's. The last thing an array of DJL
 * does when it is made is to register with the scope on top: {@code
 * stack.getLast().resources.put(array, array)}, unless the stack is empty. Its buffer is noted
 * there. Scopes are otherwise what they are to DJL; under them is one that keeps no array.
 *
 * <p>Three private fields of DJL are needed for that. If one is missing there is one warning, and
 * arrays are what they are under DJL's own trainer.
 */
final class ArrayScopes extends ArrayDeque<NDScope> {

    private static final Logger logger = LoggerFactory.getLogger(ArrayScopes.class);
    private static final long serialVersionUID = 1L;
    private static final Fields FIELDS = Fields.find();

    private final transient NDScope ground;
    private transient Notes notes; // or null: nothing is noted

    /** The buffers of arrays. They have no link to other notes, which may never be closed. */
    static final class Notes {

        private final List<ByteBuffer> buffers = new ArrayList<>();
        private boolean closed;

        /** Notes the buffer of an array, if it has one. */
        void add(Object array) {
            ByteBuffer buffer =
                    array instanceof PtNDArray own ? (ByteBuffer) FIELDS.buffer.get(own) : null;
            if (buffer != null && !closed) {
                buffers.add(buffer);
            }
        }

        /** Ends the noting: whatever is noted from here on is not. */
        void close() {
            closed = true;
        }

        /** Lets go of the buffers. */
        void clear() {
            buffers.clear();
        }

        /** Returns how many buffers are kept. */
        int size() {
            return buffers.size();
        }
    }

    /** The fields of DJL. */
    private record Fields(ThreadLocal<Deque<NDScope>> stack, VarHandle arrays, VarHandle buffer) {

        @SuppressWarnings("unchecked") // checked by the types of what is looked up, and by a test
        static Fields find() {
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
                        "This version of DJL is not one that was tested, 0.35.1 was: a number in a"
                                + " forward pass, such as that of array.mul(2), may be lost before"
                                + " the backward pass, as under DJL's own trainer",
                        e);
                return null;
            }
        }
    }

    private ArrayScopes(Deque<NDScope> before) {
        ground = new NDScope(); // which puts itself on the stack
        before.remove(ground);
        FIELDS.arrays.set(ground, new Registered(false));
        before.forEach(this::addLast);
    }

    /** Returns the calling thread's, or {@code null} if DJL is another than expected. */
    static ArrayScopes ofThread() {
        if (FIELDS == null) {
            return null;
        }
        Deque<NDScope> stack = FIELDS.stack.get();
        if (stack instanceof ArrayScopes) {
            return (ArrayScopes) stack;
        }
        ArrayScopes scopes = new ArrayScopes(stack);
        FIELDS.stack.set(scopes);
        return scopes;
    }

    /**
     * Sets where buffers are noted.
     *
     * @param other the notes, or {@code null}
     * @return where they were noted before
     */
    Notes noteIn(Notes other) {
        Notes before = notes;
        notes = other;
        return before;
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
        arrays.putAll((IdentityHashMap<?, ?>) FIELDS.arrays.get(scope));
        FIELDS.arrays.set(scope, arrays);
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
        public Object put(Object array, Object same) {
            if (notes != null) {
                notes.add(array);
            }
            return kept ? super.put(array, same) : null;
        }

        @Override
        public Object remove(Object array) {
            return super.remove(
                    array instanceof DelegatedArray placed ? placed.getDelegate() : array);
        }
    }
}

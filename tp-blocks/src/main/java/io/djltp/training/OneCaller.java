package io.djltp.training;

import java.util.concurrent.atomic.AtomicReference;

/**
 * The thread that is in a call of a trainer. What is kept from one call to the next is that of one
 * step; another thread may take over between two calls.
 */
final class OneCaller {

    private static final Call WITHIN = () -> {}; // another call of the same thread

    private final AtomicReference<Thread> caller = new AtomicReference<>();
    private final Call call = () -> caller.set(null);

    /** A call that has begun, or anything else whose end throws no checked exception. */
    @FunctionalInterface
    interface Call extends AutoCloseable {

        /** Ends it. */
        @Override
        void close();
    }

    /** Returns whether another thread is in a call. */
    boolean isElsewhere() {
        Thread other = caller.get();
        return other != null && other != Thread.currentThread();
    }

    /**
     * Begins a call.
     *
     * @param what its name, for the error
     * @return the call, to be closed by this thread
     * @throws IllegalStateException if another thread is in a call, which goes on
     */
    Call begin(String what) {
        Thread self = Thread.currentThread();
        Thread other = caller.compareAndExchange(null, self);
        if (other == null) {
            return call;
        }
        if (other == self) {
            return WITHIN;
        }
        throw new IllegalStateException(
                ("trainer.%s was called by the thread '%s' while the thread '%s' is in a call of the"
                                + " same trainer, which goes on: a trainer serves one thread at a"
                                + " time, and a step would be made of what both do. Give each"
                                + " thread a trainer and a model of its own, or let them take turns"
                                + " with a lock that each holds from forward to step")
                        .formatted(what, self.getName(), other.getName()));
    }
}

package io.djltp.collective;

import io.djltp.internal.torch.Autograd;

import org.bytedeco.javacpp.PointerScope;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;

/**
 * What backends for host memory in many processes share: a thread of the communicator's own carries
 * out one operation after another, while the rank computes.
 *
 * <p>An operation that is under way when the group fails ends soon, and only then does {@link
 * Work#await()} throw: until then the tensors are in use.
 */
@SuppressWarnings("try") // a scope is used by being open
public abstract class QueuedCommunicator extends AbstractCommunicator {

    private static final Logger logger = LoggerFactory.getLogger(QueuedCommunicator.class);

    private static final long CLOSE_SECONDS = 5;

    private final Duration timeout;
    private final ExecutorService thread;
    private final boolean ownsThread;

    /**
     * Creates a rank's end of the group of all ranks.
     *
     * @param rank the rank
     * @param size the number of ranks
     * @param timeout how long an operation may take, from when its turn has come
     * @param failure where the group's failure is kept
     */
    protected QueuedCommunicator(int rank, int size, Duration timeout, GroupFailure failure) {
        super(rank, size, failure);
        this.timeout = timeout;
        ownsThread = true;
        thread =
                Executors.newSingleThreadExecutor(
                        task -> {
                            Thread worker = new Thread(task, "tp-collectives-" + rank);
                            worker.setDaemon(true);
                            return worker;
                        });
        thread.execute(() -> Autograd.setThreads(1)); // the cores are for computing
    }

    /**
     * Creates a rank's end of a part of a group, with the same thread.
     *
     * @param parent the rank's end of the group that was split
     * @param color the color of the part
     * @param rank the rank in the part
     * @param size the number of ranks in the part
     */
    protected QueuedCommunicator(QueuedCommunicator parent, int color, int rank, int size) {
        super(parent, color, rank, size);
        timeout = parent.timeout;
        thread = parent.thread;
        ownsThread = false;
    }

    /**
     * Carries out an operation. Looks often whether the group has failed, and does not touch the
     * tensors any more when it returns or throws.
     *
     * @param call the operation
     * @throws Exception if it fails, which ends the group
     */
    protected abstract void execute(CollectiveCall call) throws Exception;

    /**
     * Returns how long an operation may take.
     *
     * @return the time-out
     */
    protected final Duration getTimeout() {
        return timeout;
    }

    /** {@inheritDoc} */
    @Override
    public boolean isAsynchronous() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    protected final Work start(CollectiveCall call) {
        return submit(call, () -> execute(call));
    }

    /**
     * Queues something that is to be done in its turn, on the thread of the communicator.
     *
     * @param call the operation that it is part of
     * @param task what is to be done
     * @return the work
     */
    protected final Work submit(CollectiveCall call, Task task) {
        QueuedWork work = new QueuedWork(call, task);
        try {
            thread.execute(work);
        } catch (RejectedExecutionException e) {
            getFailure().set(new CollectiveException("the group was closed before " + call, e));
            checkFailure();
        }
        return work;
    }

    /**
     * Runs something on the thread of the communicator, after what is under way, even if the group
     * has failed.
     *
     * @param task what is to be done
     */
    protected final void runInTurn(Runnable task) {
        try {
            thread.execute(task);
        } catch (RejectedExecutionException e) {
            return; // closed meanwhile, which does all that is to be done
        }
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (!ownsThread) {
            return;
        }
        thread.shutdown();
        if (!awaitThread()) {
            abort(new IllegalStateException("the group was closed"));
            if (!awaitThread()) {
                logger.warn("An operation of rank {} does not end", getRank());
            }
        }
        super.close();
    }

    /**
     * Returns whether nothing is being carried out any more after {@link #close()}, so that what
     * operations use can be freed.
     *
     * @return whether the thread has ended, or goes on for the group that this is a part of
     */
    protected final boolean isIdle() {
        return !ownsThread || thread.isTerminated();
    }

    private boolean awaitThread() {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(CLOSE_SECONDS);
        boolean interrupted = false;
        while (!thread.isTerminated() && System.nanoTime() < end) {
            try {
                thread.awaitTermination(end - System.nanoTime(), TimeUnit.NANOSECONDS);
            } catch (InterruptedException e) {
                interrupted = true; // memory is freed after this: the thread must have ended
                abort(e);
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        return thread.isTerminated();
    }

    /** What the thread does in its turn. */
    @FunctionalInterface
    protected interface Task {

        /**
         * Does it.
         *
         * @throws Exception if it fails, which ends the group
         */
        void run() throws Exception;
    }

    /** An operation in the queue. */
    private final class QueuedWork implements Work, Runnable {

        private final CollectiveCall call;
        private final Task task;
        private final CountDownLatch done = new CountDownLatch(1);

        QueuedWork(CollectiveCall call, Task task) {
            this.call = call;
            this.task = task;
        }

        /** {@inheritDoc} */
        @Override
        public void run() {
            try (PointerScope scope = new PointerScope()) {
                if (!getFailure().isSet()) {
                    task.run();
                    call.finish();
                }
            } catch (CollectiveException e) {
                getFailure().set(e);
            } catch (Throwable t) {
                getFailure()
                        .set(
                                new CollectiveException(
                                        "rank " + getWorldRank() + " failed in " + call + ": " + t,
                                        t));
            } finally {
                done.countDown();
            }
        }

        /** {@inheritDoc} */
        @Override
        public void await() {
            boolean interrupted = false;
            while (true) {
                try {
                    done.await();
                    break;
                } catch (InterruptedException e) {
                    interrupted = true; // ends the group, but not the wait for the tensors
                    getFailure()
                            .set(
                                    new CollectiveException(
                                            "rank %s was interrupted in %s"
                                                    .formatted(getWorldRank(), call),
                                            e));
                }
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
            if (!call.isFinished()) {
                checkFailure();
            }
        }
    }
}

package io.djltp.rank;

import io.djltp.job.Job;
import io.djltp.torch.Autograd;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * The ranks of this JVM: one long-lived thread each, with its context.
 *
 * <p>A task runs on all ranks at once. If one of them throws, the groups are aborted, so that no
 * other rank waits for it; when all have stopped, the caller gets the first exception as the cause
 * of a {@link RankFailedException}, and the pool is of no use afterwards.
 */
public final class RankPool implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(RankPool.class);

    /** How long ranks that were aborted or closed may take to finish what they are computing. */
    private static final Duration GRACE = Duration.ofSeconds(30);

    private final List<ParallelContext> contexts;
    private final Job job; // or null
    private final RankThreads threads;
    private final PoolFailure failure;
    private volatile boolean running;
    private volatile boolean interruptible = true;
    private boolean closed;
    private boolean stopped;

    /**
     * Starts the ranks.
     *
     * @param config how many, on which devices
     * @throws io.djltp.job.JobFailedException if the job fails before they have started
     */
    public RankPool(ParallelConfig config) {
        job = config.getJob();
        LibraryLoading.load(job);
        contexts = ParallelContext.connect(config);
        failure = new PoolFailure(contexts, job);
        if (job != null) {
            job.beginRanks();
        }
        threads = new RankThreads(contexts);
        try {
            run(
                    context -> {
                        Autograd.setThreads(config.getThreadsPerRank());
                        context.begin();
                        return null;
                    });
        } catch (RuntimeException | Error e) {
            close(); // nobody else has the pool
            throw e;
        }
    }

    /**
     * A part of a job that every rank computes.
     *
     * @param <T> the type of a rank's result
     */
    @FunctionalInterface
    public interface RankTask<T> {

        /**
         * Computes one rank's part.
         *
         * @param context the rank
         * @return the rank's result
         * @throws Exception if the rank fails, which ends the job
         */
        T run(ParallelContext context) throws Exception;
    }

    /**
     * Returns the number of ranks of this process.
     *
     * @return the number of ranks
     */
    public int size() {
        return contexts.size();
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public int getWorldSize() {
        return contexts.get(0).getSize();
    }

    /**
     * Returns whether there are ranks in other processes.
     *
     * @return whether this process has not all ranks
     */
    public boolean isDistributed() {
        return getWorldSize() > size();
    }

    /**
     * Returns whether a rank has failed, or the pool was closed.
     *
     * @return whether no task can be run any more
     */
    public boolean isOver() {
        return closed || failure.get() != null;
    }

    /**
     * Returns the context of a rank. To be used by its thread, or while no task runs.
     *
     * @param index the place of the rank among those of this process
     * @return the context
     */
    public ParallelContext getContext(int index) {
        return contexts.get(index);
    }

    /**
     * Sets what the ranks say with each of their collective operations from here on, to be the same
     * on all ranks. To be used while no task runs.
     *
     * @param terms a short text, or empty
     */
    public void setTerms(String terms) {
        contexts.forEach(context -> context.getWorld().setTerms(terms));
    }

    /**
     * Sets what an interrupt of a thread that waits for a task does. By default it ends the ranks,
     * and the task with them, as who stops a training wants it. Where threads share the ranks, one
     * of them must not end them for all: then the wait goes on to the end of the task. The thread
     * stays interrupted in either case.
     *
     * @param interruptible whether an interrupt ends the ranks
     */
    public void setInterruptible(boolean interruptible) {
        this.interruptible = interruptible;
    }

    /**
     * Runs a task on all ranks of this process and waits for all of them.
     *
     * @param task the task
     * @param <T> the type of a rank's result
     * @return the results, in the order of the ranks
     * @throws RankFailedException if a rank fails, now or before
     */
    public <T> List<T> run(RankTask<T> task) {
        return run(task, null);
    }

    /**
     * Runs a task that changes nothing that the ranks keep, such as a forward pass. If all of them
     * refuse its input by an exception, the caller gets it, and the ranks go on with the next task.
     *
     * @param task the task
     * @param <T> the type of a rank's result
     * @return the results, in the order of the ranks
     * @throws RankFailedException if a rank fails alone, now or before
     */
    public <T> List<T> runOrRefuse(RankTask<T> task) {
        // what the ranks of other processes do is not known here
        return run(task, isDistributed() ? null : new Refusals(contexts));
    }

    private synchronized <T> List<T> run(RankTask<T> task, Refusals refusals) {
        List<Future<T>> futures = new ArrayList<>(size());
        synchronized (threads) { // on all ranks or, if they are being closed, on none
            checkUsable();
            running = true;
            for (int i = 0; i < size(); i++) {
                ParallelContext context = contexts.get(i);
                futures.add(threads.submit(i, () -> runOn(context, task, refusals)));
            }
        }
        List<T> results = new ArrayList<>(size());
        for (Future<T> future : futures) {
            results.add(await(future, refusals));
        }
        running = false;
        if (refusals != null && refusals.first() >= 0 && failure.get() == null) {
            if (refusals.isUnanimous()) {
                throw refusals.toThrow();
            }
            failure.refused(refusals);
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return results;
    }

    /** Stops the ranks. A task that is running is aborted. */
    @Override
    public void close() {
        synchronized (threads) {
            if (closed) {
                return;
            }
            closed = true;
            threads.shutdown();
        }
        if (running) {
            failure.closing();
        }
        stopped = threads.awaitEnd(GRACE);
        if (stopped) {
            contexts.forEach(ParallelContext::close);
        } else {
            // what a running rank uses is not freed under it
            logger.warn("A rank does not stop; what it holds is not freed.");
        }
        if (job != null) {
            job.endRanks();
        }
    }

    /**
     * Returns whether all ranks have ended after {@link #close()}. What they work on must not be
     * freed before.
     *
     * @return whether no rank is running
     */
    public boolean isStopped() {
        return stopped;
    }

    private void checkUsable() {
        failure.check();
        if (closed) {
            throw new IllegalStateException("The ranks have been closed");
        }
    }

    private <T> T runOn(ParallelContext context, RankTask<T> task, Refusals refusals) {
        try {
            return task.run(context);
        } catch (Throwable t) {
            // of an exception in a gradient hook libtorch passes on nothing but the message
            Throwable first = context.takeFailure();
            if (refusals != null && first == null && Refusals.isRefusal(t)) {
                refusals.add(context, t);
                return null;
            }
            failure.thrown(context, first == null ? t : first);
            return null;
        }
    }

    /**
     * Waits for a rank: as long as it takes, or for the grace once the job has failed. An interrupt
     * may end the job, but not the wait: the caller may free what the ranks are working on.
     */
    private <T> T await(Future<T> future, Refusals refusals) {
        long graceEnds = Long.MAX_VALUE;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return future.get(100, TimeUnit.MILLISECONDS);
                } catch (TimeoutException e) {
                    if (refusals != null && failure.get() == null && refusals.leavesRankWaiting()) {
                        failure.refused(refusals);
                    }
                    long now = System.nanoTime();
                    if (failure.get() != null && graceEnds == Long.MAX_VALUE) {
                        graceEnds = now + GRACE.toNanos();
                    }
                    if (now > graceEnds) {
                        future.cancel(true);
                        throw failure.get();
                    }
                } catch (InterruptedException e) {
                    interrupted = true;
                    if (interruptible) {
                        failure.interrupted(e);
                    }
                } catch (ExecutionException e) {
                    throw new IllegalStateException(e.getCause()); // runOn catches everything
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}

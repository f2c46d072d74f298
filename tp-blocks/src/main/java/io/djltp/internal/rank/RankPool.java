package io.djltp.internal.rank;

import ai.djl.util.Preconditions;

import io.djltp.collective.CollectiveException;
import io.djltp.internal.Errors;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TorchScope;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The ranks of this JVM: one long-lived thread each, with its context.
 *
 * <p>A rank that has no others, on a processor, computes what the thread that created the pool
 * calls in that thread: the hand-over takes longer than a hundred small operations. Other threads
 * hand it to the rank's, for each of them would get threads of its own for large operations.
 *
 * <p>A task runs on all ranks at once. If one of them throws, the groups are aborted, so that no
 * other rank waits for it; when all have stopped, the caller gets the first exception as the cause
 * of a {@link RankFailedException}, and the pool is of no use afterwards.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RankPool implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(RankPool.class);

    /** How long ranks that were aborted or closed may take to finish what they are computing. */
    private static final Duration GRACE = Duration.ofSeconds(30);

    private final List<ParallelContext> contexts;
    private final @Nullable Job job;
    private final List<ExecutorService> threads = new ArrayList<>(); // of the ranks
    private final PoolFailure failure;
    private final @Nullable Thread creator; // if it runs tasks itself
    private final int threadsPerRank;
    private final ReentrantLock inCreator = new ReentrantLock(); // held while it does
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
        loadLibraries(job);
        contexts = ParallelContext.connect(config);
        failure = new PoolFailure(contexts, job);
        threadsPerRank = config.getThreadsPerRank();
        boolean isAlone = job == null && getWorldSize() == 1;
        creator = isAlone && !contexts.get(0).getDevice().isGpu() ? Thread.currentThread() : null;
        if (job != null) {
            job.beginRanks();
        }
        for (ParallelContext context : contexts) {
            threads.add(
                    Executors.newSingleThreadExecutor(
                            task -> daemon("tp-rank-" + context.getRank(), task)));
        }
        try {
            run(
                    context -> {
                        Autograd.setThreads(threadsPerRank);
                        context.begin();
                        return context;
                    },
                    null,
                    false);
        } catch (RuntimeException | Error e) {
            close(); // nobody else has the pool
            throw e;
        }
        threads.get(0).execute(ForwardPass::load); // while the caller makes the parameters
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

    /** A part of a job that every rank does, without a result. */
    @FunctionalInterface
    public interface RankAction {

        /**
         * Does one rank's part.
         *
         * @param context the rank
         * @throws Exception if the rank fails, which ends the job
         */
        void run(ParallelContext context) throws Exception;
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
     * Runs something without a result on all ranks of this process and waits for all of them.
     *
     * @param action what each rank does
     * @throws RankFailedException if a rank fails, now or before
     */
    public void runAll(RankAction action) {
        run(
                context -> {
                    action.run(context);
                    return context;
                });
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

    private <T> List<T> run(RankTask<T> task, @Nullable Refusals refusals) {
        boolean here = Thread.currentThread() == creator && !TorchScope.isOpen();
        return run(task, refusals, here);
    }

    private synchronized <T> List<T> run(
            RankTask<T> task, @Nullable Refusals refusals, boolean here) {
        List<FutureTask<T>> futures = new ArrayList<>(size());
        for (ParallelContext context : contexts) {
            futures.add(new FutureTask<>(() -> runOn(context, task, refusals)));
        }
        boolean isWithin = running; // of a task that this thread runs itself
        synchronized (threads) { // on all ranks or, if they are being closed, on none
            checkUsable();
            running = true;
            if (here) {
                inCreator.lock();
            } else {
                for (int i = 0; i < size(); i++) {
                    threads.get(i).execute(futures.get(i));
                }
            }
        }
        if (here) {
            runHere(futures.get(0));
            if (interruptible && Thread.currentThread().isInterrupted()) {
                failure.interrupted(new InterruptedException());
            }
        }
        List<T> results = new ArrayList<>(size());
        for (Future<T> future : futures) {
            results.add(await(future, refusals));
        }
        running = isWithin;
        if (refusals != null && refusals.first() >= 0 && failure.get() == null) {
            if (refusals.isUnanimous()) {
                throw refusals.toThrow();
            }
            failure.refused(refusals);
        }
        RuntimeException failed = failure.get();
        if (failed != null) {
            throw failed;
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
            if (running) { // first: a rank that sees that all is over is not to end its task well
                failure.closing();
            }
            closed = true;
            threads.forEach(ExecutorService::shutdown);
        }
        stopped = awaitEnd();
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
        Errors.checkState(!closed, "The ranks have been closed");
    }

    /** Runs the task of the only rank in the calling thread, set as the rank's own. */
    private void runHere(Runnable task) {
        int before = Autograd.getThreads();
        boolean isOther = before != threadsPerRank;
        try (Autograd.GradMode recording = Autograd.gradMode(true)) {
            if (isOther) {
                Autograd.setThreads(threadsPerRank);
            }
            contexts.get(0)
                    .call(
                            () -> {
                                task.run();
                                return task;
                            });
        } finally {
            if (isOther) {
                Autograd.setThreads(before);
            }
            inCreator.unlock();
        }
    }

    private <T> @Nullable T runOn(
            ParallelContext context, RankTask<T> task, @Nullable Refusals refusals) {
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
    private <T> T await(Future<T> future, @Nullable Refusals refusals) {
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
                    RuntimeException failed = failure.get();
                    if (failed != null && graceEnds == Long.MAX_VALUE) {
                        graceEnds = now + GRACE.toNanos();
                    }
                    if (failed != null && now > graceEnds) {
                        future.cancel(true);
                        throw failed;
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

    /** Waits for the threads to end, and returns whether all have. */
    private boolean awaitEnd() {
        long end = System.nanoTime() + GRACE.toNanos();
        boolean all = !inCreator.isHeldByCurrentThread(); // which closes the ranks in its task
        for (ExecutorService thread : threads) {
            all &= isOver(nanos -> thread.awaitTermination(nanos, TimeUnit.NANOSECONDS), end);
        }
        return all && isOver(nanos -> inCreator.tryLock(nanos, TimeUnit.NANOSECONDS), end);
    }

    /** Something that is waited for. */
    @FunctionalInterface
    private interface Wait {

        boolean isOver(long nanos) throws InterruptedException;
    }

    private static boolean isOver(Wait wait, long end) {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return wait.isOver(end - System.nanoTime());
                } catch (InterruptedException e) {
                    interrupted = true; // memory is freed after this: the ranks must have ended
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static Thread daemon(String name, Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    /**
     * Loads libtorch. A process of a job waits for that no longer than the job lives: the libraries
     * are unpacked once, under a lock that all processes of the machine share, and one that stands
     * still while it has the lock would hold up the others for ever.
     */
    private static void loadLibraries(@Nullable Job job) {
        if (job == null) {
            LibTorch.load();
            return;
        }
        CompletableFuture<Void> loaded = new CompletableFuture<>();
        Runnable takeBack = job.onFailure(loaded::completeExceptionally);
        daemon("tp-load-libraries", () -> load(loaded)).start();
        try {
            loaded.join();
        } catch (CompletionException e) {
            if (e.getCause() instanceof Error error) {
                throw error;
            }
            throw (RuntimeException) e.getCause();
        } finally {
            takeBack.run();
        }
    }

    private static void load(CompletableFuture<Void> loaded) {
        try {
            LibTorch.load();
            loaded.complete(null);
        } catch (RuntimeException | Error e) {
            loaded.completeExceptionally(e);
        }
    }

    /**
     * What ranks have refused in one task, such as a label that is no class. If all of them refuse,
     * and none is left waiting for another, then nothing is lost: the caller gets the exception,
     * and the ranks go on with the next task.
     */
    private static final class Refusals {

        private final List<ParallelContext> contexts;
        private final Throwable[] causes;
        private final long[] calls; // collective operations that the rank had called by then

        Refusals(List<ParallelContext> contexts) {
            this.contexts = contexts;
            causes = new Throwable[contexts.size()];
            calls = new long[contexts.size()];
        }

        /** Returns whether an exception is about the input, not about the job. */
        static boolean isRefusal(Throwable cause) {
            return cause instanceof RuntimeException
                    && !(cause instanceof CollectiveException)
                    && !(cause instanceof RankFailedException);
        }

        /** Notes that a rank has refused. */
        synchronized void add(ParallelContext context, Throwable cause) {
            causes[context.getLocalIndex()] = cause;
            calls[context.getLocalIndex()] =
                    AbstractCommunicator.of(context.getWorld()).getRecorder().getCalls();
        }

        /** Returns a rank that has refused, or -1. */
        synchronized int first() {
            for (int i = 0; i < causes.length; i++) {
                if (causes[i] != null) {
                    return i;
                }
            }
            return -1;
        }

        synchronized Throwable cause(int index) {
            return causes[index];
        }

        /**
         * Returns whether a rank has called an operation that one that has refused will never call:
         * it waits in vain.
         */
        synchronized boolean leavesRankWaiting() {
            int first = first();
            if (first < 0) {
                return false;
            }
            for (int i = 0; i < causes.length; i++) {
                long called =
                        causes[i] == null
                                ? AbstractCommunicator.of(contexts.get(i).getWorld())
                                        .getRecorder()
                                        .getCalls()
                                : calls[i];
                if (called > calls[first]) {
                    return true;
                }
            }
            return false;
        }

        /** Returns the exception for the caller, when all ranks have refused alike. */
        RuntimeException toThrow() {
            RuntimeException cause = (RuntimeException) cause(first());
            Preconditions.checkArgument(cause != null, "No rank has refused");
            return cause instanceof IllegalArgumentException
                    ? new IllegalArgumentException(cause.getMessage(), cause)
                    : cause;
        }

        /** Returns whether all ranks have refused after the same operations. */
        synchronized boolean isUnanimous() {
            for (int i = 0; i < causes.length; i++) {
                if (causes[i] == null || calls[i] != calls[0]) {
                    return false;
                }
            }
            return true;
        }
    }

    /**
     * What ended the ranks of a process: the first failure, which every later task is told, too.
     */
    private static final class PoolFailure {

        /** How many operations of each rank are written. */
        private static final int SHOWN_OPERATIONS = 12;

        private final List<ParallelContext> contexts;
        private final @Nullable Job job;
        private final AtomicReference<@Nullable RuntimeException> first = new AtomicReference<>();
        private volatile @Nullable Exception
                closing; // why a task was aborted that no rank has failed

        PoolFailure(List<ParallelContext> contexts, @Nullable Job job) {
            this.contexts = contexts;
            this.job = job;
        }

        /** Returns the failure, or {@code null}. */
        @Nullable RuntimeException get() {
            return first.get();
        }

        /** Throws the failure, if there was one, to who runs a task after it. */
        void check() {
            RuntimeException before = first.get();
            if (before instanceof RankFailedException failed) { // with this call's stack trace
                throw new RankFailedException(
                        failed.getMessage(),
                        failed.getRank(),
                        failed.isRemote(),
                        failed.getCause());
            }
            if (before != null) {
                throw new IllegalStateException(before.getMessage(), before.getCause());
            }
        }

        /** Says of what is only the consequence of a failure in another process what that was. */
        private static RankFailedException failed(int rank, Throwable cause) {
            for (Throwable t = cause; t != null; t = t.getCause()) {
                if (t instanceof JobFailedException other) {
                    return new RankFailedException(
                            other.getMessage(), other.getRank(), true, cause);
                }
            }
            String message = "rank " + rank + " failed: " + cause;
            return new RankFailedException(message, rank, false, cause);
        }

        /** A rank has thrown: no other rank waits for it. */
        void thrown(ParallelContext context, Throwable cause) {
            RankFailedException failed = failed(context.getRank(), cause);
            if (first.compareAndSet(null, failed)) {
                if (isCausedBy(closing, cause)) {
                    logger.debug("{}", failed.getMessage());
                } else {
                    logger.error("{}{}", failed.getMessage(), lastOperations());
                }
                if (job != null && !failed.isRemote()) {
                    job.fail(context.getRank(), cause);
                }
            }
            contexts.forEach(each -> each.abort(cause));
        }

        /** Some ranks have refused what others have not. */
        void refused(Refusals refusals) {
            int rank = refusals.first();
            thrown(contexts.get(rank), refusals.cause(rank));
        }

        /** Who waits for the ranks was interrupted, which ends them. */
        void interrupted(InterruptedException e) {
            String message =
                    "Interrupted while the ranks were running, which has ended them: make a new"
                            + " trainer or predictor";
            first.compareAndSet(null, new IllegalStateException(message, e));
            contexts.forEach(context -> context.abort(e));
            if (job != null) {
                job.fail(-1, first.get());
            }
        }

        /** The ranks are closed while a task runs. */
        void closing() {
            closing = new IllegalStateException("the ranks were closed");
            contexts.forEach(context -> context.abort(closing));
        }

        private static boolean isCausedBy(@Nullable Exception origin, Throwable cause) {
            Throwable t = cause;
            while (t != null && t != origin) {
                t = t.getCause();
            }
            return t != null;
        }

        /** Which rank was where: the first thing to know of a job that hung or fell apart. */
        private String lastOperations() {
            StringBuilder text = new StringBuilder();
            for (ParallelContext context : contexts) {
                List<String> entries =
                        AbstractCommunicator.of(context.getWorld()).getRecorder().entries();
                text.append(System.lineSeparator()).append("rank ").append(context.getRank());
                text.append(
                        entries.isEmpty() ? " has not called anything yet" : ", the last calls:");
                int first = Math.max(0, entries.size() - SHOWN_OPERATIONS);
                for (String entry : entries.subList(first, entries.size())) {
                    text.append(System.lineSeparator()).append("    ").append(entry);
                }
            }
            return text.toString();
        }
    }
}

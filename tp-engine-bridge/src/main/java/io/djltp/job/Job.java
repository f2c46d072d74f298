package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * A job as one of its processes sees it.
 *
 * <p>Process {@code p} of {@code P} holds the ranks from {@code p * L} to {@code p * L + L - 1},
 * where {@code L} is the number of ranks divided by {@code P}. Process 0 is the master. Only those
 * who know the job's secret come in, and what they say to each other is encrypted: by TLS 1.3 with
 * a pre-shared key.
 *
 * <p>{@link #exchange} and {@link #check} are called by all processes in the same order. When a
 * process fails, dies or falls silent, every wait of every other one ends with a {@link
 * JobFailedException}.
 */
public final class Job implements AutoCloseable {

    /** The most bytes that a process may send in an exchange, in a job of up to 1,024 processes. */
    public static final int MAX_EXCHANGE = 1 << 20;

    private static final int MAX_ALL_EXCHANGE = 1 << 30; // of all processes together
    private static final int MAX_ERROR = 16 * 1024; // characters of a check

    // process 0 ends each wait in time; this is for one that does not
    private static final Duration MARGIN = Duration.ofSeconds(10);

    private final int process;
    private final List<JobMember> members;
    private final Duration timeout;
    private final boolean encryptsData;
    private final JobState state;
    private final ControlPlane control;
    private final ReentrantLock turn = new ReentrantLock();
    private final AtomicInteger openRanks = new AtomicInteger(); // trainers and predictors
    private final AtomicBoolean closed = new AtomicBoolean();

    Job(
            int process,
            List<JobMember> members,
            Duration timeout,
            boolean encryptsData,
            ControlPlane control) {
        this.process = process;
        this.members = List.copyOf(members);
        this.timeout = timeout;
        this.encryptsData = encryptsData;
        this.control = control;
        state = control.state;
    }

    /**
     * Joins the job, and waits until all processes have come.
     *
     * @param environment what the launcher said
     * @param options what the processes agree on
     * @return the job
     * @throws IllegalArgumentException if the arguments do not fit together
     * @throws JobFailedException if not all processes come in time, or they do not fit together
     */
    public static Job join(LaunchEnvironment environment, JobOptions options) {
        return join(environment, options, null);
    }

    /**
     * Joins the job, and waits until all processes have come.
     *
     * @param environment what the launcher said
     * @param options what the processes agree on
     * @param bound in process 0, the channel at which it listens, see {@link
     *     io.djltp.environment.MasterPort}; else {@code null}. The job closes it
     * @return the job
     * @throws IllegalArgumentException if the arguments do not fit together
     * @throws JobFailedException if not all processes come in time, or they do not fit together
     */
    public static Job join(
            LaunchEnvironment environment,
            JobOptions options,
            @Nullable ServerSocketChannel bound) {
        return ControlPlane.join(environment, options, bound);
    }

    /**
     * Returns the number of this process.
     *
     * @return the number, from 0
     */
    public int getProcess() {
        return process;
    }

    /**
     * Returns the number of processes.
     *
     * @return the number of processes
     */
    public int getProcesses() {
        return members.size();
    }

    /**
     * Returns the number of ranks of all processes.
     *
     * @return the number of ranks
     */
    public int getRanks() {
        return getLocalRanks() * members.size();
    }

    /**
     * Returns the number of ranks of this process, which is that of every other one too.
     *
     * @return the number of ranks
     */
    public int getLocalRanks() {
        return members.get(process).ranks();
    }

    /**
     * Returns the first rank of this process.
     *
     * @return the rank
     */
    public int getFirstRank() {
        return members.get(process).firstRank();
    }

    /**
     * Returns the process that holds a rank.
     *
     * @param rank the rank
     * @return the number of its process
     */
    public int processOf(int rank) {
        Errors.check(
                rank >= 0 && rank < getRanks(),
                "Rank %d does not exist: the job has the ranks from 0 to %d",
                rank,
                getRanks() - 1);
        return rank / getLocalRanks();
    }

    /**
     * Returns a process of the job.
     *
     * @param process its number
     * @return the process
     */
    public JobMember getMember(int process) {
        return members.get(Objects.checkIndex(process, members.size()));
    }

    /**
     * Returns how long the processes wait for each other, as process 0 has said.
     *
     * @return the time
     */
    public Duration getTimeout() {
        return timeout;
    }

    /**
     * Returns whether what ranks of different processes exchange over the backend {@code tcp} is
     * encrypted, see {@link JobOptions.Builder#optEncryptData}.
     *
     * @return whether it is, the same in all processes
     */
    public boolean isDataEncrypted() {
        return encryptsData;
    }

    /** {@return whether the job has neither failed nor been closed, as far as is known here} */
    public boolean isActive() {
        return !state.isOver();
    }

    /**
     * Sends a small message of every process to all processes. Blocks until all have called it.
     *
     * @param what a name for the exchange, which must be the same on all processes
     * @param mine the message of this process, of {@link #getExchangeLimit()} bytes at most
     * @return the messages of all processes, in their order
     * @throws JobFailedException if the job fails, the names differ, or not all come in time
     */
    public byte[][] exchange(String what, byte[] mine) {
        int limit = getExchangeLimit();
        if (mine.length > limit) {
            throw Errors.argument(
                    "The message of %d bytes for the exchange '%s' is larger than %d: send less",
                    mine.length, what, limit);
        }
        try {
            turn.lockInterruptibly();
            try {
                state.check();
                Duration patience = timeout.multipliedBy(2).plus(MARGIN);
                byte[][] all = state.await(control.exchange(what, mine.clone()), patience);
                if (all != null) {
                    return all;
                }
                String text = getMember(0) + " has not ended the exchange '" + what + "'";
                JobFailedException failure = new JobFailedException(text, 0, -1, null);
                control.fail(failure);
                state.check();
                throw failure;
            } finally {
                turn.unlock();
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            String text = getMember(process) + " was interrupted in the exchange '" + what + "'";
            JobFailedException failure = new JobFailedException(text, process, -1, e);
            // the others wait for a part that will not come
            control.fail(failure);
            throw failure;
        }
    }

    /**
     * Returns the most bytes that a process may send in an exchange: the messages of all have to
     * fit into one of process 0.
     *
     * @return {@link #MAX_EXCHANGE}, or less in a job of more than 1,024 processes
     */
    public int getExchangeLimit() {
        return Math.min(MAX_EXCHANGE, MAX_ALL_EXCHANGE / members.size());
    }

    /**
     * Lets every process say whether it is ready. If one is not, the check throws on all, but the
     * job as such goes on.
     *
     * @param what a name for the check, which must be the same on all processes
     * @param error why this process is not ready, or {@code null} if it is
     * @throws JobFailedException if a process is not ready
     */
    public void check(String what, @Nullable String error) {
        // the first byte tells an empty error from none
        String mine = error == null ? "" : "!" + ErrorTexts.cut(error, MAX_ERROR);
        byte[][] all = exchange("check: " + what, mine.getBytes(StandardCharsets.UTF_8));
        int[] failed = IntStream.range(0, all.length).filter(i -> all[i].length > 0).toArray();
        if (failed.length > 0) {
            String errors =
                    IntStream.of(failed)
                            .mapToObj(
                                    i ->
                                            members.get(i)
                                                    + ": "
                                                    + new String(all[i], StandardCharsets.UTF_8)
                                                            .substring(1))
                            .collect(Collectors.joining("; "));
            String message = what + " failed on " + ErrorTexts.cut(errors, 2 * MAX_ERROR);
            int one = failed.length == 1 ? failed[0] : -1;
            throw new JobFailedException(message, one, -1, null);
        }
    }

    /**
     * Sets what is told with each heartbeat, so that a process that falls silent can be asked what
     * it was last doing.
     *
     * @param text returns what each local rank is doing, in 4,096 characters at most; called about
     *     once a second on a thread of the job's
     */
    public void setStatus(Supplier<String> text) {
        control.heartbeats.setStatus(text);
    }

    String lastStatus(int other) {
        return control.lastStatus(other);
    }

    /**
     * Adds a listener that is called once, on a thread of the job's, when the job has failed; at
     * once if it already has. A job that was closed before does not fail any more.
     *
     * @param listener the listener, which the job keeps until it is taken back
     * @return what takes the listener back, so that it is not called any more, unless it has been;
     *     may be run several times, on any thread
     */
    public Runnable onFailure(Consumer<JobFailedException> listener) {
        return state.onFailure(listener);
    }

    /**
     * Tells all processes that a rank of this one failed. Only the first failure of a job counts.
     * Returns within about 2 seconds.
     *
     * @param rank the rank, or -1 if it is the process as a whole
     * @param cause what the rank threw, or {@code null} if that is not known
     */
    public void fail(int rank, @Nullable Throwable cause) {
        JobMember self = getMember(process);
        String message = self.describeRank(rank) + " failed: " + ErrorTexts.causes(cause);
        int known = self.holds(rank) ? rank : -1;
        control.fail(new JobFailedException(message, process, known, cause));
        if (known < 0 && state.isOver()) { // the caller will close what its ranks use
            state.awaitListeners(Duration.ofSeconds(1));
        }
    }

    /**
     * Returns the failure if it is known or becomes known in time.
     *
     * @param time how long to wait
     * @return the failure, or {@code null} if there is none, or the job is closed
     */
    public @Nullable JobFailedException awaitFailure(Duration time) {
        return state.awaitFailure(time);
    }

    /** Notes that ranks of this process begin to take part in operations with those of others. */
    public void beginRanks() {
        openRanks.incrementAndGet();
    }

    /** Notes that ranks that have begun take part in no operation any more. */
    public void endRanks() {
        openRanks.decrementAndGet();
    }

    /**
     * Ends this process's part: says goodbye, so that the others do not take it for a death, and
     * after a failure lets that reach the others first. To leave while ranks are open is one: the
     * others may wait for them. Returns within about 2 seconds.
     *
     * <p>Process 0 is the one that hears all others: those that go on after it has closed do not
     * learn of each other's failures any more.
     */
    @Override
    public void close() {
        if (closed.compareAndSet(false, true)) {
            if (openRanks.get() > 0 && members.size() > 1 && isActive()) {
                String text =
                        getMember(process)
                                + " has left the job with a trainer or predictor open: see the"
                                + " output of its process for an exception, and close both before"
                                + " the job";
                control.fail(new JobFailedException(text, process, -1, null));
            }
            state.close();
            control.close();
        }
    }
}

package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.internal.Errors;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.channels.ServerSocketChannel;
import java.util.concurrent.CompletableFuture;

/** How a process of a job talks with the others: as the {@link Master}, or to it. */
abstract class ControlPlane implements Link.Events {

    final LaunchEnvironment environment;
    final JobOptions options;
    final JobState state = new JobState();
    final JobLoop loop = new JobLoop();
    final Heartbeats heartbeats;

    /** The parts of all in the present exchange; on the thread of the connections alone. */
    CompletableFuture<byte[][]> result = new CompletableFuture<>();

    private long exchanged;

    ControlPlane(LaunchEnvironment environment, JobOptions options) {
        this.environment = environment;
        this.options = options;
        heartbeats = new Heartbeats(loop, state, options.heartbeatTimeout);
    }

    /** Joins the job, see {@link Job#join}. */
    static Job join(
            LaunchEnvironment environment,
            JobOptions options,
            @Nullable ServerSocketChannel bound) {
        ControlPlane control =
                environment.process() == 0
                        ? new Master(environment, options, bound)
                        : new Member(environment, options);
        Job job = null;
        try {
            int processes = environment.processes();
            Errors.check(
                    options.ranks % processes == 0,
                    "%d ranks cannot be shared evenly by %d processes: use a multiple of %d ranks",
                    options.ranks,
                    processes,
                    processes);
            job = control.join();
            return job;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw control.failure("Process %d was interrupted while it joined the job", e);
        } catch (IOException e) {
            throw control.failure("Process %d cannot join the job: " + ErrorTexts.reason(e), e);
        } finally {
            if (job == null) {
                control.state.close();
                control.end();
            }
        }
    }

    private JobFailedException failure(String text, Exception cause) {
        return new JobFailedException(text.formatted(environment.process()), -1, -1, cause);
    }

    /** Returns what there is from some point of the job on, which has been reached. */
    static <T> T begun(@Nullable T part) {
        return Errors.present(part, "The process has not joined the job yet");
    }

    /** Waits until all have come. */
    abstract Job join() throws IOException, InterruptedException;

    /** Sends a part to all; the parts of all come, or the job fails. One call at a time. */
    CompletableFuture<byte[][]> exchange(String what, byte[] mine) {
        CompletableFuture<byte[][]> all = new CompletableFuture<>();
        loop.execute(
                () -> {
                    result = all;
                    Message.Turn turn = new Message.Turn(exchanged++, what);
                    begin(new Message(Message.Type.EXCHANGE, turn, mine));
                });
        return all;
    }

    /** Begins an exchange with the part of this process, on the thread of the connections. */
    abstract void begin(Message part);

    /** Tells all that the job has failed. */
    abstract void fail(JobFailedException failure);

    /**
     * Returns what a process last said that it does, or nothing. Process 0 hears all, the others
     * hear process 0 alone.
     */
    abstract String lastStatus(int process);

    /** Says goodbye and ends the connections. */
    abstract void close();

    /** Ends the connections. */
    void end() {
        loop.close();
    }
}

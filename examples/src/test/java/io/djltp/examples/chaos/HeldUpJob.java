package io.djltp.examples.chaos;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.internal.rank.RankPool;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Unchecked;

import java.nio.channels.ServerSocketChannel;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;

/** A job of two members, of which one cannot load libtorch, and the other one fails meanwhile. */
public final class HeldUpJob {

    static final String END = "ended: ";

    private static final Duration UNTIL_FAILURE = Duration.ofSeconds(3);

    private HeldUpJob() {}

    /**
     * Prints how the one that is held up ends.
     *
     * @param args none
     */
    public static void main(String[] args) throws Exception {
        ServerSocketChannel bound = MasterPort.bindEphemeral("127.0.0.1");
        int port = MasterPort.getPort(bound);
        CompletableFuture<Job> master = CompletableFuture.supplyAsync(() -> join(0, port, bound));
        Job heldUp = join(1, port, null);
        CompletableFuture<Void> failing =
                CompletableFuture.runAsync(() -> failLater(master.join()));
        try (RankPool pool =
                new RankPool(
                        ParallelConfig.builder()
                                .setMode(ParallelMode.TENSOR)
                                .setRanks(2)
                                .optJob(heldUp)
                                .build())) {
            System.out.println("loaded, " + pool.size());
        } catch (JobFailedException e) {
            System.out.println(END + e.getMessage());
        }
        failing.join();
        System.exit(0); // the thread that loads hangs
    }

    private static Job join(int process, int port, ServerSocketChannel bound) {
        return Job.join(
                new LaunchEnvironment("test", process, 2, process, "127.0.0.1", port),
                JobOptions.builder().setRanks(2).optSecret(new byte[] {1, 2, 3}).build(),
                bound);
    }

    private static void failLater(Job job) {
        Unchecked.run(() -> Thread.sleep(UNTIL_FAILURE.toMillis()));
        job.fail(-1, new IllegalStateException("on purpose"));
    }
}

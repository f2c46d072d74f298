package io.djltp.collective;

import ai.djl.ndarray.NDManager;

import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.Autograd;

import org.bytedeco.javacpp.PointerScope;

import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Runs a test's code once for every rank of a group, each rank in a thread of its own. The arrays
 * of its manager and the tensors that it makes are freed when it ends.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class RankThreads {

    /** How long a rank of a test waits for the others: far longer than any test should take. */
    public static final Duration TIMEOUT = Duration.ofSeconds(30);

    static {
        // here, and not in a rank: DJL leaves the thread that loads it with recording off
        LibTorch.load();
    }

    private RankThreads() {}

    /** What one rank does. */
    @FunctionalInterface
    public interface Body {

        /**
         * Runs one rank.
         *
         * @param communicator the rank's end of the group
         * @param manager a manager of the rank's own, closed afterwards
         * @throws Exception if anything goes wrong
         */
        void run(Communicator communicator, NDManager manager) throws Exception;
    }

    /**
     * Runs all ranks of a new group. If one fails, the others are stopped.
     *
     * @param size the number of ranks
     * @param body what each rank does
     * @throws Exception what the first rank that failed threw
     */
    public static void run(int size, Body body) throws Exception {
        runAll(TestBackend.current().create(size, TIMEOUT), body);
    }

    /**
     * Runs all ranks of a group, and closes it. If one fails, the others are stopped.
     *
     * @param group the group
     * @param body what each rank does
     * @throws Exception what the first rank that failed threw
     */
    public static void runAll(List<Communicator> group, Body body) throws Exception {
        AtomicReference<Throwable> first = new AtomicReference<>();
        outcomes(
                group,
                (communicator, manager) -> {
                    try {
                        body.run(communicator, manager);
                    } catch (Throwable t) {
                        first.compareAndSet(null, t);
                        communicator.abort(t);
                        throw t;
                    }
                });
        group.forEach(Communicator::close);
        if (first.get() instanceof Error) {
            throw (Error) first.get();
        } else if (first.get() != null) {
            throw (Exception) first.get();
        }
    }

    /**
     * Runs all ranks of a group, all of which fail.
     *
     * @param group the group
     * @param body what each rank does
     * @return the failure of each rank
     * @throws InterruptedException if the time of the test is over
     */
    public static CollectiveException[] failures(List<Communicator> group, Body body)
            throws InterruptedException {
        Throwable[] outcomes = outcomes(group, body);
        for (Throwable outcome : outcomes) {
            if (!(outcome instanceof CollectiveException)) {
                throw new AssertionError("no failure of the group: " + outcome, outcome);
            }
        }
        return Arrays.copyOf(outcomes, outcomes.length, CollectiveException[].class);
    }

    /**
     * Runs all ranks of a group and lets each come to its own end.
     *
     * @param group the group
     * @param body what each rank does
     * @return what each rank threw, {@code null} where it went well
     * @throws InterruptedException if the time of the test is over
     */
    public static Throwable[] outcomes(List<Communicator> group, Body body)
            throws InterruptedException {
        Throwable[] outcomes = new Throwable[group.size()];
        Thread[] threads = new Thread[group.size()];
        CountDownLatch ready = new CountDownLatch(threads.length);
        for (int i = 0; i < threads.length; i++) {
            int rank = i;
            threads[i] =
                    new Thread(
                            () -> {
                                try (PointerScope scope = new PointerScope();
                                        NDManager manager = NDManager.newBaseManager()) {
                                    Autograd.setThreads(1); // the ranks share few cores
                                    ready.countDown();
                                    ready.await(); // a rank's time-out is not for others to start
                                    body.run(group.get(rank), manager);
                                } catch (Throwable t) {
                                    outcomes[rank] = t;
                                } finally {
                                    ready.countDown(); // nobody waits for one that failed
                                }
                            },
                            "rank-" + i);
            threads[i].setDaemon(true); // a rank that hangs must not keep the JVM
            threads[i].start();
        }
        try {
            for (Thread thread : threads) {
                thread.join();
            }
        } catch (InterruptedException e) {
            group.get(0).abort(e);
            throw e;
        }
        return outcomes;
    }
}

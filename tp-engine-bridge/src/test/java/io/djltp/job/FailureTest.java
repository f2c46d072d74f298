package io.djltp.job;

import io.djltp.internal.sockets.RankSockets;
import io.djltp.job.Jobs.Meeting;
import io.djltp.testing.Unchecked;
import io.netty.channel.socket.nio.NioSocketChannel;

import org.bouncycastle.tls.TlsClientProtocol;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** When one process fails, all others find out, and say the same. */
public class FailureTest {

    private static final Duration LONG = Duration.ofSeconds(20);

    @DataProvider
    static Object[][] processes() {
        return new Object[][] {{0}, {2}};
    }

    @Test(dataProvider = "processes", timeOut = 30_000)
    public void allLearnWhichRankFailed(int failing) throws Exception {
        Exception cause = new IllegalStateException("boom", new IOException("disk full"));
        Jobs.each(
                3,
                6,
                job -> {
                    int rank = 2 * failing + 1;
                    if (job.getProcess() == failing) {
                        job.fail(rank, cause);
                    } else {
                        // others are in the middle of something
                        Jobs.assertFails(".*", () -> job.exchange("x", new byte[1]));
                    }
                    JobFailedException e = job.awaitFailure(LONG);
                    Jobs.assertMatches(
                            e,
                            "rank %d \\(process %d, pid \\d+ on .*\\) failed:"
                                            .formatted(rank, failing)
                                    + " java.lang.IllegalStateException: boom; caused by"
                                    + " java.io.IOException: disk full");
                    Assert.assertEquals(e.getRank(), rank);
                    Assert.assertEquals(e.getProcess(), failing);
                    Assert.assertSame(e.getCause(), job.getProcess() == failing ? cause : null);
                    Jobs.assertFails(".*", () -> job.check("y", null));
                    Jobs.assertFails(".*", () -> RankSockets.connect(job, "z"));
                });
    }

    @Test(timeOut = 30_000)
    public void theFirstFailureIsThatOfAll() throws Exception {
        List<String> messages =
                Jobs.run(
                        4,
                        4,
                        job -> {
                            job.fail(job.getFirstRank(), new RuntimeException("mine"));
                            job.fail(job.getFirstRank(), new RuntimeException("second"));
                            return job.awaitFailure(LONG).getMessage();
                        });
        Assert.assertEquals(messages.stream().distinct().count(), 1, "" + messages);
        Assert.assertTrue(messages.get(0).endsWith("RuntimeException: mine"), messages.get(0));
    }

    @Test(timeOut = 30_000)
    public void theProcessThatFailsMayEndAtOnce() throws Exception {
        for (int failing = 0; failing < 2; failing++) {
            int process = failing;
            List<Job> jobs = Jobs.joinAll(2, Jobs.options(2));
            Job other = jobs.get(1 - process);
            jobs.get(process).fail(process, new RuntimeException("boom"));
            jobs.get(process).close();
            Jobs.assertMatches(other.awaitFailure(LONG), "rank " + process + " .*boom");
            other.close();
        }
    }

    @Test(timeOut = 30_000)
    public void listenersAreToldOnce() throws Exception {
        for (int processes = 1; processes < 3; processes++) {
            Jobs.each(
                    processes,
                    processes,
                    job -> {
                        AtomicInteger count = new AtomicInteger();
                        CountDownLatch both = new CountDownLatch(2);
                        job.onFailure(
                                e -> {
                                    throw new IllegalStateException("a listener that fails");
                                });
                        job.onFailure(
                                e -> {
                                    count.incrementAndGet();
                                    both.countDown();
                                });
                        job.fail(job.getFirstRank(), new RuntimeException("boom"));
                        job.fail(job.getFirstRank(), new RuntimeException("boom again"));
                        job.onFailure(e -> both.countDown());
                        Assert.assertTrue(both.await(10, TimeUnit.SECONDS));
                        Thread.sleep(50);
                        Assert.assertEquals(count.get(), 1);
                    });
        }
    }

    @Test(timeOut = 30_000)
    public void aListenerThatIsTakenBackIsNotTold() throws Exception {
        Jobs.each(
                1,
                1,
                job -> {
                    AtomicInteger count = new AtomicInteger();
                    Runnable takeBack = job.onFailure(e -> count.incrementAndGet());
                    takeBack.run();
                    takeBack.run();
                    job.onFailure(e -> count.addAndGet(10));
                    job.fail(-1, new RuntimeException("boom")); // waits for the listeners
                    Assert.assertEquals(count.get(), 10);
                });
    }

    @DataProvider
    static Object[][] failures() {
        Jobs.Deed says = job -> job.fail(1, new RuntimeException("x".repeat(5_000_000)));
        Jobs.Deed saysNothing = job -> job.fail(1, null);
        Jobs.Deed isInterrupted =
                job -> {
                    Thread.currentThread().interrupt();
                    Jobs.assertFails(".*", () -> job.exchange("x", new byte[1]));
                    Assert.assertTrue(Thread.interrupted());
                };
        return new Object[][] {
            {says, "rank 1 .* failed: java.lang.RuntimeException: x+\\.\\.\\."},
            {saysNothing, "rank 1 \\(process 1, .*\\) failed: no cause was given"},
            {isInterrupted, "process 1 \\(.*\\) was interrupted in the exchange 'x'"},
        };
    }

    @Test(dataProvider = "failures", timeOut = 30_000)
    public void bothLearnThatTheSecond(Jobs.Deed fails, String told) throws Exception {
        Jobs.each(
                2,
                2,
                job -> {
                    if (job.getProcess() == 1) {
                        fails.run(job);
                    }
                    JobFailedException e = job.awaitFailure(LONG);
                    Jobs.assertMatches(e, told);
                    Assert.assertTrue(e.getMessage().length() < 3000, "it is cut");
                });
    }

    @DataProvider
    static Object[][] deeds() {
        Deed ends = (job, fake) -> fake.close();
        Deed falls = (job, fake) -> {};
        Deed talks = (job, fake) -> fake.write(new byte[] {127, 0, 0, 0, 3});
        return new Object[][] {
            {5 * 1000, ends, "ended without a word"},
            {800, falls, "has not been heard for 800 ms; when last heard it was in: all-reduce #7"},
            {5 * 1000, talks, "sent what it must not: a message of 2130706432 bytes"},
        };
    }

    @Test(dataProvider = "deeds", timeOut = 30_000)
    public void theMasterTellsOfAProcessThat(int heartbeatMillis, Deed deed, String told)
            throws Exception {
        withFake(
                Jobs.options(6).optHeartbeatTimeout(Duration.ofMillis(heartbeatMillis)),
                (job, fake) -> {
                    deed.run(job, fake);
                    Jobs.assertMatches(
                            job.awaitFailure(LONG),
                            "process 2 \\(ranks 4-5, pid 7 on far\\) " + told);
                });
    }

    /** A process that stands still has gone no other way, whichever time-out is over first. */
    @Test(timeOut = 30_000)
    public void whoDoesNotComeToAnExchangeBecauseItStandsStillIsSaidToBeSilent() throws Exception {
        JobOptions.Builder options = Jobs.options(6).optTimeout(Duration.ofSeconds(4));
        withFake(
                options.optHeartbeatTimeout(Duration.ofSeconds(30)),
                (job, fake) -> {
                    JobFailedException e =
                            Jobs.assertFails(
                                    "process 2 \\(ranks 4-5, pid 7 on far\\) has not been heard for \\d+(.\\d)? s;"
                                            + " when last heard it was in: all-reduce #7. The"
                                            + " exchange 'sizes' has waited for it for 4 s: see whether its"
                                            + " process was stopped, or cannot be reached any more",
                                    () -> job.exchange("sizes", new byte[1]));
                    Assert.assertEquals(e.getProcess(), 2);
                });
    }

    /** A status that blocks stays as it was, and the process lives. */
    @Test(timeOut = 30_000)
    public void aBlockedStatusIsNoDeath() throws Exception {
        JobOptions.Builder options = Jobs.options(2).optHeartbeatTimeout(Duration.ofMillis(500));
        CountDownLatch never = new CountDownLatch(1);
        Jobs.each(
                2,
                options,
                job -> {
                    job.setStatus(
                            () -> {
                                try {
                                    never.await();
                                } catch (InterruptedException e) {
                                    Thread.currentThread().interrupt();
                                }
                                return "";
                            });
                    Assert.assertNull(job.awaitFailure(Duration.ofMillis(1500)));
                });
        never.countDown();
    }

    private interface Deed {
        void run(Job job, FakeMember fake) throws Exception;
    }

    /**
     * Runs a job whose third process is a fake, which says once where it is, and looks how the
     * second sees what it does.
     */
    private static void withFake(JobOptions.Builder options, Deed deed) throws Exception {
        Hello hello = new Hello(1, "1.0", 2, 3, 6, "far", 7, Jobs.LOOPBACK, null);
        Meeting meeting = new Meeting(3, options).with(1, options);
        List<Object> joined =
                meeting.with(
                                () -> {
                                    FakeMember fake = FakeMember.connect(meeting.port, hello);
                                    fake.write(
                                            new Message(Message.Type.HEARTBEAT, "all-reduce #7")
                                                    .encode());
                                    return fake;
                                })
                        .outcomes();
        try (FakeMember fake = (FakeMember) joined.get(2);
                Job master = (Job) joined.get(0);
                Job member = (Job) joined.get(1)) {
            deed.run(member, fake);
            String message = member.awaitFailure(LONG).getMessage();
            Assert.assertEquals(master.awaitFailure(LONG).getMessage(), message);
        }
    }

    /** Who waits for the job learns of its end, though the peers cannot be told. */
    @Test(timeOut = 30_000)
    public void aFailureThatCannotBeSentIsKnownHere() {
        JobState state = new JobState();
        JobFailedException failure = new JobFailedException("boom", 0, -1, null);
        Runnable send =
                () -> {
                    throw new RejectedExecutionException("the connections are closed");
                };
        Assert.expectThrows(RejectedExecutionException.class, () -> state.fail(failure, send));
        Assert.assertTrue(state.isOver());
        Jobs.assertFails("boom", state::check);
    }

    /** What a peer has said meanwhile is yet to be read. */
    @Test(timeOut = 30_000)
    public void whoStoodStillDuringABeatTakesNobodyForDead() throws Exception {
        Duration timeout = Duration.ofSeconds(2);
        AtomicInteger beats = new AtomicInteger();
        AtomicInteger silent = new AtomicInteger();
        CompletableFuture<Integer> afterOne = new CompletableFuture<>();
        JobLoop loop = new JobLoop();
        try (ServerSocketChannel peer = Jobs.bind()) {
            NioSocketChannel channel =
                    new NioSocketChannel(SocketChannel.open(peer.getLocalAddress()));
            JobTls tls = new JobTls(new byte[1], "");
            Link link =
                    new Link(channel, tls.new Handler(new TlsClientProtocol()), 100, new Nobody());
            loop.serve(channel);
            new Heartbeats(loop, new JobState(), timeout)
                    .start(
                            () -> {
                                if (beats.getAndIncrement() == 0) {
                                    Unchecked.run(() -> Thread.sleep(timeout.toMillis()));
                                } else {
                                    afterOne.complete(silent.get());
                                }
                                return List.of(link);
                            },
                            each -> silent.incrementAndGet());
            Assert.assertEquals((int) afterOne.get(), 0);
        } finally {
            loop.close();
        }
    }

    /** Has no peer that says anything. */
    private static final class Nobody implements Link.Events {

        @Override
        public void received(Link link, Message message) {
            throw new IllegalStateException("a message");
        }

        @Override
        public void ended(Link link) {
            // at the end of the test
        }
    }

    /** Peers go on to be told that a process lives, whatever it meets while it looks for them. */
    @Test(timeOut = 30_000)
    public void theHeartGoesOnAfterAnException() throws Exception {
        JobState state = new JobState();
        JobLoop loop = new JobLoop();
        CountDownLatch looks = new CountDownLatch(3);
        new Heartbeats(loop, state, Duration.ofMillis(100))
                .start(
                        () -> {
                            looks.countDown();
                            throw new IllegalStateException("look " + looks.getCount());
                        },
                        link -> {});
        try {
            Assert.assertTrue(looks.await(10, TimeUnit.SECONDS), "left: " + looks.getCount());
        } finally {
            loop.close();
        }
    }
}

package io.djltp.internal.sockets;

import io.djltp.collective.ForkedJvm;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.Jobs;
import io.djltp.testing.FreePort;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;

/** All ranks are connected with all others. */
public class RankSocketsTest {

    @DataProvider
    static Object[][] sizes() {
        return new Object[][] {
            {1, 1, true}, {1, 4, true}, {2, 2, true}, {2, 6, false}, {3, 6, true}, {4, 4, false}
        };
    }

    @Test(dataProvider = "sizes", timeOut = 30_000)
    public void everyRankReachesEveryOther(int processes, int ranks, boolean encrypted)
            throws Exception {
        Jobs.each(
                processes,
                Jobs.options(ranks).optEncryptData(encrypted),
                job -> {
                    for (String name : new String[] {"first", "second", "first"}) {
                        try (Closing mesh = new Closing(RankSockets.connect(job, name))) {
                            talk(job, mesh.channels);
                        }
                    }
                });
    }

    @Test(timeOut = 30_000)
    public void differentNamesAreAnErrorOnAll() throws Exception {
        Jobs.each(
                2,
                4,
                job -> {
                    Assert.expectThrows(
                            JobFailedException.class,
                            () -> RankSockets.connect(job, "mesh " + job.getProcess()));
                });
    }

    /** A frozen process takes connections and does not answer, until its job gives it up. */
    @Test(timeOut = 60_000)
    public void anAnswerIsAwaitedWhileTheJobIsWell() throws Exception {
        CountDownLatch given = new CountDownLatch(1);
        Jobs.each(
                2,
                Jobs.options(2).optTimeout(Duration.ofMinutes(10)),
                job -> {
                    if (job.getProcess() == 1) {
                        Refusals.expect(
                                JobFailedException.class,
                                () -> RankSockets.connect(job, "mesh"),
                                "frozen");
                        given.countDown();
                        return;
                    }
                    try (ServerSocket silent =
                            new ServerSocket(0, 8, InetAddress.getLoopbackAddress())) {
                        byte[] offer =
                                ByteBuffer.allocate(RankDoor.TICKET + Integer.BYTES)
                                        .putInt(RankDoor.TICKET, silent.getLocalPort())
                                        .array();
                        job.exchange("mesh: mesh", offer);
                        try (Socket caller = silent.accept()) {
                            job.fail(-1, new IllegalStateException("frozen " + caller.getPort()));
                            given.await();
                        }
                    }
                });
    }

    /** A stranger is dropped for another one, with which something has come from it. */
    @Test(timeOut = 60_000)
    public void aDoorStaysOpenForOthersWhenOneIsDropped() throws Exception {
        Jobs.each(
                1,
                2,
                job -> {
                    try (RankDoor door = new RankDoor(job);
                            Selector selector = Selector.open();
                            SocketChannel stranger = SocketChannel.open()) {
                        stranger.configureBlocking(false);
                        SelectionKey key = stranger.register(selector, SelectionKey.OP_READ);
                        key.cancel();
                        door.handle(key);
                    }
                });
    }

    /** Two processes, and between them somebody who changes one bit of what goes over. */
    @Test(timeOut = 90_000)
    public void aBitThatIsChangedOnTheWayEndsTheJobOnAllRanks() throws Exception {
        String port = "" + FreePort.find();
        List<CompletableFuture<ForkedJvm.Result>> running = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            ForkedJvm jvm =
                    new ForkedJvm()
                            .environment("RANK", "" + i)
                            .environment("WORLD_SIZE", "2")
                            .environment("MASTER_ADDR", Jobs.LOOPBACK)
                            .environment("MASTER_PORT", port)
                            .environment("TP_ENCRYPT_DATA", "true");
            running.add(jvm.start(TamperedProcess.class));
        }
        for (int rank = 0; rank < 4; rank++) {
            String output = running.get(rank / 2).get().output();
            String start = "RANK " + rank + ": ";
            String end = output.lines().filter(line -> line.startsWith(start)).findFirst().get();
            Assert.assertTrue(end.contains("changed on the way"), output);
        }
    }

    /** Sends from every rank to every other who sends to whom, and reads it there. */
    private static void talk(Job job, RankChannel[][] channels) throws Exception {
        Assert.assertEquals(channels.length, job.getLocalRanks());
        List<Callable<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < channels.length; i++) {
            int rank = job.getFirstRank() + i;
            RankChannel[] own = channels[i];
            Assert.assertEquals(own.length, job.getRanks());
            Assert.assertNull(own[rank]);
            tasks.add(
                    () -> {
                        for (int other = 0; other < own.length; other++) {
                            if (other != rank) {
                                check(own[other].socket());
                                own[other].write(
                                        new ByteBuffer[] {
                                            ByteBuffer.wrap(new byte[] {1, (byte) rank})
                                        });
                            }
                        }
                        for (int other = 0; other < own.length; other++) {
                            if (other != rank) {
                                Assert.assertEquals(read(own[other]), new byte[] {1, (byte) other});
                            }
                        }
                        return null;
                    });
        }
        Jobs.results(tasks);
    }

    private static void check(SocketChannel channel) throws IOException {
        Assert.assertTrue(channel.isBlocking() && channel.isConnected());
        Assert.assertTrue(channel.getOption(StandardSocketOptions.TCP_NODELAY));
    }

    private static byte[] read(RankChannel channel) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(2);
        while (bytes.hasRemaining() && channel.read(new ByteBuffer[] {bytes}) >= 0) {
            continue;
        }
        return bytes.array();
    }

    /** Closes channels. */
    private record Closing(RankChannel[][] channels) implements AutoCloseable {

        /** {@inheritDoc} */
        @Override
        public void close() {
            for (RankChannel[] row : channels) {
                for (RankChannel channel : row) {
                    RankSockets.closeQuietly(channel == null ? null : channel.socket());
                }
            }
        }
    }
}

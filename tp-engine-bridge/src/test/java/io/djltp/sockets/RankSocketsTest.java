package io.djltp.sockets;

import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.Jobs;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;

/** All ranks are connected with all others. */
public class RankSocketsTest {

    @DataProvider
    static Object[][] sizes() {
        return new Object[][] {{1, 1}, {1, 4}, {2, 2}, {2, 6}, {3, 6}, {4, 4}};
    }

    @Test(dataProvider = "sizes", timeOut = 30_000)
    public void everyRankReachesEveryOther(int processes, int ranks) throws Exception {
        Jobs.run(
                processes,
                ranks,
                job -> {
                    for (String name : new String[] {"first", "second", "first"}) {
                        try (Closing mesh = new Closing(RankSockets.connect(job, name))) {
                            talk(job, mesh.channels);
                        }
                    }
                    return null;
                });
    }

    @Test(timeOut = 30_000)
    public void differentNamesAreAnErrorOnAll() throws Exception {
        Jobs.run(
                2,
                4,
                job -> {
                    Assert.expectThrows(
                            JobFailedException.class,
                            () -> RankSockets.connect(job, "mesh " + job.getProcess()));
                    return null;
                });
    }

    /** Sends from every rank to every other who sends to whom, and reads it there. */
    private static void talk(Job job, SocketChannel[][] channels) throws Exception {
        Assert.assertEquals(channels.length, job.getLocalRanks());
        List<Callable<Void>> tasks = new ArrayList<>();
        for (int i = 0; i < channels.length; i++) {
            int rank = job.getFirstRank() + i;
            SocketChannel[] own = channels[i];
            Assert.assertEquals(own.length, job.getRanks());
            Assert.assertNull(own[rank]);
            tasks.add(
                    () -> {
                        for (int other = 0; other < own.length; other++) {
                            if (other != rank) {
                                check(own[other]);
                                own[other].write(ByteBuffer.wrap(new byte[] {1, (byte) rank}));
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

    private static byte[] read(SocketChannel channel) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(2);
        while (bytes.hasRemaining() && channel.read(bytes) >= 0) {
            continue;
        }
        return bytes.array();
    }

    /** Closes channels. */
    private record Closing(SocketChannel[][] channels) implements AutoCloseable {

        /** {@inheritDoc} */
        @Override
        public void close() {
            for (SocketChannel[] row : channels) {
                for (SocketChannel channel : row) {
                    RankSockets.closeQuietly(channel);
                }
            }
        }
    }
}

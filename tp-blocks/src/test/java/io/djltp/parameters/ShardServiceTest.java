package io.djltp.parameters;

import io.djltp.job.JobFailedException;
import io.djltp.sockets.RankSockets;
import io.djltp.testing.ThreadedJob;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.SocketChannel;
import java.time.Duration;

/** The connections by which processes ask each other for weights. */
public class ShardServiceTest {

    /** The other process fails between the two meshes: what was connected before is closed. */
    @Test(timeOut = 60_000)
    public void aFailureBetweenTheMeshesLeavesNoConnection() throws Exception {
        ThreadedJob.run(
                job -> {
                    if (job.getProcess() == 0) {
                        Assert.expectThrows(
                                JobFailedException.class,
                                () ->
                                        new ShardService(
                                                job, Duration.ofSeconds(30), (i, out) -> {}));
                        return true;
                    }
                    SocketChannel channel = RankSockets.connect(job, "weights")[0][0];
                    job.fail(-1, new IllegalStateException("no second mesh"));
                    try {
                        channel.socket().setSoTimeout(20_000);
                        Assert.assertEquals(channel.socket().getInputStream().read(), -1);
                        channel.close();
                    } catch (IOException e) {
                        throw new UncheckedIOException(e);
                    }
                    return true;
                });
    }
}

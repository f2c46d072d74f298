package io.djltp.job;

import io.djltp.internal.environment.JobSecret;

import org.bouncycastle.tls.TlsServerProtocol;
import org.testng.Assert;
import org.testng.annotations.Test;

import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/** A master that is slow to answer, as the first handshake of a JVM is on a busy machine. */
public class SlowMasterTest {

    private static final Duration HEARTBEAT = Duration.ofSeconds(1);

    /** The connection is there before process 0 takes it: silence begins with the handshake. */
    @Test(timeOut = 30_000)
    public void theTimeBeforeTheHandshakeIsNoSilence() throws Exception {
        ExecutorService executor = Executors.newSingleThreadExecutor();
        try (ServerSocket server = new ServerSocket(0)) {
            JobOptions options = Jobs.options(2).optHeartbeatTimeout(HEARTBEAT).build();
            Callable<JobFailedException> member =
                    () ->
                            Assert.expectThrows(
                                    JobFailedException.class,
                                    () -> Jobs.join(1, 2, server.getLocalPort(), options));
            Future<JobFailedException> failure = executor.submit(member);
            TimeUnit.MILLISECONDS.sleep(3 * HEARTBEAT.toMillis() / 2);
            try (Socket socket = server.accept()) {
                long taken = System.nanoTime();
                TlsServerProtocol protocol =
                        new TlsServerProtocol(socket.getInputStream(), socket.getOutputStream());
                JobTls tls = new JobTls(JobSecret.ofUser(), "");
                protocol.accept(tls.new Server());
                Jobs.assertMatches(
                        failure.get(), "process 0 at 127.0.0.1:\\d+ has not been heard for 1 s");
                Assert.assertTrue(System.nanoTime() - taken >= HEARTBEAT.toNanos());
            }
        } finally {
            executor.shutdownNow();
        }
    }
}

package io.djltp.launch;

import io.djltp.collective.ForkedJvm;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.environment.MasterPort;
import io.djltp.job.JobOptions;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Programs that start their processes by themselves join without a variable. */
public class BoundPortTest {

    private static final String LOOPBACK = "127.0.0.1";

    @Test(timeOut = 60_000)
    public void twoProcessesMeetAtAPortThatIsAlreadyBound() throws Exception {
        Path folder = Files.createTempDirectory("bound");
        String file = folder.resolve("port").toString();
        try {
            List<CompletableFuture<ForkedJvm.Result>> running = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                running.add(new ForkedJvm().start(BoundPortProcess.class, "" + i, "2", file));
            }
            for (CompletableFuture<ForkedJvm.Result> each : running) {
                ForkedJvm.Result result = each.get();
                Assert.assertEquals(result.exitCode(), 0, result.output());
                Assert.assertEquals(result.output().lines().toList(), List.of("10", "12"));
            }
        } finally {
            Files.deleteIfExists(Path.of(file));
            Files.delete(folder);
        }
    }

    @Test
    public void theOnlyProcessNeedsNoJob() {
        ServerSocketChannel bound = MasterPort.bindEphemeral(LOOPBACK);
        Assert.assertNull(Launcher.join(environment(0, 1, 0), options(), bound));
        Assert.assertFalse(bound.isOpen());
    }

    @Test
    public void channelsThatDoNotFitAreRefusedAndClosed() throws Exception {
        ServerSocketChannel bound = MasterPort.bindEphemeral(LOOPBACK);
        int port = MasterPort.getPort(bound);
        assertRefused(
                environment(1, 2, port),
                bound,
                "Process 1 of 2 was given a channel to listen at: only process 0 listens, give"
                        + " null");
        assertRefused(
                environment(0, 2, 0),
                bound,
                "The channel of process 0 is closed: get one from MasterPort.bindEphemeral");
        assertRefused(
                environment(0, 2, 0),
                ServerSocketChannel.open(),
                "The channel of process 0 is not bound: get one from MasterPort.bindEphemeral");
        ServerSocketChannel other = MasterPort.bindEphemeral(LOOPBACK);
        int wrong = MasterPort.getPort(other) == 4242 ? 4243 : 4242;
        assertRefused(
                environment(0, 2, wrong),
                other,
                "Process 0 listens at port "
                        + MasterPort.getPort(other)
                        + ", but the others look for it at port "
                        + wrong
                        + ": give all processes MasterPort.getPort of its channel");
    }

    private static void assertRefused(
            LaunchEnvironment environment, ServerSocketChannel channel, String message) {
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> Launcher.join(environment, options(), channel));
        Assert.assertEquals(e.getMessage(), message);
        Assert.assertFalse(channel.isOpen());
    }

    private static LaunchEnvironment environment(int process, int processes, int port) {
        return new LaunchEnvironment("mine", process, processes, process, LOOPBACK, port);
    }

    private static JobOptions options() {
        return JobOptions.builder().setRanks(2).build();
    }
}

package io.djltp.launch;

import ai.djl.util.Utils;

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
            Utils.deleteQuietly(folder);
        }
    }

    @Test
    public void theOnlyProcessNeedsNoJob() {
        ServerSocketChannel bound = MasterPort.bindEphemeral(LOOPBACK);
        JobOptions options = JobOptions.builder().setRanks(2).build();
        Assert.assertNull(
                Launcher.join(new LaunchEnvironment("mine", 0, 1, 0, LOOPBACK, 0), options, bound));
        Assert.assertFalse(bound.isOpen());
    }
}

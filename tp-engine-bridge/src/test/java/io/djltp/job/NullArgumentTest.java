package io.djltp.job;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.launch.Launcher;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;
import java.util.Map;

/** An argument that is {@code null} is refused by its name, and the job goes on. */
public class NullArgumentTest {

    private static final LaunchEnvironment ALONE = Jobs.environment(0, 1, 0);

    private static final Map<String, String> LAUNCHED =
            Map.of(
                    "RANK",
                    "0",
                    "WORLD_SIZE",
                    "2",
                    "LOCAL_RANK",
                    "0",
                    "MASTER_ADDR",
                    "127.0.0.1",
                    "MASTER_PORT",
                    "29500");

    @DataProvider
    static Object[][] callsBefore() {
        JobOptions options = Jobs.options(1).build();
        Duration time = Duration.ofSeconds(1);
        return new Object[][] {
            {"environment is null: say", run(() -> Job.join(null, options))},
            {"options is null: give", run(() -> Job.join(ALONE, null))},
            {"environment is null: say", run(() -> Launcher.join(null, options, null))},
            {"environment is null: give", run(() -> Launcher.join(null, 2, time))},
            {"environment is null: give", run(() -> Launcher.processes(null))},
            {"environment is null: give", run(() -> JobOptions.builder().optEnvironment(null))},
            {"The time-out is null", run(() -> JobOptions.builder().optTimeout(null))},
            {
                "The heartbeat time-out is null",
                run(() -> JobOptions.builder().optHeartbeatTimeout(null))
            },
            {"The time-out is null", run(() -> Launcher.join(LAUNCHED, 2, null))}
        };
    }

    @Test(dataProvider = "callsBefore")
    public void isNamedBeforeTheJob(String message, Assert.ThrowingRunnable call) {
        assertRefused(message, call);
    }

    @Test(timeOut = 30_000)
    public void isNamedInTheJob() throws Exception {
        Jobs.run(
                2,
                2,
                job -> {
                    assertRefused("what is null", () -> job.exchange(null, new byte[1]));
                    assertRefused("mine is null", () -> job.exchange("x", null));
                    assertRefused("what is null", () -> job.check(null, null));
                    assertRefused("listener is null", () -> job.onFailure(null));
                    assertRefused("time is null", () -> job.awaitFailure(null));
                    return job.exchange("still in step", new byte[0]);
                });
    }

    /** Who tells of a failure must not be refused for that. */
    @Test(timeOut = 30_000)
    public void aFailureWithoutACauseIsTold() throws Exception {
        List<String> messages =
                Jobs.run(
                        2,
                        2,
                        job -> {
                            if (job.getProcess() == 1) {
                                job.fail(1, null);
                            }
                            return job.awaitFailure(Duration.ofSeconds(20)).getMessage();
                        });
        for (String message : messages) {
            Assert.assertTrue(
                    message.matches("rank 1 \\(process 1, .*\\) failed: no cause was given"),
                    message);
        }
    }

    private static Assert.ThrowingRunnable run(Assert.ThrowingRunnable call) {
        return call;
    }

    private static void assertRefused(String message, Assert.ThrowingRunnable call) {
        NullPointerException e = Assert.expectThrows(NullPointerException.class, call);
        Assert.assertTrue(e.getMessage().startsWith(message), e.getMessage());
    }
}

package io.djltp.mesh;

import ai.djl.Device;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;

/** A configuration says what is missing or does not fit when it is built. */
public class ParallelConfigTest {

    @Test
    public void theDefaultsAreTheCpuForEveryRankAndAShareOfItsCores() {
        ParallelConfig config =
                ParallelConfig.builder().setMode(ParallelMode.DATA).setRanks(3).build();
        Assert.assertEquals(config.getDevices(), List.of(Device.cpu(), Device.cpu(), Device.cpu()));
        int cores = Runtime.getRuntime().availableProcessors();
        Assert.assertEquals(config.getThreadsPerRank(), Math.max(1, cores / 3));
        Assert.assertEquals(config.getTimeout(), Duration.ofMinutes(5));
    }

    @Test
    public void whatIsMissingOrDoesNotFitIsNamed() {
        assertRefused(() -> ParallelConfig.builder().setRanks(2).build(), "mode", "TENSOR, DATA");
        for (int ranks : new int[] {0, -1}) {
            assertRefused(
                    () -> builder().setRanks(ranks).build(), "ranks", "1 or more", "" + ranks);
        }
        assertRefused(() -> builder().build(), "ranks", "1 or more", "not 0");
        assertRefused(() -> builder().optThreadsPerRank(0), "1 thread or more", "not 0");
        assertRefused(() -> builder().optTimeout(Duration.ZERO), "positive", "PT0S");
        assertRefused(() -> builder().optTimeout(Duration.ofMillis(-1)), "positive", "PT-0.001S");
        assertRefused(
                () -> builder().setRanks(2).optDevices(List.of(Device.cpu())).build(),
                "1 devices for 2 ranks",
                "one device for each rank");
        assertRefused(() -> builder().optDriftCheck(-1), "not -1", "0 never");
    }

    private static ParallelConfig.Builder builder() {
        return ParallelConfig.builder().setMode(ParallelMode.TENSOR);
    }

    private static void assertRefused(Assert.ThrowingRunnable call, String... parts) {
        IllegalArgumentException e = Assert.expectThrows(IllegalArgumentException.class, call);
        for (String part : parts) {
            Assert.assertTrue(e.getMessage().contains(part), e.getMessage());
        }
    }
}

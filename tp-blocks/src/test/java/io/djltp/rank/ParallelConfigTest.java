package io.djltp.rank;

import static io.djltp.testing.Refusals.throwsArgument;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNull;
import static org.testng.Assert.assertSame;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.job.Job;
import io.djltp.job.JobOptions;
import io.djltp.testing.Ranks;
import io.djltp.testing.ThreadedJob;

import org.testng.annotations.Test;

import java.time.Duration;
import java.util.List;

/** A configuration says what is missing or does not fit when it is built. */
public class ParallelConfigTest {

    @Test
    public void theDefaultsAreTheCpuForEveryRankAndAShareOfItsCores() {
        ParallelConfig config = Ranks.config(ParallelMode.DATA, 3);
        assertEquals(config.getDevices(), List.of(Device.cpu(), Device.cpu(), Device.cpu()));
        int cores = Runtime.getRuntime().availableProcessors();
        assertEquals(config.getThreadsPerRank(), Math.max(1, cores / 3));
        assertEquals(config.getTimeout(), Duration.ofMinutes(5));
    }

    @Test
    public void shorthandsAreWhatTheBuilderBuilds() {
        assertShort(ParallelConfig.tensor(4), ParallelMode.TENSOR, 4, "tensor 4");
        assertShort(ParallelConfig.data(3), ParallelMode.DATA, 3, "data 3");
        assertShort(
                ParallelConfig.mixed(2), ParallelMode.MIXED, 2, "data and tensor over the same 2");
        assertShort(ParallelConfig.mesh(2, 3), null, 6, "data 2 x tensor 3");
        throwsArgument(() -> ParallelConfig.tensor(0), "ranks", "1 or more", "not 0");
        throwsArgument(() -> ParallelConfig.mesh(2, 0), "tensor", "1 rank or more", "not 0");
    }

    private static void assertShort(
            ParallelConfig config, ParallelMode mode, int ranks, String mesh) {
        assertEquals(config.getMode(), mode);
        assertEquals(config.getMesh().toString(), mesh);
        assertEquals(config.getRanks(), ranks);
        assertEquals(config.getLocalRanks(), ranks);
        assertNull(config.getJob());
        assertEquals(config.getTimeout(), Duration.ofMinutes(5));
        assertTrue(config.isDriftCheckDue(4));
        assertTrue(config.isBatchCheck());
        assertTrue(config.isRandomCheck());
    }

    /** Two ranks use the processors that there are, not twice as many threads. */
    @Test(timeOut = 60_000)
    public void processesOfAMachineShareItsCores() throws Exception {
        int cores = Runtime.getRuntime().availableProcessors();
        int expected = Processors.isPinned() ? cores : Math.max(1, cores / 2);
        List<Integer> found = ThreadedJob.run(ParallelConfigTest::threadsPerRank);
        assertEquals(found, List.of(expected, expected));
    }

    private static int threadsPerRank(Job job) {
        job.check("both are there", null);
        return builder().setRanks(2).optJob(job).build().getThreadsPerRank();
    }

    @Test
    public void listsOfProcessorsAreCounted() {
        assertEquals(Processors.count("0"), 1);
        assertEquals(Processors.count("\t0-3\n"), 4);
        assertEquals(Processors.count("0-3,8,10-11"), 7);
    }

    @Test
    public void whatIsMissingOrDoesNotFitIsNamed() {
        throwsArgument(() -> ParallelConfig.builder().setRanks(2).build(), "mode", "TENSOR, DATA");
        for (int ranks : new int[] {0, -1}) {
            throwsArgument(
                    () -> builder().setRanks(ranks).build(), "ranks", "1 or more", "" + ranks);
        }
        throwsArgument(() -> builder().build(), "ranks", "1 or more", "not 0");
        throwsArgument(() -> builder().optThreadsPerRank(0), "1 thread or more", "not 0");
        throwsArgument(() -> builder().optTimeout(Duration.ZERO), "positive", "PT0S");
        throwsArgument(() -> builder().optTimeout(Duration.ofMillis(-1)), "positive", "PT-0.001S");
        throwsArgument(
                () -> builder().setRanks(2).optDevices(List.of(Device.cpu())).build(),
                "1 devices for 2 ranks",
                "one device for each rank");
        throwsArgument(() -> builder().optDriftCheck(-1), "not -1", "0 never");
    }

    @Test
    public void aMeshHasItsRanks() {
        DeviceMesh mesh = DeviceMesh.of("data", 2, "tensor", 3);
        ParallelConfig config = ParallelConfig.builder().setMesh(mesh).build();
        assertEquals(config.getRanks(), 6);
        assertEquals(config.getLocalRanks(), 6);
        assertSame(config.getMesh(), mesh);
        assertNull(config.getMode());
        assertSame(config.onDevices(Device.cpu()).getMesh(), mesh);
        ParallelConfig.builder().setMesh(mesh).setRanks(6).build();
        ParallelConfig mode = builder().setRanks(3).build();
        assertEquals(mode.getMesh().toString(), "tensor 3");
    }

    @Test
    public void aMeshThatDoesNotFitIsRefused() {
        DeviceMesh mesh = DeviceMesh.of("data", 2, "tensor", 3);
        throwsArgument(
                () -> ParallelConfig.builder().setMesh(mesh).setRanks(4).build(),
                "data 2 x tensor 3 has 6 ranks, not 4",
                "sizes whose product is 4",
                "leave setRanks out");
        throwsArgument(
                () -> builder().setMesh(mesh).build(), "mesh data 2 x tensor 3", "mode TENSOR");
        DeviceMesh other = DeviceMesh.of("data", 2, "pipeline", 3);
        throwsArgument(
                () -> ParallelConfig.builder().setMesh(other).build(),
                "'pipeline'",
                "the axes are data and tensor");
        throwsArgument(
                () ->
                        ParallelConfig.builder()
                                .setMesh(mesh)
                                .optDevices(List.of(Device.cpu()))
                                .build(),
                "1 devices for 6 ranks");
        LaunchEnvironment alone = new LaunchEnvironment("none", 0, 1, 0, "127.0.0.1", 0);
        try (Job job = Job.join(alone, JobOptions.builder().setRanks(4).build())) {
            throwsArgument(
                    () -> ParallelConfig.builder().setMesh(mesh).optJob(job).build(),
                    "The job has 4 ranks, not 6",
                    "data 2 x tensor 3");
        }
    }

    private static ParallelConfig.Builder builder() {
        return ParallelConfig.builder().setMode(ParallelMode.TENSOR);
    }
}

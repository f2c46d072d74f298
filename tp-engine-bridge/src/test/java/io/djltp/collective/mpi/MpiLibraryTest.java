package io.djltp.collective.mpi;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.ForkedJvm;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.util.Map;
import java.util.Set;

/** What is said of an MPI that is missing or will not do. */
public class MpiLibraryTest {

    private static final String REMEDY = "apt-get install openmpi-bin libopenmpi3";

    /** Says why there is no MPI. */
    static final class Probe {

        private Probe() {}

        public static void main(String[] args) {
            MpiRun.report(0, "reason", MpiLibrary.whyNot().orElse("none"));
            MpiRun.report(0, "again", MpiLibrary.whyNot().orElse("none"));
            try {
                MpiWorld.start();
            } catch (CollectiveException e) {
                MpiRun.report(0, "start", e.getMessage());
            }
        }
    }

    @Test(timeOut = 60_000)
    public void missingLibraryIsNamed() throws Exception {
        ForkedJvm.Result run =
                new ForkedJvm().environment("TP_MPI_LIBRARY", "nosuch").run(Probe.class);
        MpiRun.Result result = new MpiRun.Result(run.exitCode(), run.output());
        String reason = result.report(0, "reason");
        Assert.assertTrue(
                reason.startsWith("The mpi backend cannot load nosuch (")
                        && reason.contains(REMEDY)
                        && reason.contains("TP_MPI_LIBRARY"),
                reason);
        Assert.assertEquals(result.report(0, "again"), reason);
        Assert.assertEquals(result.report(0, "start"), reason);
    }

    @Test(timeOut = 60_000)
    public void otherLibraryIsRefused() throws Exception {
        if (!System.getProperty("os.name").equals("Linux")) {
            throw new SkipException("The test uses a library of Linux");
        }
        ForkedJvm.Result run =
                new ForkedJvm().option("-DTP_MPI_LIBRARY=libc.so.6").run(Probe.class);
        MpiRun.Result result = new MpiRun.Result(run.exitCode(), run.output());
        Assert.assertEquals(
                result.report(0, "reason"),
                "The mpi backend needs Open MPI 4 or 5, but libc.so.6 is not an MPI library:"
                        + " install Open MPI ("
                        + REMEDY
                        + "), or name its library in TP_MPI_LIBRARY.");
    }

    @Test
    public void mpichIsRefused() {
        CollectiveException e =
                Assert.expectThrows(
                        CollectiveException.class,
                        () ->
                                MpiLibrary.checkKind(
                                        "libmpi.so.12", Set.of("MPI_Init_thread")::contains));
        Assert.assertTrue(
                e.getMessage().contains("libmpi.so.12 is another MPI (MPICH or Intel MPI)"),
                e.getMessage());
    }

    @Test
    public void pointersOf32BitsAreRefused() {
        MpiLibrary.checkPointers(8);
        CollectiveException e =
                Assert.expectThrows(CollectiveException.class, () -> MpiLibrary.checkPointers(4));
        Assert.assertTrue(e.getMessage().contains("64-bit JVM"), e.getMessage());
    }

    @Test
    public void threadsAreDemanded() {
        MpiInit.checkThreads(3, false);
        for (boolean before : new boolean[] {true, false}) {
            CollectiveException e =
                    Assert.expectThrows(
                            CollectiveException.class, () -> MpiInit.checkThreads(2, before));
            Assert.assertTrue(
                    e.getMessage().contains("this MPI grants 2")
                            && e.getMessage().contains("MPI_Init_thread") == before,
                    e.getMessage());
        }
    }

    @Test
    public void launchIsNoticed() {
        Assert.assertTrue(MpiEnvironment.launchedByMpi(Map.of("OMPI_COMM_WORLD_SIZE", "4")));
        Assert.assertFalse(MpiEnvironment.launchedByMpi(Map.of("WORLD_SIZE", "4")));
    }

    @Test
    public void versionIsThatOfTheLibrary() {
        MpiLibrary.whyNot()
                .ifPresent(
                        reason -> {
                            throw new SkipException(reason);
                        });
        Assert.assertTrue(MpiLibrary.version().startsWith("Open MPI v"), MpiLibrary.version());
    }

    @Test
    public void hashesOfCallsDiffer() {
        Set<Long> hashes = new java.util.HashSet<>();
        for (int i = 0; i < 10_000; i++) {
            hashes.add(MpiAgreement.hash("all-reduce #" + i + " (SUM) of (64, 512) float32"));
            hashes.add(MpiAgreement.hash("all-reduce #" + i + " (MAX) of (64, 512) float32"));
        }
        Assert.assertEquals(hashes.size(), 20_000);
    }

    /** Open MPI ends a process that starts it there. */
    @Test
    public void srunWithoutMpiIsARefusal() {
        Map<String, String> srun = Map.of("SLURM_PROCID", "0");
        Assert.assertEquals(
                MpiEnvironment.refusal(srun),
                "srun has started this process without MPI: use tcp, or start with mpirun or srun"
                        + " --mpi=pmix");
        Assert.assertNull(MpiEnvironment.refusal(Map.of()));
        for (String name : new String[] {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
            Assert.assertNull(MpiEnvironment.refusal(Map.of("SLURM_PROCID", "0", name, "1")));
        }
    }
}

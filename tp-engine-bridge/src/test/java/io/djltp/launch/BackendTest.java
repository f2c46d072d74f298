package io.djltp.launch;

import ai.djl.Device;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.environment.LaunchEnvironment;
import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.job.Job;
import io.djltp.job.JobOptions;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.ref.WeakReference;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/** The backend that fits is taken, and one that does not says why. */
public class BackendTest {

    private static final List<Device> CPUS = Collections.nCopies(3, Device.cpu());
    private static final List<Device> GPUS = List.of(Device.gpu(0), Device.gpu(1));

    @Test
    public void backendsAreFoundByTheirNames() {
        Assert.assertEquals(Arrays.toString(Backend.values()), "[auto, local, tcp, nccl]");
        for (Backend backend : Backend.values()) {
            Assert.assertSame(Backend.of(backend.getName()), backend);
            Assert.assertSame(Backend.of(backend.getName().toUpperCase()), backend);
        }
        Assert.assertEquals(
                Refusals.throwsArgument(() -> Backend.of("gloo")),
                "There is no backend 'gloo': choose one of auto, local, tcp, nccl");
    }

    @Test
    public void theBackendThatFitsIsChosen() {
        Assert.assertSame(Backend.AUTO.choose(CPUS, null), Backend.LOCAL);
        Assert.assertSame(Backend.AUTO.choose(GPUS, null), Backend.NCCL);
        Assert.assertSame(Backend.AUTO.choose(GPUS.subList(0, 1), null), Backend.LOCAL);
        Assert.assertSame(Backend.TCP.choose(GPUS, null), Backend.TCP);
        LaunchEnvironment alone = new LaunchEnvironment("none", 0, 1, 0, "127.0.0.1", 0);
        try (Job job = Job.join(alone, JobOptions.builder().setRanks(3).build())) {
            Assert.assertSame(Backend.AUTO.choose(CPUS, job), Backend.LOCAL);
        }
    }

    @Test
    public void thePropertySaysWhatAutoMeans() {
        System.setProperty("io.djltp.backend", "tcp");
        try {
            Assert.assertSame(Backend.AUTO.choose(CPUS, null), Backend.TCP);
            Assert.assertSame(Backend.LOCAL.choose(CPUS, null), Backend.LOCAL);
            System.setProperty("io.djltp.backend", "gloo");
            Assert.assertEquals(
                    Refusals.throwsArgument(() -> Backend.AUTO.choose(CPUS, null)),
                    "The system property io.djltp.backend: There is no backend 'gloo': choose one"
                            + " of auto, local, tcp, nccl");
        } finally {
            System.clearProperty("io.djltp.backend");
        }
    }

    @Test
    public void aBackendThatDoesNotFitSaysWhy() {
        assertRefused(
                Backend.LOCAL, GPUS, "the backend local is for CPUs, not for [gpu(0), gpu(1)]");
        assertRefused(Backend.TCP, GPUS, "the backend tcp is for CPUs, not for [gpu(0), gpu(1)]");
        Assert.assertTrue(Backend.AUTO.whyNot(CPUS, null).isEmpty());
        Assert.assertTrue(Backend.TCP.whyNot(CPUS, null).isEmpty());
        NcclDouble.load();
        Assert.assertTrue(Backend.NCCL.whyNot(GPUS, null).isEmpty());
        assertRefused(
                Backend.NCCL,
                List.of(Device.gpu(3), Device.gpu(3)),
                "Rank 1 cannot share GPU 3 with another rank");
        assertRefused(
                Backend.NCCL, List.of(Device.gpu(8)), "Rank 0 cannot work on GPU 8: this process");
    }

    private static void assertRefused(Backend backend, List<Device> devices, String reason) {
        String obstacle = backend.whyNot(devices, null).orElse("nothing");
        Assert.assertTrue(obstacle.startsWith(reason), obstacle);
        Assert.assertEquals(
                Refusals.throwsArgument(() -> backend.connect(devices, null, RankThreads.TIMEOUT)),
                obstacle);
    }

    /** Returns the backends that connect the threads of one process on the CPU. */
    @DataProvider
    public static Object[][] backends() {
        return new Object[][] {{Backend.AUTO}, {Backend.LOCAL}, {Backend.TCP}, {Backend.NCCL}};
    }

    @Test(dataProvider = "backends", timeOut = 60_000)
    public void ranksOfOneProcessAreConnected(Backend backend) throws Exception {
        NcclDouble.load();
        List<Communicator> group = backend.connect(CPUS, null, Duration.ofSeconds(20));
        Throwable[] outcomes =
                RankThreads.outcomes(
                        group,
                        (communicator, manager) -> {
                            var sum = manager.create((float) communicator.getRank());
                            communicator.allReduce(sum, ReduceOp.SUM);
                            Assert.assertEquals(sum.getFloat(), 3f);
                        });
        group.forEach(Communicator::close);
        for (Throwable outcome : outcomes) {
            Assert.assertNull(outcome);
        }
    }

    /** Trainers come and go while a job lives: it keeps nothing of those that were closed. */
    @Test(timeOut = 60_000)
    public void aJobKeepsNoCommunicatorThatIsClosed() throws InterruptedException {
        LaunchEnvironment alone = new LaunchEnvironment("none", 0, 1, 0, "127.0.0.1", 0);
        try (Job job = Job.join(alone, JobOptions.builder().setRanks(3).build())) {
            List<WeakReference<Communicator>> closed = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                for (Communicator communicator :
                        Backend.LOCAL.connect(CPUS, job, RankThreads.TIMEOUT)) {
                    closed.add(new WeakReference<>(communicator));
                    communicator.close();
                }
            }
            while (closed.stream().anyMatch(reference -> reference.get() != null)) {
                System.gc(); // until the time-out
                Thread.sleep(10);
            }
        }
    }
}

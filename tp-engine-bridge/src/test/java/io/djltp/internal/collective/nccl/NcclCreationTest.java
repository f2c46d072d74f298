package io.djltp.internal.collective.nccl;

import ai.djl.Device;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.collective.ForkedJvm;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.function.IntConsumer;

/** A group that cannot be formed says why, in one sentence, and what to do. */
public class NcclCreationTest {

    private static final Duration SHORT = Duration.ofMillis(300);

    @BeforeMethod
    public void load() {
        NcclDouble.load();
    }

    @Test(timeOut = 60_000)
    public void whatIsThereIsTold() {
        Assert.assertFalse(NcclLibrary.whyNot().isPresent(), "" + NcclLibrary.whyNot());
        Assert.assertEquals(NcclLibrary.version(), "2.27.3");
        Assert.assertEquals(NcclLibrary.runtimeVersion(), "12.9");
        Assert.assertEquals(NcclLibrary.driverVersion(), "12.9");
        Assert.assertEquals(NcclLibrary.deviceCount(), 8);
        Assert.assertEquals(NcclLibrary.deviceName(3), "Double 3");
        Assert.assertEquals(NcclLibrary.formatVersion(2804), "2.8.4");
        Assert.assertEquals(NcclCommunicator.newUniqueId().length, 128);
    }

    @Test(timeOut = 60_000)
    public void anOldNcclIsRefused() {
        NcclDouble.setVersion(21703);
        try {
            String message =
                    "The nccl backend needs NCCL 2.18.0 or newer, but libnccl.so.2 is 2.17.3:";
            Assert.assertTrue(NcclLibrary.whyNot().get().startsWith(message));
            assertFails(() -> create(2, 0, cpus(2)), message);
        } finally {
            NcclDouble.setVersion(22703);
        }
    }

    /** A context takes hundreds of MB: of GPUs of this process's ranks only, never of GPU 0. */
    @Test(timeOut = 60_000)
    public void noOtherGpuIsTouched() throws Exception {
        String output = new ForkedJvm().succeed(NcclDevices.class, NcclDouble.build().toString());
        Assert.assertEquals(
                output, "contexts=[3, 5] strays=0\ncontexts=[2, 3, 5] strays=0\nworks on 2\n");
    }

    @Test(timeOut = 60_000)
    public void gpusThatAreNotThereAreRefused() {
        Refusals.throwsArgument(
                () -> create(2, 0, List.of(Device.gpu(0), Device.gpu(9))),
                "Rank 1 cannot work on GPU 9: this process sees 8 GPUs, numbered from 0; use fewer"
                        + " ranks, or check CUDA_VISIBLE_DEVICES");
        Refusals.throwsArgument(
                () -> create(2, 0, List.of(Device.gpu(3), Device.gpu(3))),
                "Rank 1 cannot share GPU 3 with another rank, NCCL needs one for each: this process"
                        + " sees 8 GPUs for 2 ranks");
        Refusals.throwsArgument(
                () -> create(9, 0, cpus(9)),
                "Rank 8 cannot share GPU 0 with another rank",
                "sees 8 GPUs for 9 ranks");
        NcclDouble.setDevices(0);
        try {
            Assert.assertEquals(NcclLibrary.deviceCount(), 0);
            Assert.assertTrue(
                    NcclLibrary.whyNot().get().startsWith("The nccl backend finds no GPU (cuda"),
                    "" + NcclLibrary.whyNot());
            Refusals.throwsArgument(
                    () -> create(1, 0, cpus(1)),
                    "Rank 0 cannot work on GPU 0: this process sees 0 GPUs");
        } finally {
            NcclDouble.setDevices(8);
        }
    }

    @Test(timeOut = 60_000)
    public void theCpuIsRefusedWhereTheGpuDoesNotReachIt() throws Exception {
        NcclDouble.setReachesHostMemory(false);
        try {
            Refusals.throwsArgument(
                    () -> create(2, 0, cpus(2)),
                    "Rank 0 cannot work on cpu(): GPU 0 does not reach host memory; give the rank"
                            + " Device.gpu(0) or use the backend local or tcp");
            List<Communicator> group =
                    List.copyOf(
                            NcclCommunicator.create(
                                    NcclCommunicator.newUniqueId(),
                                    2,
                                    0,
                                    List.of(Device.gpu(4), Device.gpu(2)),
                                    RankThreads.TIMEOUT));
            Throwable[] outcomes =
                    RankThreads.outcomes(
                            group, (c, m) -> c.allReduce(m.ones(new Shape(2)), ReduceOp.SUM));
            Assert.assertEquals(
                    outcomes[0].getMessage(),
                    "all-reduce #1 (SUM) of (2) float32: the tensor is on cpu(), which GPU 4 of"
                            + " rank 0 does not work on: copy it to gpu(4)");
            Assert.assertTrue(outcomes[1] instanceof IllegalArgumentException);
            group.forEach(Communicator::close);
        } finally {
            NcclDouble.setReachesHostMemory(true);
        }
    }

    @Test(timeOut = 60_000)
    public void impossibleRanksAreRefused() {
        Refusals.throwsArgument(
                () -> create(2, 1, cpus(2)),
                "This process cannot hold 2 ranks from rank 1 of a group of 2");
        Refusals.throwsArgument(() -> create(2, 0, List.of()), "This process cannot hold 0 ranks");
        Refusals.throwsArgument(
                () -> NcclCommunicator.create(new byte[3], 2, 0, cpus(2), SHORT),
                "A unique id has 128 bytes, not 3");
        Refusals.throwsArgument(
                () ->
                        NcclCommunicator.create(
                                NcclCommunicator.newUniqueId(), 2, 0, cpus(2), Duration.ZERO),
                "The time-out must be positive, not PT0S");
        assertFails(
                () -> NcclCommunicator.create(new byte[128], 2, 0, cpus(2), SHORT),
                "A group of 2 ranks with ranks 0 to 1 in this process could not be formed",
                "Not an id of ncclGetUniqueId");
    }

    @Test(timeOut = 60_000)
    public void ranksThatNeverComeAreWaitedForInVain() throws Exception {
        List<Long> before = NcclDouble.settled();
        assertFails(
                () -> create(4, 1, cpus(2)),
                "A group of 4 ranks with ranks 1 to 2 in this process could not be formed: after"
                        + " 300 ms not all 4 ranks have come; start the others");
        Assert.assertEquals(NcclDouble.settled(), before);
    }

    @Test(timeOut = 60_000)
    public void twoRanksWithOneNumberAreFound() throws Exception {
        List<Long> before = NcclDouble.settled();
        byte[] id = NcclCommunicator.newUniqueId();
        Duration minute = Duration.ofMinutes(1);
        inTwoThreads(
                i -> NcclCommunicator.create(id, 3, 1, cpus(1), minute),
                "NCCL error 5 (invalid usage",
                "Duplicate rank detected : two ranks with the number 1");
        Assert.assertEquals(NcclDouble.settled(), before);
    }

    @Test(timeOut = 60_000)
    public void twoProcessesOnOneGpuAreFound() throws Exception {
        byte[] id = NcclCommunicator.newUniqueId();
        Duration minute = Duration.ofMinutes(1);
        inTwoThreads(
                i -> NcclCommunicator.create(id, 2, i, List.of(Device.gpu(5)), minute),
                "Duplicate GPU detected : rank 0 and rank 1 both on CUDA",
                "GPUs of its own, by ParallelConfig.optDevices or CUDA_VISIBLE_DEVICES");
    }

    private static void inTwoThreads(IntConsumer create, String... parts) throws Exception {
        FutureTask<Void> other =
                new FutureTask<>(() -> assertFails(() -> create.accept(1), parts), null);
        new Thread(other).start();
        assertFails(() -> create.accept(0), parts);
        other.get();
    }

    private static void assertFails(Assert.ThrowingRunnable call, String... parts) {
        Refusals.expect(CollectiveException.class, call, parts);
    }

    @Test
    public void missingLibrariesAreNamed() {
        String text =
                NcclLibrary.describe(
                        new UnsatisfiedLinkError("no jnicudart")
                                .initCause(
                                        new UnsatisfiedLinkError(
                                                "/x/libjnicudart.so: libcuda.so.1: cannot open"
                                                        + " shared object file")));
        Assert.assertEquals(
                text,
                "The nccl backend needs libcuda.so.1, which the system does not have: install the"
                        + " NVIDIA driver, or name its folder in LD_LIBRARY_PATH.");
        text =
                NcclLibrary.describe(
                        new UnsatisfiedLinkError("libnccl.so.2: cannot open shared object file"));
        Assert.assertTrue(text.contains("install NCCL (apt-get install libnccl2)"), text);
        text = NcclLibrary.describe(new UnsatisfiedLinkError("no jninccl in java.library.path"));
        Assert.assertTrue(text.contains("org.bytedeco:cuda with the classifier"), text);
    }

    /** On a machine that has no NCCL; on one with all libraries there is nothing to miss. */
    @Test(timeOut = 60_000)
    public void aMachineWithoutNcclSaysWhatItLacks() throws Exception {
        String output = new ForkedJvm().succeed(NcclDoctor.class);
        String lack =
                "The nccl backend needs lib(cuda|cudart|nccl)\\.so[.0-9]*, which the system does"
                        + " not have: install .*\nand again: the same\n";
        Assert.assertTrue(output.matches("(?s).*" + lack) || output.contains("NCCL 2."), output);
    }

    /** The libraries are found where the system looks for them. */
    @Test(timeOut = 60_000)
    public void theLibraryPathIsFollowed() throws Exception {
        Path all = NcclDouble.build();
        Assert.assertEquals(
                new ForkedJvm()
                        .environment("LD_LIBRARY_PATH", all.toString())
                        .environment("TP_DOUBLE_NCCL_VERSION", "22304")
                        .run(NcclDoctor.class)
                        .output(),
                "NCCL 2.23.4\nand again: the same\n");
        Path some = Files.createDirectories(all.resolve("some"));
        for (String name : new String[] {"libcuda.so.1", "libcudart.so.12"}) {
            Files.copy(all.resolve(name), some.resolve(name), StandardCopyOption.REPLACE_EXISTING);
        }
        String output =
                new ForkedJvm()
                        .environment("LD_LIBRARY_PATH", some.toString())
                        .run(NcclDoctor.class)
                        .output();
        Assert.assertTrue(
                output.contains("install NCCL (apt-get install libnccl2), or name its folder")
                        || output.contains("NCCL 2."),
                output);
    }

    private static List<Device> cpus(int count) {
        return Collections.nCopies(count, Device.cpu());
    }

    private static List<NcclCommunicator> create(int size, int first, List<Device> devices) {
        return NcclCommunicator.create(NcclCommunicator.newUniqueId(), size, first, devices, SHORT);
    }
}

package io.djltp.internal.collective.nccl;

import ai.djl.util.Utils;

import io.djltp.collective.ForkedJvm;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

/** Ranks in several processes compute together, and survive each other. */
public class NcclProcessesTest {

    /** Returns the numbers of processes and of ranks in each. */
    @DataProvider
    public static Object[][] layouts() {
        return new Object[][] {{2, 2}, {4, 1}};
    }

    @Test(dataProvider = "layouts", timeOut = 90_000)
    public void everyOperationIsRight(int processes, int ranks) throws Exception {
        assertGood(run(processes, ranks, 30_000, -1, 0), ranks);
    }

    /** Returns the time-outs of processes one of which closes 6 seconds after the other. */
    @DataProvider
    public static Object[][] timeouts() {
        return new Object[][] {{30_000}, {3000}};
    }

    /** As where the first process of a good training saves it: NCCL waits for it, or does not. */
    @Test(dataProvider = "timeouts", groups = "sweep", timeOut = 90_000)
    public void aProcessThatClosesLateIsNoFailure(int timeout) throws Exception {
        assertGood(run(2, 2, timeout, -1, 6000), 2);
    }

    private static void assertGood(List<ForkedJvm.Result> results, int ranks) {
        String end = "done\n".repeat(ranks) + "closed\nleft [0, 0, 0, 0, 0]\n";
        for (ForkedJvm.Result result : results) {
            Assert.assertEquals(result.exitCode(), 0, result.output());
            Assert.assertTrue(result.output().endsWith(end), result.output());
        }
    }

    @Test(timeOut = 90_000)
    public void aProcessThatDiesEndsTheOthers() throws Exception {
        List<ForkedJvm.Result> results = run(2, 2, 3000, 2, 0);
        Assert.assertEquals(results.get(1).exitCode(), 9, results.get(1).output());
        String output = results.get(0).output();
        Assert.assertEquals(results.get(0).exitCode(), 0, output);
        // both ranks, each as it is numbered in the group or the part that it was in
        String failure =
                "rank [01] of [24]: time-out after 3000 ms: rank [01] waits in [^\n]* for"
                        + " [^\n]*ranks of other processes\n";
        Assert.assertTrue(
                output.matches(
                        "(?s).*(failed: [^\n]*" + failure + "){2}closed with a failure\nleft.*"),
                output);
        Assert.assertTrue(output.endsWith("left [0, 0, 0, 0, 0]\n"), output);
    }

    /** Starts all processes; the last one dies in a round, if that is not -1, or closes late. */
    private static List<ForkedJvm.Result> run(
            int processes, int ranks, int timeout, int round, int late) throws Exception {
        Path folder = NcclDouble.build();
        NcclDouble.load();
        Path meeting = Files.createTempDirectory("nccl");
        String id = HexFormat.of().formatHex(NcclCommunicator.newUniqueId());
        List<CompletableFuture<ForkedJvm.Result>> running = new ArrayList<>();
        for (int i = 0; i < processes; i++) {
            String[] arguments = {
                folder.toString(),
                id,
                "" + processes * ranks,
                "" + i * ranks,
                "" + ranks,
                "" + timeout,
                "" + (i == processes - 1 ? round : -1),
                meeting.toString(),
                "" + (i == processes - 1 ? late : 0)
            };
            running.add(new ForkedJvm().start(NcclProcess.class, arguments));
        }
        List<ForkedJvm.Result> results = new ArrayList<>();
        for (CompletableFuture<ForkedJvm.Result> future : running) {
            results.add(future.get());
        }
        Utils.deleteQuietly(meeting);
        try (Stream<Path> files = Files.list(Path.of("/dev/shm"))) {
            String own = "tp-nccl-double-" + id.substring(32, 64);
            Assert.assertTrue(files.noneMatch(f -> f.getFileName().toString().startsWith(own)));
        }
        return results;
    }
}

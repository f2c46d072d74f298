package io.djltp.internal.collective.nccl;

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
        List<ForkedJvm.Result> results = run(processes, ranks, 30_000, -1);
        for (ForkedJvm.Result result : results) {
            Assert.assertEquals(result.exitCode(), 0, result.output());
            Assert.assertTrue(
                    result.output().endsWith("done\n".repeat(ranks) + "left [0, 0, 0, 0]\n"),
                    result.output());
        }
    }

    @Test(timeOut = 90_000)
    public void aProcessThatDiesEndsTheOthers() throws Exception {
        List<ForkedJvm.Result> results = run(2, 2, 3000, 2);
        Assert.assertEquals(results.get(1).exitCode(), 9, results.get(1).output());
        String output = results.get(0).output();
        Assert.assertEquals(results.get(0).exitCode(), 0, output);
        // both ranks, each as it is numbered in the group or the part that it was in
        String failure =
                "rank [01] of [24]: time-out after 3000 ms: rank [01] waits in [^\n]* for"
                        + " [^\n]*ranks of other processes\n";
        Assert.assertTrue(output.matches("(?s).*(failed: [^\n]*" + failure + "){2}left.*"), output);
        Assert.assertTrue(output.endsWith("left [0, 0, 0, 0]\n"), output);
    }

    /** Starts all processes; the last one dies in a round, if that is not -1. */
    private static List<ForkedJvm.Result> run(int processes, int ranks, int timeout, int round)
            throws Exception {
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
                meeting.toString()
            };
            running.add(
                    CompletableFuture.supplyAsync(
                            () -> {
                                try {
                                    return new ForkedJvm().run(NcclProcess.class, arguments);
                                } catch (Exception e) {
                                    throw new IllegalStateException(e);
                                }
                            },
                            task -> new Thread(task).start()));
        }
        List<ForkedJvm.Result> results = new ArrayList<>();
        for (CompletableFuture<ForkedJvm.Result> future : running) {
            results.add(future.get());
        }
        for (String name : meeting.toFile().list()) {
            Files.delete(meeting.resolve(name));
        }
        Files.delete(meeting);
        try (Stream<Path> files = Files.list(Path.of("/dev/shm"))) {
            String own = "tp-nccl-double-" + id.substring(32, 64);
            Assert.assertTrue(files.noneMatch(f -> f.getFileName().toString().startsWith(own)));
        }
        return results;
    }
}

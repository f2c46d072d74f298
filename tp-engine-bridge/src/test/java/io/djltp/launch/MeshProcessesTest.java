package io.djltp.launch;

import io.djltp.collective.ForkedJvm;
import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.testing.FreePort;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** A mesh whose axes both go across processes: they compute by turns, and fail together. */
public class MeshProcessesTest {

    @Test(timeOut = 90_000)
    public void axesAcrossSocketsComputeAndFailTogether() throws Exception {
        run(3, 6, "tcp", "2", "3");
    }

    @Test(timeOut = 90_000)
    public void axesOnNcclComputeAndFailTogether() throws Exception {
        run(2, 4, "nccl", "2", "2", NcclDouble.build().toString());
    }

    private static void run(int processes, int ranks, String... arguments) throws Exception {
        String port = "" + FreePort.find();
        List<CompletableFuture<ForkedJvm.Result>> running = new ArrayList<>();
        for (int i = 0; i < processes; i++) {
            ForkedJvm jvm =
                    new ForkedJvm()
                            .environment("RANK", "" + i)
                            .environment("WORLD_SIZE", "" + processes)
                            .environment("LOCAL_RANK", "" + i)
                            .environment("MASTER_ADDR", "127.0.0.1")
                            .environment("MASTER_PORT", port);
            running.add(jvm.start(MeshProcess.class, arguments));
        }
        int local = ranks / processes;
        for (int i = 0; i < processes; i++) {
            ForkedJvm.Result result = running.get(i).get();
            Assert.assertEquals(result.exitCode(), 0, result.output());
            List<String> lines = result.output().lines().toList();
            Assert.assertTrue(lines.contains("REPORT " + i * local + " left: nothing"), "" + lines);
            for (int rank = i * local; rank < (i + 1) * local; rank++) {
                Assert.assertTrue(lines.contains("REPORT " + rank + " computed: all"), "" + lines);
                String start = "REPORT " + rank + " failure: ";
                String failure =
                        lines.stream().filter(line -> line.startsWith(start)).findFirst().get();
                Assert.assertTrue(
                        rank == ranks - 1
                                ? failure.equals(start + "it has lost its data")
                                : failure.contains("rank " + (ranks - 1) + " (process")
                                        && failure.endsWith("it has lost its data"),
                        failure);
            }
        }
    }
}

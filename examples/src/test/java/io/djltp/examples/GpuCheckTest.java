package io.djltp.examples;

import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * The script for machines with GPUs, here on the double of CUDA and NCCL, with ranks on the CPU.
 */
public class GpuCheckTest {

    /** The command with the double. */
    static final class OnDouble {

        private OnDouble() {}

        public static void main(String[] args) {
            NcclDouble.load(Path.of(System.getenv("DOUBLE")));
            Tp.main(args);
        }
    }

    @Test(timeOut = 360_000)
    public void eachPartIsReportedAndAFailureStopsNone() throws Exception {
        ForkedTp.skipWithout("bash", "apt-get install bash");
        Path file = TestFolder.create().resolve("check.txt");
        List<String> tp = ForkedTp.command();
        tp.set(tp.size() - 1, OnDouble.class.getName());
        Map<String, String> environment =
                Map.of(
                        "DOUBLE", NcclDouble.build().toString(),
                        "TP", String.join(" ", tp),
                        "DEVICE", "cpu",
                        "BACKEND", "nccl",
                        "RANKS", "40 3",
                        "HEADS", "",
                        "TRANSFORMERS", "");
        List<String> command = List.of("bash", "gpu/check.sh", file.toString());
        ForkedTp.Result result;
        try (ForkedTp script = ForkedTp.script(command, environment)) {
            result = script.await();
        }
        String text = Files.readString(file);
        Assert.assertEquals(result.status(), 1, text);
        for (String part :
                List.of(
                        "==== machine: good",
                        "==== NCCL on 40: FAILED with status 2",
                        "==== exactness on 40: FAILED with status 2",
                        "training of a transformer layer, recomputed",
                        "==== exactness on 3: good",
                        "\nFailed: NCCL on 40,exactness on 40; please send ")) {
            Assert.assertTrue(text.contains(part), part + " in " + text);
        }
    }
}

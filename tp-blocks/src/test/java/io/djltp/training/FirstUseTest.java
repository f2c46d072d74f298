package io.djltp.training;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;

/** Blocks, losses and optimizers under plain DJL, where nothing of ours has loaded libtorch. */
public class FirstUseTest {

    @DataProvider
    public Object[][] uses() {
        return new Object[][] {{"predictor"}, {"trainer"}, {"loss"}, {"search"}};
    }

    @Test(dataProvider = "uses", timeOut = 90_000)
    public void theProcessHoldsOneLibtorchAndEndsWell(String use) throws Exception {
        if (!Files.isReadable(Path.of("/proc/self/maps"))) {
            throw new SkipException("this system does not tell what is loaded");
        }
        Path output = Files.createTempFile("first-use", ".txt");
        Process process =
                new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                "-XX:TieredStopAtLevel=1",
                                "-XX:+UseSerialGC",
                                "-XX:-UsePerfData",
                                System.getProperty("djltp.test.archive.option", "-Xshare:auto"),
                                "-Dai.djl.offline=true",
                                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                                "-XX:ErrorFile=" + output + ".log",
                                "-XX:-CreateCoredumpOnCrash",
                                "-cp",
                                System.getProperty("java.class.path"),
                                FirstUse.class.getName(),
                                use)
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile())
                        .start();
        try {
            assertTrue(process.waitFor(60, TimeUnit.SECONDS), "a minute");
            String text = Files.readString(output);
            assertEquals(process.exitValue(), 0, text);
            assertTrue(text.endsWith("copies=1\n"), text);
        } finally {
            process.destroyForcibly();
            Files.delete(output);
        }
    }
}

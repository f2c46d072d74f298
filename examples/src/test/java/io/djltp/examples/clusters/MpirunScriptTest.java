package io.djltp.examples.clusters;

import ai.djl.util.Utils;

import io.djltp.examples.ForkedTp;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import java.util.Map;

/** What {@code mpirun.sh} does with a signal: played by shell scripts instead of tp. */
public class MpirunScriptTest {

    private Path folder;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("tp-mpirun-script");
        ForkedTp.skipWithout("mpirun", "apt-get install openmpi-bin libopenmpi3");
    }

    @AfterMethod(alwaysRun = true)
    public void deleteFolder() throws IOException {
        Utils.deleteQuietly(folder);
    }

    /** By itself mpirun kills the processes after a second, and does not tell that it was asked. */
    @Test(timeOut = 120_000)
    public void aSignalLeavesTheTimeToSaveAndEndsTheJob() throws Exception {
        Path tp = folder.resolve("tp");
        Files.writeString(
                tp,
                """
                #!/bin/bash
                trap 'sleep 2; echo >> %1$s/saved; exit 143' TERM
                echo >> %1$s/starts
                while true; do sleep 0.1; done
                """
                        .formatted(folder));
        Files.setPosixFilePermissions(tp, PosixFilePermissions.fromString("rwxr-xr-x"));
        List<String> command =
                List.of(Path.of("clusters/mpirun.sh").toAbsolutePath().toString(), "train");
        Map<String, String> variables = Map.of("TP", tp.toString(), "RESTARTS", "2", "GRACE", "8");
        try (ForkedTp job = ForkedTp.script(command, variables)) {
            while (lines("starts") < 2) {
                Assert.assertTrue(job.isAlive());
                Thread.sleep(50);
            }
            ForkedTp.Result result = job.stop();
            Assert.assertEquals(result.status(), 143, result.toString());
            Assert.assertEquals(lines("saved"), 2, result.toString());
            Assert.assertEquals(lines("starts"), 2, result.toString());
        }
    }

    private int lines(String name) throws IOException {
        Path file = folder.resolve(name);
        return Files.exists(file) ? Files.readAllLines(file).size() : 0;
    }
}

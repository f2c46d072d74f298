package io.djltp.examples.clusters;

import ai.djl.util.Utils;

import io.djltp.examples.ForkedTp;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * When {@code slurm.sh} starts the processes again and when it does not: played by shell scripts in
 * the place of tp, on two nodes. With {@code -Dclusters.all=true}.
 */
public class SlurmScriptTest {

    private Path folder;
    private SlurmCluster slurm;

    @BeforeMethod
    public void start() throws Exception {
        if (!Boolean.getBoolean("clusters.all")) {
            throw new SkipException("With -Dclusters.all=true");
        }
        folder = Files.createTempDirectory("tp-slurm-script");
        slurm = SlurmCluster.start();
    }

    @AfterMethod(alwaysRun = true)
    public void stop() throws Exception {
        if (slurm != null) {
            slurm.stop();
        }
        if (folder != null) {
            Utils.deleteQuietly(folder);
        }
    }

    /** The other is stopped by srun before it can save anything, and srun ends with its 143. */
    @Test(timeOut = 120_000)
    public void aProcessThatFailsWhileAnotherStartsIsStartedAgain() throws Exception {
        try (ForkedTp job =
                submit(
                        """
                        [ $(wc -l < "$here/starts") -gt 2 ] && exit 0
                        [ "$SLURM_PROCID" = 0 ] && sleep 2 && exit 1
                        sleep 100
                        """)) {
            ForkedTp.Result result = job.await();
            Assert.assertEquals(result.status(), 0, result + log());
            Assert.assertEquals(starts(), 4, log());
            Assert.assertTrue(log().contains("has ended with 143: starting it again"), log());
        }
    }

    /** What the processes do with the signal is theirs: tp saves a checkpoint. */
    @Test(timeOut = 120_000)
    public void aSignalToTheScriptReachesTheProcessesAndEndsTheJob() throws Exception {
        try (ForkedTp job =
                submit(
                        """
                        while true; do sleep 0.1; done
                        """)) {
            while (!Files.exists(folder.resolve("starts")) || starts() < 2) {
                Thread.sleep(50);
            }
            List<String> command = List.of("scancel", "--batch", "--signal=TERM", "1");
            try (ForkedTp scancel = ForkedTp.script(command, Map.of("SLURM_CONF", slurm.conf()))) {
                Assert.assertEquals(scancel.await().status(), 0);
            }
            ForkedTp.Result result = job.await();
            Assert.assertEquals(result.status(), 143, result + log());
            Assert.assertEquals(starts(), 2, log());
            Assert.assertEquals(Files.readAllLines(folder.resolve("saved")).size(), 2, log());
        }
    }

    /** Slurm gives up the node after its time-out, and the script goes on with the other. */
    @Test(timeOut = 240_000)
    public void aJobThatLosesANodeGoesOnWithTheOthers() throws Exception {
        try (ForkedTp job =
                submit(
                        """
                        echo "$SLURMD_NODENAME $$ of $SLURM_NTASKS" >> "$here/tasks"
                        [ "$SLURM_NTASKS" = 1 ] && exit 0
                        while [ ! -e "$here/lost" ]; do sleep 0.1; done
                        exit 1 # as tp does when a process of the job is lost
                        """)) {
            Path tasks = folder.resolve("tasks");
            while (!Files.exists(tasks) || Files.readAllLines(tasks).size() < 2) {
                Thread.sleep(50);
            }
            for (String task : Files.readAllLines(tasks)) {
                if (task.startsWith("n2 ")) {
                    slurm.lose("n2", Long.parseLong(task.split(" ")[1]));
                }
            }
            Files.createFile(folder.resolve("lost"));
            ForkedTp.Result result = job.await();
            Assert.assertEquals(result.status(), 0, result + log());
            List<String> all = Files.readAllLines(tasks);
            Assert.assertEquals(all.size(), 3, all.toString());
            Assert.assertTrue(all.get(2).matches("n1 \\d+ of 1"), all.toString());
        }
    }

    private ForkedTp submit(String body) throws IOException {
        Path tp = folder.resolve("tp");
        String head =
                """
                #!/bin/bash
                here=%s
                trap 'echo >> "$here/saved"; exit 143' TERM
                echo >> "$here/starts"
                """
                        .formatted(folder);
        Files.writeString(tp, head + body);
        Files.setPosixFilePermissions(tp, PosixFilePermissions.fromString("rwxr-xr-x"));
        List<String> command = new ArrayList<>(List.of("sbatch", "-W", "--ntasks-per-node=1"));
        command.addAll(List.of("-o", folder.resolve("log").toString()));
        command.add(Path.of("clusters/slurm.sh").toAbsolutePath().toString());
        command.add("--resume");
        return ForkedTp.script(command, Map.of("SLURM_CONF", slurm.conf(), "TP", tp.toString()));
    }

    private int starts() throws IOException {
        return Files.readAllLines(folder.resolve("starts")).size();
    }

    private String log() throws IOException {
        Path log = folder.resolve("log");
        return Files.exists(log) ? Files.readString(log) : "";
    }
}

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
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * What {@code mpirun.sh} and {@code slurm.sh} do with signals and with processes that are lost:
 * played by shell scripts instead of tp. Slurm, on two nodes, with {@code -Dclusters.all=true}.
 */
public class PlayedScriptsTest {

    private Path folder;
    private SlurmCluster slurm;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("tp-played");
    }

    @AfterMethod(alwaysRun = true)
    public void deleteFolder() throws Exception {
        if (slurm != null) {
            slurm.stop();
            slurm = null;
        }
        Utils.deleteQuietly(folder);
    }

    /** By itself mpirun kills the processes after a second, and does not tell that it was asked. */
    @Test(timeOut = 120_000)
    public void aSignalToMpirunLeavesTheTimeToSaveAndEndsTheJob() throws Exception {
        ForkedTp.skipWithout("mpirun", "apt-get install openmpi-bin libopenmpi3");
        List<String> command = List.of(script("mpirun.sh"), "train");
        Map<String, String> variables =
                Map.of(
                        "TP",
                        play(2, "while true; do sleep 0.1; done"),
                        "RESTARTS",
                        "2",
                        "GRACE",
                        "8");
        try (ForkedTp job = ForkedTp.script(command, variables)) {
            awaitLines("starts", 2, job);
            ForkedTp.Result result = job.stop();
            Assert.assertEquals(result.status(), 143, result.toString());
            Assert.assertEquals(lines("saved").size(), 2, result.toString());
            Assert.assertEquals(lines("starts").size(), 2, result.toString());
        }
    }

    /**
     * What mpirun hands on crosses the network in clear: the name of a file, where there is one.
     */
    @Test(timeOut = 60_000)
    public void mpirunIsGivenTheFileOfTheSecretAndNotTheSecret() throws Exception {
        List<String> command = List.of(script("mpirun.sh"), "train");
        for (boolean file : new boolean[] {false, true}) {
            Map<String, String> variables = new HashMap<>();
            variables.put("HOSTS", "a:1,b:1");
            variables.put("TP_SECRET", "a-long-random-text");
            if (file) {
                variables.put("TP_SECRET_FILE", "/a/file");
            }
            for (boolean arguments : new boolean[] {true, false}) { // or the environment
                variables.put("MPIRUN", arguments ? "echo arguments" : "bash -c env");
                try (ForkedTp job = ForkedTp.script(command, variables)) {
                    String output = job.await().toString();
                    String named = arguments ? "-x TP_SECRET_FILE " : "TP_SECRET_FILE=";
                    String given = arguments ? "-x TP_SECRET " : "TP_SECRET=";
                    Assert.assertEquals(output.contains(named), file, output);
                    Assert.assertEquals(output.contains(given), !file, output);
                }
            }
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
            assertEnds(job, 0, 4);
            String log = String.join("\n", lines("log"));
            Assert.assertTrue(log.contains("has ended with 143: starting it again"), log);
        }
    }

    /** What the processes do with the signal is theirs: tp saves a checkpoint. */
    @Test(timeOut = 120_000)
    public void aSignalToTheScriptReachesTheProcessesAndEndsTheJob() throws Exception {
        try (ForkedTp job = submit("while true; do sleep 0.1; done")) {
            awaitLines("starts", 2, job);
            List<String> command = List.of("scancel", "--batch", "--signal=TERM", "1");
            try (ForkedTp scancel = ForkedTp.script(command, Map.of("SLURM_CONF", slurm.conf()))) {
                Assert.assertEquals(scancel.await().status(), 0);
            }
            assertEnds(job, 143, 2);
            Assert.assertEquals(lines("saved").size(), 2, "" + lines("log"));
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
            awaitLines("tasks", 2, job);
            for (String task : lines("tasks")) {
                if (task.startsWith("n2 ")) {
                    slurm.lose("n2", Long.parseLong(task.split(" ")[1]));
                }
            }
            Files.createFile(folder.resolve("lost"));
            assertEnds(job, 0, 3);
            Assert.assertTrue(lines("tasks").get(2).matches("n1 \\d+ of 1"), "" + lines("tasks"));
        }
    }

    /** Submits {@code slurm.sh}, with a script instead of tp. */
    private ForkedTp submit(String body) throws Exception {
        if (!Boolean.getBoolean("clusters.all")) {
            throw new SkipException("With -Dclusters.all=true");
        }
        slurm = SlurmCluster.start();
        String log = folder.resolve("log").toString();
        List<String> command =
                List.of(
                        "sbatch",
                        "-W",
                        "--ntasks-per-node=1",
                        "-o",
                        log,
                        script("slurm.sh"),
                        "--resume");
        return ForkedTp.script(command, Map.of("SLURM_CONF", slurm.conf(), "TP", play(0, body)));
    }

    private static String script(String name) {
        return Path.of("clusters", name).toAbsolutePath().toString();
    }

    /** Returns a script that notes its start, and some seconds after it was asked to end, that. */
    private String play(int seconds, String body) throws IOException {
        Path tp = folder.resolve("tp");
        String head =
                """
                #!/bin/bash
                here=%2$s
                trap 'sleep %1$d; echo >> "$here/saved"; exit 143' TERM
                echo >> "$here/starts"
                """
                        .formatted(seconds, folder);
        Files.writeString(tp, head + body);
        Files.setPosixFilePermissions(tp, PosixFilePermissions.fromString("rwxr-xr-x"));
        return tp.toString();
    }

    private List<String> lines(String name) throws IOException {
        Path file = folder.resolve(name);
        return Files.exists(file) ? Files.readAllLines(file) : List.of();
    }

    private void awaitLines(String name, int count, ForkedTp job) throws Exception {
        while (lines(name).size() < count) {
            Assert.assertTrue(job.isAlive());
            Thread.sleep(50);
        }
    }

    private void assertEnds(ForkedTp job, int status, int starts) throws Exception {
        ForkedTp.Result result = job.await();
        Assert.assertEquals(result.status(), status, result + "\n" + lines("log"));
        Assert.assertEquals(lines("starts").size(), starts, "" + lines("log"));
    }
}

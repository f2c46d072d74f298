package io.djltp.examples.clusters;

import ai.djl.util.Utils;

import io.djltp.examples.ForkedTp;
import io.djltp.testing.FreePort;

import org.testng.SkipException;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** This machine as a Slurm cluster of two nodes, by {@code slurm-on-one-machine.sh}. */
final class SlurmCluster {

    private static final String REMEDY =
            "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge";

    private final Path folder;

    private SlurmCluster(Path folder) {
        this.folder = folder;
    }

    /** Starts it, or skips the test where that cannot be. */
    static SlurmCluster start() throws Exception {
        if (!Files.isExecutable(Path.of("/usr/sbin/slurmctld"))
                || !Files.isExecutable(Path.of("/usr/sbin/munged"))) {
            throw new SkipException("There is no Slurm: " + REMEDY);
        }
        ForkedTp.skipWithout("srun", REMEDY);
        if (!"root".equals(System.getProperty("user.name"))) {
            throw new SkipException("The daemons of Slurm are started by root only");
        }
        // munged is of another user, who has to get there
        SlurmCluster cluster = new SlurmCluster(Files.createTempDirectory("tp-slurm"));
        cluster.run("start");
        return cluster;
    }

    String conf() {
        return folder.resolve("slurm.conf").toString();
    }

    /**
     * Ends all that runs on a node.
     *
     * @param task the process of a task on it
     */
    void lose(String node, long task) throws IOException {
        ProcessHandle handle = ProcessHandle.of(task).orElseThrow();
        ProcessHandle step = handle.parent().orElseThrow(); // slurmstepd
        String daemon = Files.readString(folder.resolve("slurmd." + node + ".pid")).strip();
        ProcessHandle.of(Long.parseLong(daemon)).orElseThrow().destroyForcibly();
        step.destroyForcibly();
        handle.destroyForcibly();
    }

    private void run(String what) throws IOException, InterruptedException {
        Path log = folder.resolve(what + ".log");
        ProcessBuilder builder =
                new ProcessBuilder(
                        Path.of("clusters/slurm-on-one-machine.sh").toAbsolutePath().toString(),
                        what,
                        folder.toString());
        // the nodes have the ports after it
        builder.environment().putAll(Map.of("PORT", "" + FreePort.find()));
        builder.redirectErrorStream(true).redirectOutput(log.toFile());
        int status = builder.start().waitFor();
        if (status != 0) {
            throw new IllegalStateException(status + ": " + Files.readString(log));
        }
    }

    /** Stops the daemons. */
    void stop() throws IOException, InterruptedException {
        run("stop");
        Utils.deleteQuietly(folder);
    }
}

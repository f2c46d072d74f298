package io.djltp.examples.spark;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * {@code spark-on-one-machine.sh} starts a cluster, on which {@code spark.sh} trains what it trains
 * in one JVM.
 */
public class SparkScriptsTest {

    private static final Path SCRIPTS = Path.of("..", "clusters").toAbsolutePath().normalize();
    private static final String ON_ONE_MACHINE = "spark-on-one-machine.sh";

    private Path folder;
    private final Map<String, String> variables = new HashMap<>();

    @BeforeClass
    public void start() throws Exception {
        folder = Files.createTempDirectory("tp-spark-scripts");
        try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            variables.put("PORT", "" + free.getLocalPort());
        }
        // prints: export SPARK_HOME=... MASTER=...
        String export = run(ON_ONE_MACHINE, "start", folder.toString(), "2", "1", "1500m");
        for (String word : export.strip().split(" ")) {
            int equals = word.indexOf('=');
            if (equals > 0) {
                variables.put(word.substring(0, equals), word.substring(equals + 1));
            }
        }
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() throws Exception {
        run(ON_ONE_MACHINE, "stop", folder.toString()); // again, after a test that has failed
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        }
    }

    /** With all lemmas of the dictionary as classes. */
    @Test(timeOut = 1_200_000)
    public void theClusterTrainsWhatOneJvmTrains() throws Exception {
        Assert.assertTrue(
                variables.get("MASTER").matches("spark://127.0.0.1:\\d+"), "" + variables);
        String onCluster = train();
        Assert.assertTrue(
                onCluster.matches("120658 classes, 2 ranks(\nepoch [12]: loss \\d+\\.\\d+){2}"),
                onCluster);
        for (int worker = 1; worker <= 2; worker++) {
            String log = Files.readString(folder.resolve("worker" + worker + ".log"));
            Assert.assertTrue(log.contains("Asked to launch executor"), log);
        }
        variables.put("MASTER", "local[2]");
        Assert.assertEquals(train(), onCluster);
    }

    @Test(dependsOnMethods = "theClusterTrainsWhatOneJvmTrains", timeOut = 120_000)
    public void itIsStopped() throws Exception {
        List<ProcessHandle> daemons = new ArrayList<>();
        for (String name : List.of("master", "worker1", "worker2")) {
            String pid = Files.readString(folder.resolve(name + ".pid")).strip();
            daemons.add(ProcessHandle.of(Long.parseLong(pid)).orElseThrow());
        }
        run(ON_ONE_MACHINE, "stop", folder.toString());
        for (ProcessHandle daemon : daemons) {
            Assert.assertFalse(daemon.isAlive());
        }
    }

    /** Returns the number of classes and the losses. */
    private String train() throws Exception {
        String words = "--words 512 --batch 128 --dim 8 --epochs 2";
        return run("spark.sh", words.split(" "))
                .lines()
                .filter(line -> line.matches(".* classes, .*|epoch .*"))
                .collect(Collectors.joining("\n"));
    }

    /** Runs a script, and returns what it prints. */
    private String run(String script, String... arguments) throws IOException {
        List<String> command = new ArrayList<>(List.of(SCRIPTS.resolve(script).toString()));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().keySet().removeAll(List.of("SPARK_HOME", "MASTER"));
        builder.environment().putAll(variables);
        Path out = folder.resolve(script + ".out");
        Path err = folder.resolve(script + ".err");
        Process process = builder.redirectOutput(out.toFile()).redirectError(err.toFile()).start();
        try {
            Assert.assertTrue(process.waitFor(580, TimeUnit.SECONDS), Files.readString(err));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(e);
        } finally {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
        Assert.assertEquals(process.exitValue(), 0, Files.readString(err));
        return Files.readString(out);
    }
}

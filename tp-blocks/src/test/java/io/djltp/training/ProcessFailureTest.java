package io.djltp.training;

import io.djltp.layout.ParallelMode;
import io.djltp.training.FaultyProcess.Fault;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** A rank of one process fails or does something else than the others: all processes say so. */
public class ProcessFailureTest {

    private static final int PROCESSES = 2;
    private static final int RANKS = 4;
    private static final int SECONDS = 60;

    /** In the process of rank 0 and in the other one. */
    @DataProvider
    public Object[][] victims() {
        return new Object[][] {
            {ParallelMode.TENSOR, 1}, {ParallelMode.MIXED, 3}, {ParallelMode.DATA, 2}
        };
    }

    /** All at once: these processes do little but wait for the time-out. */
    @DataProvider(parallel = true)
    public Object[][] sleepers() {
        return victims();
    }

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{ParallelMode.TENSOR}, {ParallelMode.MIXED}, {ParallelMode.DATA}};
    }

    @Test(dataProvider = "victims", timeOut = 90_000)
    public void aRankThrows(ParallelMode mode, int victim) throws Exception {
        List<String> reports = run(mode, Fault.THROW, victim);
        for (int process = 0; process < PROCESSES; process++) {
            boolean here = victim / 2 == process;
            String start = "rank " + victim + (here ? " here: " : " remote: ");
            String report = reports.get(process);
            Assert.assertTrue(report.startsWith(start), reports.toString());
            Assert.assertTrue(report.contains("RankFailedException"), report);
            Assert.assertTrue(report.contains("rank " + victim), report);
            Assert.assertTrue(report.contains("failed: "), report);
            Assert.assertTrue(report.contains("IllegalStateException: no more forward"), report);
        }
    }

    @Test(dataProvider = "victims", timeOut = 90_000)
    public void aRankLeavesOutAnOperation(ParallelMode mode, int victim) throws Exception {
        List<String> reports = run(mode, Fault.LEAVE_OUT, victim);
        for (String report : reports) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(
                    report, "rank " + (victim ^ 1) + " all-reduce #\\d+ \\(MAX\\) of \\(7\\)");
            // what its layers call next
            assertMatches(report, "rank " + victim + " all-[a-z]+ #\\d+ .*of \\((?!7\\))");
        }
    }

    @Test(dataProvider = "victims", timeOut = 90_000)
    public void aRankCallsAnotherOperation(ParallelMode mode, int victim) throws Exception {
        List<String> reports = run(mode, Fault.CALL_ANOTHER, victim);
        for (String report : reports) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(report, "rank " + (victim ^ 1) + " all-reduce");
            assertMatches(report, "rank " + victim + " broadcast");
        }
    }

    @Test(dataProvider = "sleepers", timeOut = 90_000)
    public void aRankDoesNotCome(ParallelMode mode, int victim) throws Exception {
        for (String report : run(mode, Fault.SLEEP, victim)) {
            assertMatches(report, "time-out after 4000 ms: rank \\d waits in .* for .*" + victim);
        }
    }

    @Test(dataProvider = "modes", timeOut = 90_000)
    public void aReplicaDrifts(ParallelMode mode) throws Exception {
        for (String report : run(mode, Fault.DRIFT, 3)) {
            assertMatches(
                    report,
                    "after step 3 rank 3 has other values of .*weight \\(6, 5\\) than rank 0");
        }
    }

    @Test(dataProvider = "modes", timeOut = 90_000)
    public void aProcessIteratesAnotherBatch(ParallelMode mode) throws Exception {
        for (String report : run(mode, Fault.OTHER_BATCH, 2)) {
            assertMatches(report, "in step 3 rank 2 has the data of another batch than rank 0");
        }
    }

    @Test(dataProvider = "modes", timeOut = 90_000)
    public void aProcessStopsEarly(ParallelMode mode) throws Exception {
        List<String> reports = run(mode, Fault.STOP_EARLY, 2);
        if (mode == ParallelMode.DATA) { // each process has the whole model: that one is done
            assertMatches(reports.get(0), "the connection to rank [23] was lost in .*");
            Assert.assertEquals(reports.get(1), "trained");
            return;
        }
        for (String report : reports) {
            assertMatches(report, "the ranks called different operations");
        }
    }

    private static void assertMatches(String report, String expected) {
        Assert.assertTrue(report.matches(".*" + expected + ".*"), report);
    }

    /** Returns the reports of the processes. */
    private static List<String> run(ParallelMode mode, Fault fault, int victim)
            throws IOException, InterruptedException {
        int port;
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = socket.getLocalPort();
        }
        List<Process> processes = new ArrayList<>();
        List<Path> outputs = new ArrayList<>();
        try {
            for (int i = 0; i < PROCESSES; i++) {
                outputs.add(Files.createTempFile("faulty", ".txt"));
                processes.add(start(i, port, outputs.get(i), mode, fault, victim));
            }
            List<String> reports = new ArrayList<>();
            for (int i = 0; i < PROCESSES; i++) {
                reports.add(report(processes.get(i), outputs.get(i)));
            }
            return reports;
        } finally {
            processes.forEach(Process::destroyForcibly);
            for (Path output : outputs) {
                Files.delete(output);
            }
        }
    }

    private static Process start(
            int process, int port, Path output, ParallelMode mode, Fault fault, int victim)
            throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-Dai.djl.offline=true", "-DdisableProgressBar=true"));
        command.add("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.add(FaultyProcess.class.getName());
        command.addAll(List.of(mode.name(), "" + RANKS, fault.name(), "" + victim));
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment()
                .putAll(
                        Map.of(
                                "RANK", "" + process,
                                "WORLD_SIZE", "" + PROCESSES,
                                "MASTER_ADDR", "127.0.0.1",
                                "MASTER_PORT", "" + port,
                                "OMP_NUM_THREADS", "1"));
        return builder.redirectErrorStream(true).redirectOutput(output.toFile()).start();
    }

    private static String report(Process process, Path output)
            throws IOException, InterruptedException {
        boolean ended = process.waitFor(SECONDS, TimeUnit.SECONDS);
        String text = Files.readString(output, StandardCharsets.UTF_8);
        Assert.assertTrue(ended, "the process hangs: " + text);
        List<String> reports = text.lines().filter(line -> line.startsWith("REPORT ")).toList();
        Assert.assertEquals(reports.size(), 1, text);
        return reports.get(0).substring("REPORT ".length());
    }
}

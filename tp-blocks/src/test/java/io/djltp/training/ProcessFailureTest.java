package io.djltp.training;

import io.djltp.layout.ParallelMode;
import io.djltp.training.FaultyProcess.Fault;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A rank of one process fails or does something else than the others: all processes say so. They go
 * through the faults of a mode one after another, each in a job of its own.
 */
public class ProcessFailureTest {

    private static final int PROCESSES = 2;
    private static final int RANKS = 4;
    private static final int SECONDS = 80;

    /** What all processes have reported of each fault. */
    private final Map<ParallelMode, Map<Fault, List<String>>> reports =
            new EnumMap<>(ParallelMode.class);

    /** In the process of rank 0 and in the other one. */
    @DataProvider
    public Object[][] victims() {
        return new Object[][] {
            {ParallelMode.TENSOR, 1}, {ParallelMode.MIXED, 3}, {ParallelMode.DATA, 2}
        };
    }

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{ParallelMode.TENSOR}, {ParallelMode.MIXED}, {ParallelMode.DATA}};
    }

    @Test(dataProvider = "victims", timeOut = 90_000)
    public void aRankThrows(ParallelMode mode, int victim) throws Exception {
        List<String> said = run(mode, Fault.THROW, victim);
        for (int process = 0; process < PROCESSES; process++) {
            boolean here = victim / 2 == process;
            String start = "rank " + victim + (here ? " here: " : " remote: ");
            String report = said.get(process);
            Assert.assertTrue(report.startsWith(start), said.toString());
            Assert.assertTrue(report.contains("RankFailedException"), report);
            Assert.assertTrue(report.contains("rank " + victim), report);
            Assert.assertTrue(report.contains("failed: "), report);
            Assert.assertTrue(report.contains("IllegalStateException: no more forward"), report);
        }
    }

    @Test(dataProvider = "victims", timeOut = 90_000)
    public void aRankLeavesOutAnOperation(ParallelMode mode, int victim) throws Exception {
        List<String> said = run(mode, Fault.LEAVE_OUT, victim);
        for (String report : said) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(
                    report, "rank " + (victim ^ 1) + " all-reduce #\\d+ \\(MAX\\) of \\(7\\)");
            // what its layers call next
            assertMatches(report, "rank " + victim + " all-[a-z]+ #\\d+ .*of \\((?!7\\))");
        }
    }

    @Test(dataProvider = "victims", timeOut = 90_000)
    public void aRankCallsAnotherOperation(ParallelMode mode, int victim) throws Exception {
        List<String> said = run(mode, Fault.CALL_ANOTHER, victim);
        for (String report : said) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(report, "rank " + (victim ^ 1) + " all-reduce");
            assertMatches(report, "rank " + victim + " broadcast");
        }
    }

    @Test(dataProvider = "victims", timeOut = 90_000)
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

    /** The process that has compared the replicas before its save compares them at the end, too. */
    @Test(dataProvider = "modes", timeOut = 90_000)
    public void aReplicaDriftsAfterOneProcessHasSaved(ParallelMode mode) throws Exception {
        for (String report : run(mode, Fault.SAVE_ALONE, 3)) {
            assertMatches(
                    report,
                    "after step 6 rank 3 has other values of .*weight \\(6, 5\\) than rank 0");
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
        List<String> said = run(mode, Fault.STOP_EARLY, 2);
        if (mode == ParallelMode.DATA) { // each process has the whole model: that one is done
            assertMatches(said.get(0), "the connection to rank [23] was lost in .*");
            Assert.assertEquals(said.get(1), "trained");
            return;
        }
        for (String report : said) {
            assertMatches(report, "the ranks called different operations");
            assertMatches(report, "issued by the close of the trainer");
            assertMatches(
                    report, "as many batches.*settings\\? One in the close of the trainer has");
        }
    }

    @Test(dataProvider = "modes", timeOut = 90_000)
    public void theCallerOfOneProcessThrowsAndTells(ParallelMode mode) throws Exception {
        List<String> said = run(mode, Fault.CALLER_THROWS, 2);
        assertMatches(
                said.get(0),
                "rank -1 remote: .*process 1 \\(.*\\) failed: java.lang.IllegalStateException: no"
                        + " more batches");
        Assert.assertEquals(
                said.get(1), "caller: java.lang.IllegalStateException: no more batches");
    }

    private static void assertMatches(String report, String expected) {
        Assert.assertTrue(report.matches(".*" + expected + ".*"), report);
    }

    /** Returns the reports of the processes. */
    private List<String> run(ParallelMode mode, Fault fault, int victim)
            throws IOException, InterruptedException {
        Assert.assertEquals(victim, victim(mode, fault));
        if (!reports.containsKey(mode)) {
            reports.put(mode, run(mode));
        }
        List<String> ofFault = reports.get(mode).get(fault);
        Assert.assertEquals(ofFault.size(), PROCESSES, reports.get(mode).toString());
        return ofFault;
    }

    private int victim(ParallelMode mode, Fault fault) {
        return switch (fault) {
            case DRIFT, SAVE_ALONE -> 3;
            case OTHER_BATCH, STOP_EARLY, CALLER_THROWS -> 2;
            default -> {
                for (Object[] victim : victims()) {
                    if (victim[0] == mode) {
                        yield (int) victim[1];
                    }
                }
                throw new IllegalArgumentException("" + mode);
            }
        };
    }

    /** Runs processes that have all faults of a mode. */
    private Map<Fault, List<String>> run(ParallelMode mode)
            throws IOException, InterruptedException {
        List<String> arguments = new ArrayList<>(List.of(mode.name(), "" + RANKS));
        List<String> ports = JobProcess.ports(Fault.values().length);
        for (Fault fault : Fault.values()) {
            String victim = "" + victim(mode, fault);
            arguments.addAll(List.of(fault.name(), victim, ports.get(fault.ordinal())));
        }
        List<Process> processes = new ArrayList<>();
        List<Path> outputs = new ArrayList<>();
        Map<Fault, List<String>> ofFaults = new EnumMap<>(Fault.class);
        try {
            for (int i = 0; i < PROCESSES; i++) {
                outputs.add(Files.createTempFile("faulty", ".txt"));
                processes.add(
                        JobProcess.start(
                                FaultyProcess.class, i, PROCESSES, outputs.get(i), arguments));
            }
            for (int i = 0; i < PROCESSES; i++) {
                String text = output(processes.get(i), outputs.get(i));
                for (Fault fault : Fault.values()) {
                    ofFaults.computeIfAbsent(fault, f -> new ArrayList<>())
                            .add(report(text, fault));
                }
            }
            return ofFaults;
        } finally {
            processes.forEach(Process::destroyForcibly);
            for (Path output : outputs) {
                Files.delete(output);
            }
        }
    }

    private static String output(Process process, Path output)
            throws IOException, InterruptedException {
        boolean ended = process.waitFor(SECONDS, TimeUnit.SECONDS);
        String text = Files.readString(output, StandardCharsets.UTF_8);
        Assert.assertTrue(ended, "the process hangs: " + text);
        return text;
    }

    private static String report(String text, Fault fault) {
        String start = "REPORT " + fault + " ";
        List<String> lines = text.lines().filter(line -> line.startsWith(start)).toList();
        Assert.assertEquals(lines.size(), 1, text);
        return lines.get(0).substring(start.length());
    }
}

package io.djltp.training;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import io.djltp.layout.ParallelMode;
import io.djltp.training.FaultyProcess.Fault;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * A rank of one process fails or does something else than the others: all processes say so. They go
 * through all faults of all modes one after another, each in a job of its own.
 */
public class ProcessFailureTest {

    private static final int PROCESSES = 2;
    private static final int SECONDS = 240;

    /** What each process has printed. */
    private final List<String> outputs = new ArrayList<>();

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

    @Test(dataProvider = "victims")
    public void aRankThrows(ParallelMode mode, int victim) {
        List<String> said = reports(mode, Fault.THROW, victim);
        for (int process = 0; process < PROCESSES; process++) {
            boolean here = victim / 2 == process;
            String start = "rank " + victim + (here ? " here: " : " remote: ");
            String report = said.get(process);
            assertTrue(report.startsWith(start), said.toString());
            assertTrue(report.contains("RankFailedException"), report);
            assertTrue(report.contains("rank " + victim), report);
            assertTrue(report.contains("failed: "), report);
            assertTrue(report.contains("IllegalStateException: no more forward"), report);
        }
    }

    @Test(dataProvider = "victims")
    public void aRankLeavesOutAnOperation(ParallelMode mode, int victim) {
        List<String> said = reports(mode, Fault.LEAVE_OUT, victim);
        for (String report : said) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(
                    report, "rank " + (victim ^ 1) + " all-reduce #\\d+ \\(MAX\\) of \\(7\\)");
            // what its layers call next
            assertMatches(report, "rank " + victim + " all-[a-z]+ #\\d+ .*of \\((?!7\\))");
        }
    }

    @Test(dataProvider = "victims")
    public void aRankCallsAnotherOperation(ParallelMode mode, int victim) {
        List<String> said = reports(mode, Fault.CALL_ANOTHER, victim);
        for (String report : said) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(report, "rank " + (victim ^ 1) + " all-reduce");
            assertMatches(report, "rank " + victim + " broadcast");
        }
    }

    @Test(dataProvider = "victims")
    public void aRankDoesNotCome(ParallelMode mode, int victim) {
        for (String report : reports(mode, Fault.SLEEP, victim)) {
            assertMatches(report, "time-out after 4000 ms: rank \\d waits in .* for .*" + victim);
        }
    }

    @Test(dataProvider = "modes")
    public void aReplicaDrifts(ParallelMode mode) {
        for (String report : reports(mode, Fault.DRIFT, 3)) {
            assertMatches(
                    report,
                    "after step 3 rank 3 has other values of .*weight \\(6, 5\\) than rank 0");
        }
    }

    @Test(dataProvider = "modes")
    public void aProcessSavesAlone(ParallelMode mode) {
        for (String report : reports(mode, Fault.SAVE_ALONE, 3)) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(report, "issued by the save of the model, which all processes call");
            assertMatches(report, "issued by the close of the trainer");
        }
    }

    @Test(dataProvider = "modes")
    public void aProcessSavesWhileTheOthersCallNothing(ParallelMode mode) {
        for (String report : reports(mode, Fault.SAVE_UNHEARD, 3)) {
            assertMatches(
                    report,
                    "time-out after 4000 ms: rank \\d waits in .*the save of the model, which all"
                            + " processes call");
        }
    }

    @Test(dataProvider = "modes")
    public void aProcessIteratesAnotherBatch(ParallelMode mode) {
        for (String report : reports(mode, Fault.OTHER_BATCH, 2)) {
            assertMatches(report, "in step 3 rank 2 has the data of another batch than rank 0");
        }
    }

    @Test(dataProvider = "modes")
    public void aProcessGivesItsLossOtherLabels(ParallelMode mode) {
        for (String report : reports(mode, Fault.OTHER_LABELS, 2)) {
            assertMatches(report, "in step 3 rank 2 has the labels of another batch than rank 0");
        }
    }

    @Test(dataProvider = "modes")
    public void aProcessEvaluatesAnotherBatch(ParallelMode mode) {
        String expected = "in evaluation batch 1 after step 3 rank 2 has the data of another batch";
        for (String report : reports(mode, Fault.OTHER_EVALUATION, 2)) {
            assertMatches(report, expected);
        }
    }

    /**
     * Nobody tells how many batches make a step. In tensor mode the comparison of the second one
     * meets that of the replicas, as many numbers; whoever is first says what differs.
     */
    @Test(dataProvider = "modes")
    public void aProcessMakesAStepOfMoreBatches(ParallelMode mode) {
        String expected =
                mode == ParallelMode.TENSOR
                        ? "step 3 rank 2 has .*(the same batches, in the same order|drifted apart)"
                        : "the ranks called different operations.* as many batches";
        for (String report : reports(mode, Fault.ANOTHER_BATCH_IN_STEP, 2)) {
            assertMatches(report, expected);
        }
    }

    /** What is cut is updated by each rank alone: the others would train on without its part. */
    @Test(dataProvider = "modes")
    public void aProcessFreezesALayer(ParallelMode mode) {
        String frozen = ", with 2 of 4 parameters frozen, the last 03ColumnParallelLinear_bias";
        for (String report : reports(mode, Fault.FREEZE, 2)) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(report, "rank 2 all-[^;]*" + frozen + " \\(checksum [0-9a-f]+\\)");
            assertFalse(report.matches(".*rank 0 all-[^;]*" + frozen + ".*"), report);
            assertMatches(report, "Freeze and thaw the same parameters on all processes");
        }
    }

    @Test(dataProvider = "modes")
    public void aProcessStopsEarly(ParallelMode mode) {
        List<String> said = reports(mode, Fault.STOP_EARLY, 2);
        if (mode == ParallelMode.DATA) { // each process has the whole model: that one is done
            assertMatches(said.get(0), "the connection to rank [23] was lost in .*");
            assertEquals(said.get(1), "trained");
            return;
        }
        for (String report : said) {
            assertMatches(report, "the ranks called different operations");
            assertMatches(report, "issued by the close of the trainer");
            assertMatches(
                    report, "as many batches.*settings\\? One in the close of the trainer has");
        }
    }

    /** Its close gathers as many numbers as the comparison of batches. */
    @Test(dataProvider = "modes")
    public void aProcessClosesWhereOthersCompareBatches(ParallelMode mode) {
        for (String report : reports(mode, Fault.CLOSE_AT_COMPARISON, 2)) {
            assertMatches(report, "the ranks called different operations: ");
            assertMatches(report, "issued by the comparison of batches");
            assertMatches(report, "issued by the close of the trainer, comparing replicas");
        }
    }

    @Test(dataProvider = "victims")
    public void aProcessLeavesItsTrainerOpen(ParallelMode mode, int victim) {
        List<String> said = reports(mode, Fault.LEAVE_OPEN, victim);
        int process = victim / 2;
        assertEquals(said.get(process), "caller: java.lang.IllegalStateException: no data");
        assertMatches(
                said.get(1 - process),
                "remote: .*process "
                        + process
                        + " \\(.*\\) has left the job with a trainer or predictor open: see the"
                        + " output of its process for an exception");
    }

    @Test(dataProvider = "modes")
    public void theCallerOfOneProcessThrowsAndTells(ParallelMode mode) {
        List<String> said = reports(mode, Fault.CALLER_THROWS, 2);
        assertMatches(
                said.get(0),
                "rank -1 remote: .*process 1 \\(.*\\) failed: java.lang.IllegalStateException: no"
                        + " more batches");
        assertEquals(said.get(1), "caller: java.lang.IllegalStateException: no more batches");
    }

    private static void assertMatches(String report, String expected) {
        assertTrue(report.matches(".*" + expected + ".*"), report);
    }

    /** Returns the reports of the processes. */
    private List<String> reports(ParallelMode mode, Fault fault, int victim) {
        assertEquals(victim, victim(mode, fault));
        String start = "REPORT " + mode + " " + fault + " ";
        List<String> reports = new ArrayList<>();
        for (String output : outputs) {
            List<String> lines = output.lines().filter(line -> line.startsWith(start)).toList();
            assertEquals(lines.size(), 1, output);
            reports.add(lines.get(0).substring(start.length()));
        }
        return reports;
    }

    private int victim(ParallelMode mode, Fault fault) {
        return switch (fault) {
            case DRIFT, SAVE_ALONE, SAVE_UNHEARD -> 3;
            case OTHER_BATCH,
                    OTHER_LABELS,
                    OTHER_EVALUATION,
                    ANOTHER_BATCH_IN_STEP,
                    FREEZE,
                    STOP_EARLY,
                    CLOSE_AT_COMPARISON,
                    CALLER_THROWS ->
                    2;
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

    /** Runs processes that have all faults of all modes. */
    @BeforeClass(timeOut = 300_000)
    public void runProcesses() throws IOException, InterruptedException {
        List<String> arguments = new ArrayList<>();
        List<String> ports = JobProcess.ports(ParallelMode.values().length * Fault.values().length);
        for (ParallelMode mode : ParallelMode.values()) {
            for (Fault fault : Fault.values()) {
                String port = ports.get(arguments.size() / 4);
                arguments.addAll(
                        List.of(mode.name(), fault.name(), "" + victim(mode, fault), port));
            }
        }
        List<Process> processes = new ArrayList<>();
        List<Path> files = new ArrayList<>();
        try {
            for (int i = 0; i < PROCESSES; i++) {
                files.add(Files.createTempFile("faulty", ".txt"));
                processes.add(
                        JobProcess.start(
                                FaultyProcess.class, i, PROCESSES, files.get(i), arguments));
            }
            for (int i = 0; i < PROCESSES; i++) {
                boolean ended = processes.get(i).waitFor(SECONDS, TimeUnit.SECONDS);
                outputs.add(Files.readString(files.get(i), StandardCharsets.UTF_8));
                assertTrue(ended, "the process hangs: " + outputs.get(i));
            }
        } finally {
            processes.forEach(Process::destroyForcibly);
            for (Path file : files) {
                Files.delete(file);
            }
        }
    }
}

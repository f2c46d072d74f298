package io.djltp.training;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import io.djltp.training.DifferentProcess.Difference;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * Processes whose networks or settings differ are refused before the first step, on all of them and
 * with the same words; the job goes on with what is the same.
 */
public class DifferentProcessesTest {

    private static final String SAME = "(, sum [-0-9.E]+)?";
    private static final String PROCESS_0 = " on process 0 \\(rank 0, pid \\d+ on .*\\)";
    private static final String PROCESS_1 = " on process 1 \\(rank 1, pid \\d+ on .*\\)";
    private static final String REMEDY =
            ": build the same network, with the same settings, on all processes";

    private static final String SEED_REMEDY =
            ": set the same seed \\(Engine.getInstance\\(\\).setRandomSeed\\) and initializers, or"
                    + " load the same file, on all processes";

    private final Map<Enum<?>, List<String>> reports = new HashMap<>();

    @BeforeClass
    public void run() throws IOException, InterruptedException {
        String port = JobProcess.ports(1).get(0);
        List<Process> processes = new ArrayList<>();
        List<Path> outputs = new ArrayList<>();
        try {
            for (int i = 0; i < 2; i++) {
                outputs.add(Files.createTempFile("different", ".txt"));
                processes.add(
                        JobProcess.start(
                                DifferentProcess.class, i, 2, outputs.get(i), List.of(port)));
            }
            for (int i = 0; i < 2; i++) {
                boolean ended = processes.get(i).waitFor(120, TimeUnit.SECONDS);
                String text = Files.readString(outputs.get(i), StandardCharsets.UTF_8);
                assertTrue(ended, "the process hangs: " + text);
                for (Enum<?> difference : all()) {
                    reports.computeIfAbsent(difference, d -> new ArrayList<>())
                            .add(report(text, difference));
                }
            }
        } finally {
            processes.forEach(Process::destroyForcibly);
            for (Path output : outputs) {
                Files.delete(output);
            }
        }
    }

    private static List<Enum<?>> all() {
        List<Enum<?>> all = new ArrayList<>(List.of(Difference.values()));
        all.addAll(List.of(DifferentOption.values()));
        return all;
    }

    private static String report(String text, Enum<?> difference) {
        String start = "REPORT " + difference + " ";
        List<String> lines = text.lines().filter(line -> line.startsWith(start)).toList();
        assertEquals(lines.size(), 1, text);
        return lines.get(0).substring(start.length());
    }

    @DataProvider
    public Object[][] networks() {
        return new Object[][] {
            {
                Difference.UNITS,
                "the parameter 04ColumnParallelLinear_weight",
                "(8, 6) float32, cut along axis 0 (Axiswise)",
                "(9, 6) float32, cut along axis 0 (Axiswise)"
            },
            {
                Difference.FROZEN,
                "the parameter 01Linear_weight",
                "(6, 5) float32",
                "(6, 5) float32, frozen"
            },
            {Difference.BLOCK, "the network/02LambdaBlock", "ai.djl.nn.LambdaBlock", "not there"},
            {
                Difference.MORE_BLOCKS,
                "the network/06LambdaBlock",
                "ai.djl.nn.LambdaBlock",
                "not there"
            },
        };
    }

    @DataProvider
    public Object[][] settings() {
        return new Object[][] {
            {Difference.MODE, "the mode or mesh", "TENSOR mode", "DATA mode"},
            {Difference.CLIP_NORM, "optGradientClipNorm", "0.0", "1.0"},
            {
                Difference.DRIFT_CHECK,
                "optDriftCheck",
                "after steps 1, 2, 4, 8, ...",
                "every 3 steps"
            },
            {Difference.RATE, "the optimizer.learningRateTracker.value", "0.01", "0.02"},
            {Difference.MOMENTUM, "the optimizer.momentum", "0.0", "0.9"},
            {
                Difference.OPTIMIZER,
                "the optimizer",
                "ai.djl.training.optimizer.Sgd",
                "ai.djl.training.optimizer.Adam"
            },
            {
                Difference.LOSS,
                "the loss",
                "ai.djl.training.loss.L2Loss",
                "ai.djl.training.loss.L1Loss"
            },
        };
    }

    @Test(dataProvider = "networks")
    public void otherNetworks(Difference difference, String what, String first, String other) {
        check(difference, "RankFailedException: the networks", what, first, other);
    }

    @Test(dataProvider = "settings")
    public void otherSettings(Difference difference, String what, String first, String other) {
        check(difference, "JobFailedException: the settings of the trainers", what, first, other);
    }

    @DataProvider
    public Object[][] options() {
        return Stream.of(DifferentOption.values())
                .map(option -> new Object[] {option})
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "options")
    public void otherOptions(DifferentOption option) {
        boolean setting = option.what.matches("the (loss|optimizer).*");
        String whose =
                setting
                        ? "JobFailedException: the settings of the trainers"
                        : "RankFailedException: the networks";
        check(option, whose, option.what, "" + option.first, "" + option.second);
    }

    /** What is cut would be a mixture: each process draws it whole, and keeps its part. */
    @Test
    public void otherInitialValues() {
        for (Difference difference : List.of(Difference.SEED, Difference.LOADED)) {
            String expected =
                    (".*RankFailedException: the initial values differ between the processes: the"
                                    + " checksum of 04ColumnParallelLinear_weight is [0-9a-f]+%s"
                                    + " and [0-9a-f]+%s%s%s")
                            .formatted(PROCESS_0, PROCESS_1, SEED_REMEDY, SAME);
            for (String report : reports.get(difference)) {
                assertTrue(report.matches(expected), report);
            }
        }
    }

    /** Of what is not cut, the values of rank 0 count. */
    @Test
    public void otherSeedOfReplicas() {
        List<String> trained = reports.get(Difference.SEED_OF_REPLICAS);
        assertTrue(trained.get(0).startsWith("trained, sum "), trained.get(0));
        assertEquals(trained.get(1), trained.get(0));
    }

    private void check(Enum<?> difference, String whose, String what, String first, String other) {
        String expected =
                ".*%s differ between the processes: \\Q%s is %s\\E%s and \\Q%s\\E%s%s%s"
                        .formatted(whose, what, first, PROCESS_0, other, PROCESS_1, REMEDY, SAME);
        for (String report : reports.get(difference)) {
            assertTrue(report.matches(expected), report);
        }
    }

    /** A model that was loaded is as it was: nothing had been handed out. */
    @Test
    public void theModelKeepsItsWeights() {
        for (String report : reports.get(Difference.UNITS)) {
            float sum = Float.parseFloat(report.substring(report.lastIndexOf(' ') + 1));
            assertTrue(Float.isFinite(sum) && sum != 0, report);
        }
    }

    @Test
    public void oneProcessRefuses() {
        List<String> block = reports.get(Difference.FAILING_BLOCK);
        assertTrue(
                block.get(0).matches(".*process 1 \\(.*\\) failed: java.lang.IndexOutOfBounds.*"),
                block.get(0));
        assertTrue(block.get(1).startsWith("java.lang.IndexOutOfBoundsException"), block.get(1));
        List<String> loss = reports.get(Difference.NO_LOSS);
        assertTrue(
                loss.get(0).matches(".*process 1 \\(.*\\) failed: .*has no loss.*"), loss.get(0));
        assertTrue(loss.get(1).startsWith("java.lang.IllegalArgumentException: "), loss.get(1));
    }

    @Test
    public void allProcessesRefuse() {
        for (String report : reports.get(Difference.REFUSED_BY_ALL)) {
            assertTrue(report.startsWith("java.lang.IllegalArgumentException: "), report);
            assertTrue(report.contains("cannot be cut over 2 ranks"), report);
        }
    }

    @Test
    public void whatIsTheSameIsTrained() {
        List<String> trained = reports.get(Difference.NONE);
        assertTrue(trained.get(0).startsWith("trained, sum "), trained.get(0));
        assertEquals(trained.get(1), trained.get(0));
    }
}

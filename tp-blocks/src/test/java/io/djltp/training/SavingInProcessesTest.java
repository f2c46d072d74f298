package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDManager;

import io.djltp.safetensors.SafetensorsFile;
import io.djltp.safetensors.SliceReader;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
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
 * A model that is trained by several processes is saved by the first or by both, and each file is
 * that of one process with all ranks.
 */
public class SavingInProcessesTest {

    private static void assertSameTensors(Path actual, Path expected) throws IOException {
        try (SafetensorsFile one = SafetensorsFile.open(actual);
                SafetensorsFile other = SafetensorsFile.open(expected);
                NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(one.getTensors(), other.getTensors());
            for (String name : one.getTensors().keySet()) {
                ArrayAssert.assertClose(
                        new SliceReader(one).read(name, manager),
                        new SliceReader(other).read(name, manager),
                        TOLERANCE,
                        name);
            }
        }
    }

    private static final int SECONDS = 90;
    private static final double TOLERANCE = 2e-6;

    /** What the processes have reported. */
    private final Map<String, List<List<String>>> ofWays = new HashMap<>();

    private Path folder;

    @BeforeClass
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("saving");
    }

    /** Creates the folders of a job and returns the one of its processes. */
    private Path create(String way) throws IOException {
        Path many = folder.resolve(way).resolve("many");
        Files.createDirectories(many.resolve("other"));
        Files.createDirectories(folder.resolve(way).resolve("one"));
        return many;
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() throws IOException {
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).collect(Collectors.toList())) {
                Files.delete(file);
            }
        }
    }

    @DataProvider
    public Object[][] modes() {
        return new Object[][] {{"TENSOR", 2}, {"MIXED", 2}, {"DATA", 2}, {"2x3", 2}, {"2x2", 4}};
    }

    /** Processes of one number go through all of their ways, each in a job of its own. */
    private List<List<String>> reports(String way, int processes) throws Exception {
        if (!ofWays.containsKey(way)) {
            List<String> ways = new ArrayList<>();
            for (Object[] mode : modes()) {
                if ((int) mode[1] == processes) {
                    ways.add((String) mode[0]);
                }
            }
            ofWays.putAll(run(ways, processes, false));
        }
        return ofWays.get(way);
    }

    @Test(dataProvider = "modes", timeOut = 120_000)
    public void theFirstProcessOrAllSave(String way, int processes) throws Exception {
        List<List<String>> reports = reports(way, processes);
        Path many = folder.resolve(way).resolve("many");
        Path one = folder.resolve(way).resolve("one");
        for (List<String> report : reports) {
            Assert.assertTrue(report.contains("done"), reports.toString());
            Assert.assertFalse(report.contains("another model"), reports.toString());
        }
        SavingProcess.trainAlone(way, one);
        List<String> names = new ArrayList<>();
        for (String name :
                new String[] {"first-plain", "first", "all", "all-plain", "same-file", "closed"}) {
            names.add(name + "-0000.params");
        }
        names.add("listener-0001.params"); // after the first epoch, and at the end
        for (String file : names) {
            Path expected = one.resolve(file);
            assertSame(many.resolve(file), expected);
        }
        for (String file : List.of("all-plain-0000.params", "closed-0000.params")) {
            Path expected = one.resolve(file);
            Path other = many.resolve("other").resolve(file);
            assertSame(other, expected);
        }
        assertSameTensors(
                many.resolve("exported.safetensors"), one.resolve("exported.safetensors"));
        names.add("exported.safetensors");
        names.add("other");
        if ("DATA".equals(way)) {
            names.add("within-0000.params"); // every process has the whole model at any time
        }
        Assert.assertEquals(files(many), names.stream().sorted().collect(Collectors.toList()));
        Assert.assertEquals(
                reports.get(0).stream().anyMatch(line -> line.contains("save it after step()")),
                !"DATA".equals(way),
                reports.toString());
        // evaluated by all ranks with what is in the file
        for (List<String> report : reports) {
            Assert.assertEquals(loss(report), loss(reports.get(0)));
        }
    }

    /** Sums of ranks may be in another order; what is not a number must be the same. */
    private static void assertSame(Path file, Path expected) throws Exception {
        try (Model actualModel = load(file);
                Model expectedModel = load(expected)) {
            List<float[]> values = TrainingRun.weights(expectedModel.getBlock());
            List<float[]> actual = TrainingRun.weights(actualModel.getBlock());
            for (int i = 0; i < values.size(); i++) {
                ArrayAssert.assertClose(
                        actual.get(i), values.get(i), TOLERANCE, file + ", parameter " + i);
            }
        }
    }

    private static Model load(Path file) throws Exception {
        Model model = Model.newInstance("net", Device.cpu());
        model.setBlock(SavingProcess.network());
        String name = file.getFileName().toString();
        model.load(file.getParent(), name.substring(0, name.indexOf("-000")));
        return model;
    }

    private static String loss(List<String> report) {
        return report.stream().filter(line -> line.startsWith("loss ")).findFirst().orElseThrow();
    }

    private static List<String> files(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString())
                    .sorted()
                    .collect(Collectors.toList());
        }
    }

    @Test(timeOut = 90_000)
    public void aProcessHasDied() throws Exception {
        Path many = folder.resolve("TENSOR-dies").resolve("many");
        List<String> report = run(List.of("TENSOR"), 2, true).get("TENSOR").get(0);
        Assert.assertTrue(report.get(0).matches("after \\d{1,4} ms: .*process 1.*"), "" + report);
        Assert.assertEquals(Files.readString(many.resolve("old-0000.params")), "an old file");
        Assert.assertTrue(
                report.stream()
                        .anyMatch(line -> line.startsWith("lost: ") && line.contains("model.load")),
                "" + report);
        Assert.assertEquals(
                files(many).stream().filter(name -> name.startsWith(".saving")).count(), 0);
    }

    /** Returns what the processes report of each way. */
    private Map<String, List<List<String>>> run(List<String> ways, int count, boolean oneDies)
            throws IOException, InterruptedException {
        List<String> arguments = new ArrayList<>(List.of("" + oneDies));
        List<String> ports = JobProcess.ports(ways.size());
        for (int i = 0; i < ways.size(); i++) {
            Path many = create(ways.get(i) + (oneDies ? "-dies" : ""));
            if (oneDies) {
                Files.writeString(many.resolve("old-0000.params"), "an old file");
            }
            arguments.addAll(List.of(ways.get(i), many.toString(), ports.get(i)));
        }
        List<Process> processes = new ArrayList<>();
        List<Path> outputs = new ArrayList<>();
        try {
            for (int i = 0; i < count; i++) {
                outputs.add(Files.createTempFile("saving", ".txt"));
                processes.add(
                        JobProcess.start(SavingProcess.class, i, count, outputs.get(i), arguments));
            }
            Map<String, List<List<String>>> reports = new HashMap<>();
            for (int i = 0; i < count; i++) {
                boolean ended = processes.get(i).waitFor(SECONDS, TimeUnit.SECONDS);
                String text = Files.readString(outputs.get(i), StandardCharsets.UTF_8);
                Assert.assertTrue(ended, "process " + i + " hangs: " + text);
                Assert.assertEquals(processes.get(i).exitValue(), oneDies && i == 1 ? 3 : 0, text);
                for (String way : ways) {
                    reports.computeIfAbsent(way, w -> new ArrayList<>()).add(report(text, way));
                }
            }
            return reports;
        } finally {
            processes.forEach(Process::destroyForcibly);
            for (Path output : outputs) {
                Files.delete(output);
            }
        }
    }

    /** Returns what follows the beginning of a job, up to the next one. */
    private static List<String> report(String text, String way) {
        List<String> report = new ArrayList<>();
        text.lines()
                .dropWhile(line -> !line.equals("JOB " + way))
                .skip(1)
                .takeWhile(line -> !line.startsWith("JOB "))
                .filter(line -> line.startsWith("REPORT "))
                .forEach(line -> report.add(line.substring("REPORT ".length())));
        return report;
    }
}

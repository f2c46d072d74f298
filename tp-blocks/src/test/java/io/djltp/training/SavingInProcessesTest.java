package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.safetensors.SafetensorsFile;
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
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * A model that is trained by several processes is saved by all of them, and each file is that of
 * one process with all ranks.
 */
public class SavingInProcessesTest {

    private static final int SECONDS = 180;
    private static final int PROCESSES = 4;
    private static final double TOLERANCE = 2e-6;

    /** In which a process dies. */
    private static final String DEATH = "TENSOR-dies";

    /** What each process has printed. */
    private final List<String> outputs = new ArrayList<>();

    private Path folder;

    /** Four processes go through all jobs, each through those that have it. */
    @BeforeClass(timeOut = 240_000)
    public void runJobs() throws IOException, InterruptedException {
        folder = Files.createTempDirectory("saving");
        List<String> arguments = new ArrayList<>();
        List<String> ports = JobProcess.ports(modes().length + 1);
        for (Object[] mode : modes()) { // that of all processes first
            Files.createDirectories(folder.resolve((String) mode[0]).resolve("one"));
            Path many = create((String) mode[0]);
            String port = ports.get(arguments.size() / 5);
            arguments.addAll(List.of("" + mode[0], "" + mode[1], "false", "" + many, port));
        }
        Path many = create(DEATH);
        Files.writeString(many.resolve("old-0000.params"), "an old file");
        arguments.addAll(List.of("TENSOR", "2", "true", "" + many, ports.get(ports.size() - 1)));
        run(arguments);
    }

    /** Creates the folders of a job and returns the one of its processes. */
    private Path create(String way) throws IOException {
        return Files.createDirectories(many(way));
    }

    private Path many(String way) {
        return folder.resolve(way).resolve("many");
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
        return new Object[][] {
            {"2x2", PROCESSES}, {"TENSOR", 2}, {"MIXED", 2}, {"DATA", 2}, {"2x3", 2}
        };
    }

    @Test(dataProvider = "modes", timeOut = 120_000)
    public void allProcessesSave(String way, int processes) throws Exception {
        List<List<String>> reports = reports(way, processes);
        Path many = many(way);
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
        assertSameTensors(
                many.resolve("exported.safetensors"), one.resolve("exported.safetensors"));
        for (int i = 1; i < processes; i++) {
            Path other = many.resolve("other" + i);
            for (String file : List.of("first-plain", "all-plain", "closed")) {
                assertSame(
                        other.resolve(file + "-0000.params"), one.resolve(file + "-0000.params"));
            }
            assertSameTensors(
                    other.resolve("exported.safetensors"), one.resolve("exported.safetensors"));
            names.add("other" + i);
        }
        names.add("exported.safetensors");
        if ("DATA".equals(way)) {
            names.add("within-0000.params"); // every process has the whole model at any time
        }
        Assert.assertEquals(files(many), names.stream().sorted().collect(Collectors.toList()));
        Assert.assertEquals(
                reports.get(0).stream().anyMatch(line -> line.contains("save it after step()")),
                !"DATA".equals(way),
                reports.toString());
        for (int i = 0; i < processes; i++) { // what process 0 could not write; all went on
            long failed = reports.get(i).stream().filter("not saved"::equals).count();
            Assert.assertEquals(failed, i == 0 ? 2 : 0, reports.toString());
        }
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
            ArrayAssert.assertAllClose(actual, values, TOLERANCE, file + ", parameter");
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

    private static void assertSameTensors(Path actual, Path expected) throws IOException {
        try (SafetensorsFile one = SafetensorsFile.open(actual);
                SafetensorsFile other = SafetensorsFile.open(expected);
                NDManager manager = NDManager.newBaseManager()) {
            Assert.assertEquals(one.getTensors(), other.getTensors());
            for (String name : one.getTensors().keySet()) {
                ArrayAssert.assertClose(
                        one.read(name, manager), other.read(name, manager), TOLERANCE, name);
            }
        }
    }

    @Test
    public void aProcessHasDied() throws Exception {
        List<String> report = reports(DEATH, 2).get(0);
        Assert.assertTrue(report.get(0).matches("after \\d{1,4} ms: .*process 1.*"), "" + report);
        Assert.assertEquals(
                Files.readString(many(DEATH).resolve("old-0000.params")), "an old file");
        Assert.assertTrue(
                report.stream()
                        .anyMatch(line -> line.startsWith("lost: ") && line.contains("model.load")),
                "" + report);
        Assert.assertEquals(
                files(many(DEATH)).stream().filter(name -> name.startsWith(".saving")).count(), 0);
    }

    private void run(List<String> arguments) throws IOException, InterruptedException {
        List<Process> processes = new ArrayList<>();
        List<Path> files = new ArrayList<>();
        try {
            for (int i = 0; i < PROCESSES; i++) {
                files.add(Files.createTempFile("saving", ".txt"));
                processes.add(
                        JobProcess.start(
                                SavingProcess.class, i, PROCESSES, files.get(i), arguments));
            }
            for (int i = 0; i < PROCESSES; i++) {
                boolean ended = processes.get(i).waitFor(SECONDS, TimeUnit.SECONDS);
                outputs.add(Files.readString(files.get(i), StandardCharsets.UTF_8));
                Assert.assertTrue(ended, "process " + i + " hangs: " + outputs.get(i));
                int status = i == 1 ? SavingProcess.DEAD : 0;
                Assert.assertEquals(processes.get(i).exitValue(), status, outputs.get(i));
            }
        } finally {
            processes.forEach(Process::destroyForcibly);
            for (Path file : files) {
                Files.delete(file);
            }
        }
    }

    /** Returns what the processes of a job report of it. */
    private List<List<String>> reports(String way, int processes) {
        List<List<String>> reports = new ArrayList<>();
        for (String output : outputs.subList(0, processes)) {
            List<String> report = new ArrayList<>();
            output.lines()
                    .dropWhile(line -> !line.equals("JOB " + many(way)))
                    .skip(1)
                    .takeWhile(line -> !line.startsWith("JOB "))
                    .filter(line -> line.startsWith("REPORT "))
                    .forEach(line -> report.add(line.substring("REPORT ".length())));
            reports.add(report);
        }
        return reports;
    }
}

package io.djltp.checkpoint;

import ai.djl.util.Utils;

import io.djltp.training.JobProcess;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Processes whose checkpoint listeners have other settings are refused where these begin. */
public class DifferentListenersTest {

    private static final String REMEDY = ": build them with the same settings on all processes";

    private List<List<String>> lines;

    @BeforeClass(timeOut = 120_000)
    public void run() throws Exception {
        Path root = Files.createTempDirectory("listeners");
        String folder = root.resolve("run").toString();
        List<String> arguments = List.of(folder, JobProcess.ports(1).get(0));
        try {
            lines = JobProcess.runTwo(DifferentListener.class, root, 90, arguments);
        } finally {
            Utils.deleteQuietly(root);
        }
    }

    @DataProvider
    public Object[][] settings() {
        return new Object[][] {
            {"optEverySteps", "1", "2"},
            {"optEveryMinutes", "not set", "1.5"},
            {"optEveryEpoch", "false", "true"},
            {"optKeep", "3", "5"},
            {"optResumeFrom", "not set", "1"},
            {"optSignals", "[]", "[USR1]"},
            {"optOptions seed", "1", "2"},
            {"the names of optState", "[]", "[more]"},
        };
    }

    @Test(dataProvider = "settings")
    public void aSettingDiffers(String name, String first, String second) {
        assertRefused(name, name, first, second);
        assertRefused("begun " + name, name, first, second);
    }

    private void assertRefused(String report, String name, String first, String second) {
        String text =
                "refused: the settings of the CheckpointListeners differ between the processes: %s"
                        + " is %s on process 0 and %s on process 1%s";
        for (List<String> ofProcess : lines) {
            Assert.assertEquals(
                    report(ofProcess, report).replaceAll(" \\(rank \\d, pid \\d+ on [^)]*\\)", ""),
                    text.formatted(name, first, second, REMEDY));
        }
    }

    /** All settings are tried, and the job goes on with those that are the same. */
    @Test
    public void theSameSettingsTrain() {
        Assert.assertEquals(settings().length, DifferentListener.SETTINGS.size());
        for (List<String> ofProcess : lines) {
            for (String name : List.of("same", "resumed", "last")) {
                Assert.assertEquals(report(ofProcess, name), "step 2");
            }
        }
    }

    private static String report(List<String> lines, String name) {
        String start = "REPORT " + name + ": ";
        List<String> found = lines.stream().filter(line -> line.startsWith(start)).toList();
        Assert.assertEquals(found.size(), 1, lines.toString());
        return found.get(0).substring(start.length());
    }
}

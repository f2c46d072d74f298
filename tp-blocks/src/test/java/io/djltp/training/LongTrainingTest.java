package io.djltp.training;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A thousand steps hold no more than ten: not one array, and no native memory. One mode after
 * another in a JVM whose heap is there from the start, so that what grows is native. What the mode
 * before has freed is used up, by whatever leaks, well before step 300.
 *
 * <p>By default the modes in which all that the others do is done too; all six with {@code
 * -Psweep}.
 */
public class LongTrainingTest {

    /**
     * What a JVM still takes between step 300 and 1,000; less than 1 MiB was seen. One leaked slice
     * of logits, 8 x 250, a step would be 5 MiB, one leaked weight of 128 x 128 would be 45.
     */
    private static final long SLACK_KIB = 4 * 1024;

    private static final Pattern REPORT = Pattern.compile("(\\d+) arrays=(\\d+) rss=(\\d+)");

    /** What the process has printed. */
    private String output;

    @DataProvider
    public Object[][] modes() {
        Object[][] mixed = {{"TENSOR:fused"}, {"MIXED:recompute"}, {"MIXED:sampled"}};
        Object[][] all = {
            {"TENSOR:plain"}, {"DATA:plain"}, {"MIXED:plain"}, mixed[0], mixed[1], mixed[2]
        };
        return Boolean.getBoolean("djltp.long") ? all : mixed;
    }

    @BeforeClass(timeOut = 300_000)
    public void train() throws Exception {
        List<String> names = new ArrayList<>();
        for (Object[] mode : modes()) {
            names.add((String) mode[0]);
        }
        output = run(names);
    }

    @Test(dataProvider = "modes")
    public void aThousandStepsHoldNoMoreThanTen(String mode) {
        Map<Integer, long[]> reports = new HashMap<>();
        int start = output.indexOf(mode + "\n");
        int end = output.indexOf("\n0 arrays=", start);
        Assert.assertTrue(start >= 0 && end > start, output);
        Matcher matcher = REPORT.matcher(output).region(start, output.indexOf("\n", end + 1));
        while (matcher.find()) {
            reports.put(
                    Integer.parseInt(matcher.group(1)),
                    new long[] {
                        Long.parseLong(matcher.group(2)), Long.parseLong(matcher.group(3))
                    });
        }
        Assert.assertEquals(reports.size(), 4, output);
        Assert.assertEquals(reports.get(1000)[0], reports.get(10)[0], "live arrays: " + output);
        long growth = reports.get(1000)[1] - reports.get(300)[1];
        Assert.assertTrue(growth < SLACK_KIB, growth + " KiB more: " + output);
        // when all is closed, there are the data and the labels
        Assert.assertEquals(reports.get(0)[0], 2, "live arrays after all: " + output);
    }

    private static String run(List<String> arguments) throws IOException, InterruptedException {
        Path output = Files.createTempFile("long-training", ".txt");
        ProcessBuilder builder =
                new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                "-Xms96m",
                                "-Xmx96m",
                                "-XX:+AlwaysPreTouch",
                                "-XX:+UseSerialGC",
                                "-XX:-UsePerfData",
                                System.getProperty("djltp.test.archive.option", "-Xshare:auto"),
                                // the second compiler takes tens of MiB when it has work
                                "-XX:TieredStopAtLevel=1",
                                "-Dai.djl.offline=true",
                                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                                "-cp",
                                System.getProperty("java.class.path"),
                                LongTraining.class.getName())
                        .redirectErrorStream(true)
                        .redirectOutput(output.toFile());
        builder.command().addAll(arguments);
        builder.environment().put("MALLOC_ARENA_MAX", "2"); // not one for each thread
        Process process = builder.start();
        try {
            boolean over = process.waitFor(280, TimeUnit.SECONDS);
            String text = Files.readString(output);
            Assert.assertTrue(over, text);
            Assert.assertEquals(process.exitValue(), 0, text);
            return text;
        } finally {
            process.destroyForcibly();
            Files.delete(output);
        }
    }
}

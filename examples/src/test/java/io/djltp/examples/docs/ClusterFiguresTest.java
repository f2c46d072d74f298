package io.djltp.examples.docs;

import io.djltp.examples.TpRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The losses that the page on clusters gives for one machine are those of the command there. */
public class ClusterFiguresTest {

    private static final Path PAGE =
            Path.of(System.getProperty("basedir", "."), "..", "docs", "cluster.md");

    private static final Pattern OPTIONS = Pattern.compile("`train (--steps 6 [^`]+)`");
    private static final Pattern ROW =
            Pattern.compile("\\| `\\./tp (train --tp (\\d+))` \\| (\\d+) \\| ([\\d., ]+) \\|");

    // the last digits are those of the processor that the page names
    private static final double TOLERANCE = 1e-5;

    @DataProvider
    static Object[][] rows() throws IOException {
        String page = Files.readString(PAGE);
        Matcher options = OPTIONS.matcher(page);
        Assert.assertTrue(options.find(), "The command is no longer on the page");
        List<Object[]> rows = new ArrayList<>();
        for (Matcher row = ROW.matcher(page); row.find(); ) {
            Assert.assertEquals(row.group(2), row.group(3), row.group());
            rows.add(new Object[] {row.group(1) + " " + options.group(1), row.group(4)});
        }
        Assert.assertEquals(rows.size(), 2);
        return rows.toArray(Object[][]::new);
    }

    @Test(dataProvider = "rows", timeOut = 240_000)
    public void theCommandHasTheLossesOfThePage(String command, String losses) throws IOException {
        double[] actual = TpRun.training(command).losses();
        double[] expected =
                Arrays.stream(losses.split(", ")).mapToDouble(Double::parseDouble).toArray();
        String text = command + ": " + Arrays.toString(actual);
        Assert.assertEquals(actual.length, expected.length, text);
        for (int i = 0; i < expected.length; i++) {
            Assert.assertEquals(actual[i], expected[i], TOLERANCE * expected[i], text);
        }
    }
}

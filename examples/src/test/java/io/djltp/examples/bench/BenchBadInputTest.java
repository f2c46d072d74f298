package io.djltp.examples.bench;

import io.djltp.examples.TpRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/**
 * Bad input of {@code tp bench} ends in one clear line and status 2 before anything is measured.
 */
public class BenchBadInputTest {

    @DataProvider
    public Object[][] inputs() {
        return new Object[][] {
            {"Choose what to measure: head, layer, transformer, collective or step", new String[0]},
            {"'64x128' is not batch x features x classes", "head", "--shapes", "64x128"},
            {"'64x128xmany' is not batch x", "head", "--shapes", "64x128xmany"},
            {"'64x0x10' is not batch x", "head", "--shapes", "64x0x10"},
            {"--shapes or --classes", "head", "--shapes", "1x2x3", "--classes", "10"},
            {"go with --classes", "head", "--batch", "64"},
            {"must be greater than 0, not -1", "head", "--classes", "10,-1"},
            {"Invalid value for option '--optimizer'", "head", "--optimizer", "adamax"},
            {"Invalid value for option '--head'", "head", "--head", "half"},
            {"--ranks must be greater than 0, not 0", "head", "--ranks", "1,0"},
            {"--threads-per-rank must be greater", "head", "--threads-per-rank", "0"},
            {"--repeats must be greater than 0, not 0", "head", "--repeats", "0"},
            {"--warmup must be 0 or more, not -1", "head", "--warmup", "-1"},
            {"--warmup-seconds must be 0 or more", "head", "--warmup-seconds", "NaN"},
            {"--long-run must be 0, or at least 10", "head", "--long-run", "9"},
            {"--json /dev/null/x cannot be written", "head", "--json", "/dev/null/x"},
            {"--plot /dev/null/x.png cannot be written", "head", "--plot", "/dev/null/x.png"},
            {"--plot chart.pdf must end in .png", "head", "--plot", "chart.pdf"},
            {"needs about", "head", "--shapes", "64x128x2000000000"},
            {
                "--ranks 4 is more than 64x8x3 can be cut",
                "head",
                "--shapes",
                "64x8x3",
                "--ranks",
                "4"
            },
            {
                "--ranks 4 is more than 3x64x9 can be",
                "step",
                "--classes",
                "9",
                "--batch",
                "3",
                "--ranks",
                "4"
            },
            {"needs about", "step", "--classes", "2000000000"},
            {"--width must be greater than 0, not 0", "layer", "--width", "0"},
            {
                "--width 10 cannot be divided into --heads 3",
                "transformer",
                "--width",
                "10",
                "--heads",
                "3"
            },
            {
                "--ranks 4 is more than 8x128x12x48 can be cut into: use 3",
                "transformer",
                "--width",
                "12",
                "--heads",
                "3",
                "--ranks",
                "4"
            },
            {"multiples of 4 from 4 to 1073741824, not 6", "collective", "--bytes", "6"},
            {"--ranks must be greater than 0, not 0", "collective", "--ranks", "0"},
        };
    }

    @Test(dataProvider = "inputs", timeOut = 60_000)
    public void testOneClearError(String message, String... options) {
        List<String> args = new ArrayList<>(List.of("bench"));
        args.addAll(List.of(options));
        TpRun run = TpRun.of(args.toArray(new String[0]));
        Assert.assertEquals(run.status(), 2, run.output());
        Assert.assertTrue(run.output().contains(message), run.output());
        Assert.assertFalse(run.output().contains("\tat "), run.output());
        Assert.assertFalse(run.output().contains("Measuring"), run.output());
    }
}

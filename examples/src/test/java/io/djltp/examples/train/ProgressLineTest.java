package io.djltp.examples.train;

import io.djltp.examples.train.TrainingProgress.ProgressLine;

import org.testng.Assert;
import org.testng.annotations.Test;

/** What matters most stays on a narrow terminal, and no line is longer than it. */
public class ProgressLineTest {

    private static final ProgressLine LINE =
            new ProgressLine(
                    0.5,
                    "step 6576",
                    "loss 0.051",
                    "18703 words/s",
                    "held out 0.89 top-1 0.99 top-5");

    @Test
    public void testWideTerminalShowsAll() {
        Assert.assertEquals(
                LINE.render(120),
                "train  50% [===================                   ] step 6576, loss 0.051, 18703"
                        + " words/s, held out 0.89 top-1 0.99 top-5");
    }

    @Test
    public void testOrdinaryTerminalShowsAllWithoutTheBar() {
        Assert.assertEquals(
                LINE.render(80),
                "train  50% step 6576, loss 0.051, 18703 words/s, held out 0.89 top-1 0.99 top-5");
    }

    @Test
    public void testNarrowTerminalKeepsTheSpeed() {
        Assert.assertEquals(
                LINE.render(70),
                "train  50% loss 0.051, 18703 words/s, held out 0.89 top-1 0.99 top-5");
        Assert.assertEquals(LINE.render(50), "train  50% step 6576, loss 0.051, 18703 words/s");
        Assert.assertEquals(LINE.render(22), "train  50% loss 0.051");
    }

    @Test
    public void testNoLineIsTooLong() {
        for (int columns = 0; columns < 150; columns++) {
            String line = LINE.render(columns);
            Assert.assertTrue(line.length() <= columns, columns + ": " + line);
        }
    }

    @Test
    public void testWithoutATerminalThereIsNoBar() {
        Assert.assertEquals(
                LINE.toString(),
                "train  50% step 6576, loss 0.051, 18703 words/s, held out 0.89 top-1 0.99 top-5");
    }
}

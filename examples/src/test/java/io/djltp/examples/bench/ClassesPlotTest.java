package io.djltp.examples.bench;

import io.djltp.examples.bench.BenchTable.BenchRow;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.awt.image.BufferedImage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import javax.imageio.ImageIO;

/** The chart is a picture, with and without stock DJL, even of one point. */
public class ClassesPlotTest {

    private static BenchRow row(int classes, boolean stock) {
        BenchRow row = new BenchRow();
        row.workload = new Workload(Workload.Network.HEAD, 64, 128, classes);
        row.ranks = 1;
        row.optimizer = "sgd";
        row.oursSeconds = classes * 3e-7;
        row.floorSeconds = classes * 1e-7;
        row.oursBytes = 600_000_000 + 512L * classes;
        row.weightsAndState = 512L * classes;
        if (stock) {
            row.stockSeconds = classes * 1e-6;
            row.stockBytes = 600_000_000 + 5000L * classes;
        }
        return row;
    }

    private static int[] draw(List<BenchRow> rows) throws IOException {
        Path file = Files.createTempFile("plot", ".png");
        try {
            new ClassesPlot(rows).save(file);
            BufferedImage image = ImageIO.read(file.toFile());
            int width = image.getWidth();
            int height = image.getHeight();
            Assert.assertTrue(width > height, "two charts side by side");
            return image.getRGB(0, 0, width, height, null, 0, width);
        } finally {
            Files.delete(file);
        }
    }

    @Test(timeOut = 60_000)
    public void testBothSidesAreDrawn() throws IOException {
        List<BenchRow> ours = new ArrayList<>();
        List<BenchRow> both = new ArrayList<>();
        for (int classes = 10_000; classes <= 1_000_000; classes *= 10) {
            ours.add(row(classes, false));
            both.add(row(classes, true));
        }
        Assert.assertFalse(Arrays.equals(draw(ours), draw(both)));
        draw(List.of(row(1000, true)));
    }
}

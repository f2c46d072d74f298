package io.djltp.examples.train;

import io.djltp.examples.TpRun;
import io.djltp.internal.collective.nccl.NcclDouble;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;

/** A classifier learns the same through NCCL, here on its double, as in shared memory. */
public class NcclDoubleTrainTest {

    private static final int CLASSES = 3001;

    private final Path folder = TestFolder.create();

    @BeforeClass
    public void write() throws IOException {
        List<String> rows =
                IntStream.range(0, 2 * CLASSES)
                        .mapToObj(i -> "__label__c%d word%d".formatted(i % CLASSES, i))
                        .toList();
        Files.write(folder.resolve("words"), rows);
    }

    /** Returns how the ranks share the work. */
    @DataProvider
    public static Object[][] runs() {
        return new Object[][] {
            {"--mode mixed --tp 2"},
            {"--mode mixed --tp 4"},
            {"--mode tensor --tp 4"},
            {"--mode data --tp 2"},
            {"--mesh 2x3"},
        };
    }

    @Test(dataProvider = "runs", timeOut = 120_000)
    public void theLossesAreTheSame(String way) throws Exception {
        NcclDouble.load();
        String line =
                "train --data %s/words --head sampled --sample-share 0.1 --steps 5 --dim 8"
                                .formatted(folder)
                        + " --batch 32 --seed 7 "
                        + way;
        double[] local = TpRun.training(line + " --backend local").losses();
        double[] nccl = TpRun.training(line + " --backend nccl").losses();
        Assert.assertEquals(nccl.length, 5);
        // NCCL adds in an order of its own
        TrainEqualsPlainDjlTest.assertSame(nccl, local, 1e-6, way);
    }
}

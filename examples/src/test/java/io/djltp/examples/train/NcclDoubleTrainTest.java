package io.djltp.examples.train;

import io.djltp.examples.TpRun;
import io.djltp.internal.collective.nccl.NcclDouble;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** The lemmatiser learns the same through NCCL, here on its double, as in shared memory. */
public class NcclDoubleTrainTest {

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
        String line = "train --steps 5 --dim 8 --batch 32 --seed 7 " + way;
        double[] local = TpRun.training(line + " --backend local").losses();
        double[] nccl = TpRun.training(line + " --backend nccl").losses();
        Assert.assertEquals(nccl.length, 5);
        // NCCL adds in an order of its own
        TrainEqualsPlainDjlTest.assertSame(nccl, local, 1e-6, way);
    }
}

package io.djltp.internal.decode;

import io.djltp.collective.CollectiveException;
import io.djltp.collective.Communicator;
import io.djltp.internal.collective.local.LocalCommunicator;
import io.djltp.job.Jobs;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;

public class SharedRowsTest {

    private static final int MANY = 600_000; // of two ranks, more than what is shared

    @DataProvider
    public Object[][] ways() {
        return new Object[][] {{1, true}, {2, true}, {3, true}, {4, true}, {2, false}, {3, false}};
    }

    /** Sums and gathered rows are the same on all ranks, whichever comes first. */
    @Test(dataProvider = "ways", timeOut = 60_000)
    public void ranksMeet(int ranks, boolean together) throws Exception {
        List<Communicator> group = LocalCommunicator.create(ranks);
        SharedRows shared = together ? new SharedRows(ranks) : null;
        List<Callable<float[][]>> tasks = new ArrayList<>();
        for (int i = 0; i < ranks; i++) {
            int rank = i;
            tasks.add(() -> meet(new RankRows(group.get(rank), shared, MANY, 10), rank, ranks));
        }
        List<float[][]> all = Jobs.results(tasks);
        for (float[][] each : all) {
            Assert.assertEquals(each, all.get(0));
        }
        group.forEach(Communicator::close);
    }

    private static float[][] meet(RankRows rows, int rank, int ranks) throws Exception {
        Random random = new Random(rank);
        float[][] results = new float[200][];
        try (rows) {
            for (int i = 0; i < results.length; i++) {
                if (random.nextInt(20) == 0) {
                    Thread.sleep(random.nextInt(3)); // the others sleep meanwhile, or not
                }
                int count = i % 50 == 0 ? MANY : 1 + i;
                float[] x = new float[count];
                for (int j = 0; j < count; j++) {
                    x[j] = rank + j + i;
                }
                if (i % 3 == 2) {
                    results[i] = new float[10 * ranks];
                    rows.gather(x, Math.min(count, 10), results[i]);
                    for (int r = 0; r < ranks; r++) {
                        Assert.assertEquals(results[i][r * Math.min(count, 10)], r + i, 0f);
                    }
                } else {
                    rows.sum(x, count);
                    results[i] = x;
                    float first = ranks * (ranks - 1) / 2f;
                    Assert.assertEquals(x[count - 1], first + ranks * (count - 1f + i), 0f);
                }
            }
        }
        return results;
    }

    /** Who waits for a rank that has failed throws. */
    @Test(timeOut = 60_000)
    public void aFailureEndsTheWait() throws Exception {
        SharedRows shared = new SharedRows(2);
        List<Communicator> group = LocalCommunicator.create(2);
        IllegalStateException cause = new IllegalStateException("gone");
        List<Callable<Void>> tasks =
                List.of(
                        () -> {
                            try (RankRows rows = new RankRows(group.get(0), shared, 8, 8)) {
                                rows.sum(new float[8], 8);
                            }
                            return null;
                        },
                        () -> {
                            Thread.sleep(100);
                            shared.fail(cause);
                            return null;
                        });
        CollectiveException e =
                Assert.expectThrows(CollectiveException.class, () -> Jobs.results(tasks));
        Assert.assertSame(e.getCause(), cause);
        group.forEach(Communicator::close);
    }
}

package io.djltp.collective;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.concurrent.atomic.AtomicInteger;

/** No rank leaves a barrier before all have come. */
public class BarrierTest {

    @DataProvider
    public static Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}, {8}};
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void waitsForAllRanks(int size) throws Exception {
        int rounds = 200;
        AtomicInteger[] come = new AtomicInteger[rounds];
        for (int i = 0; i < rounds; i++) {
            come[i] = new AtomicInteger();
        }
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    for (int i = 0; i < rounds; i++) {
                        if (i % size == communicator.getRank() && i % 10 == 0) {
                            Thread.sleep(1); // each is the last from time to time
                        }
                        come[i].incrementAndGet();
                        communicator.barrier();
                        Assert.assertEquals(come[i].get(), size, "round " + i);
                    }
                });
    }
}

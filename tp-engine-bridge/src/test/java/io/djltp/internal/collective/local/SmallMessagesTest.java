package io.djltp.internal.collective.local;

import io.djltp.collective.EveryOperation;
import io.djltp.collective.RankThreads;

import org.bytedeco.javacpp.PointerScope;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Random;
import java.util.stream.IntStream;

/**
 * Small operations, one after another and between large ones, give every rank what one rank works
 * out, bit for bit, however late anyone is.
 */
public class SmallMessagesTest {

    private static final int ROUNDS = 400;
    private static final int LIMIT = 1 << 16; // bytes that all ranks read together

    @DataProvider
    public static Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}, {6}};
    }

    @Test(dataProvider = "sizes", timeOut = 120_000)
    public void everyResultIsThatOfALoop(int size) throws Exception {
        int limit = LIMIT / Float.BYTES / size;
        // both sides of the limit, of all shares together and of a share
        int[] lengths = {1, limit, 3, limit + 1, 37, 1000, 0, limit / size, limit / size + 1};
        int[] ranks = IntStream.range(0, size).toArray();
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    Random delays = new Random(communicator.getRank());
                    for (int round = 0; round < ROUNDS; round++) {
                        if (delays.nextInt(40) == 0) {
                            Thread.sleep(1); // late
                        }
                        int length = lengths[new Random(round).nextInt(lengths.length)];
                        try (PointerScope scope = new PointerScope()) {
                            Assert.assertNotNull(scope);
                            EveryOperation.begin(communicator, ranks, round, length).check();
                        }
                    }
                });
    }
}

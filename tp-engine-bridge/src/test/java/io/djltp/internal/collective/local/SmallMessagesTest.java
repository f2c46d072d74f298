package io.djltp.internal.collective.local;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.RankThreads;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.Random;

/**
 * Small operations, one after another and between large ones, give every rank what a loop over the
 * ranks gives, bit for bit, however late anyone is.
 */
public class SmallMessagesTest {

    private static final int ROUNDS = 400;
    private static final int LIMIT = 1 << 16; // bytes that all ranks read together

    @DataProvider
    public static Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {4}};
    }

    /** What a rank puts in: of any size, both sides of the limit. */
    private static float[] values(int round, int rank, int length) {
        Random random = new Random(31L * round + rank);
        float[] values = new float[length];
        for (int i = 0; i < length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        return values;
    }

    private static int length(int round, int size) {
        int limit = LIMIT / Float.BYTES / size;
        int[] lengths = {1, limit, 3, limit + 1, 37, 1000, 0};
        return lengths[new Random(round).nextInt(lengths.length)];
    }

    private static float[] reduced(int round, int size, int length, ReduceOp op) {
        float[] result = values(round, 0, length);
        for (int rank = 1; rank < size; rank++) {
            float[] more = values(round, rank, length);
            for (int i = 0; i < length; i++) {
                result[i] =
                        op == ReduceOp.SUM
                                ? result[i] + more[i]
                                : op == ReduceOp.MAX
                                        ? Math.max(result[i], more[i])
                                        : Math.min(result[i], more[i]);
            }
        }
        return result;
    }

    @Test(dataProvider = "sizes", timeOut = 120_000)
    public void everyResultIsThatOfALoop(int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    Random delays = new Random(communicator.getRank());
                    for (int round = 0; round < ROUNDS; round++) {
                        if (delays.nextInt(40) == 0) {
                            Thread.sleep(1); // late
                        }
                        try (NDManager scope = manager.newSubManager()) {
                            one(communicator, scope, round);
                        }
                    }
                });
    }

    private static void one(Communicator communicator, NDManager manager, int round) {
        int size = communicator.getSize();
        int rank = communicator.getRank();
        int length = length(round, size);
        ReduceOp op = ReduceOp.values()[round % 3];
        float[] own = values(round, rank, length);
        NDArray whole = manager.create(own, new Shape(length));
        switch (round / 3 % 4) {
            case 0:
                communicator.allReduce(whole, op);
                same(whole, reduced(round, size, length, op), round);
                break;
            case 1:
                long[] shares = shares(length, size);
                NDArray part = manager.zeros(new Shape(shares[rank]));
                communicator
                        .reduceScatter(TensorView.of(whole), TensorView.of(part), shares, op)
                        .await();
                int from = (int) Arrays.stream(shares, 0, rank).sum();
                float[] sums = reduced(round, size, length, op);
                same(part, Arrays.copyOfRange(sums, from, from + (int) shares[rank]), round);
                break;
            case 2:
                long[] counts = shares(length, size);
                NDArray share = manager.create(Arrays.copyOf(own, (int) counts[rank]));
                communicator.allGather(TensorView.of(share), TensorView.of(whole), counts).await();
                float[] expected = new float[length];
                int start = 0;
                for (int i = 0; i < size; i++) {
                    System.arraycopy(values(round, i, length), 0, expected, start, (int) counts[i]);
                    start += (int) counts[i];
                }
                same(whole, expected, round);
                break;
            default:
                int root = round % size;
                communicator.broadcast(TensorView.of(whole), root).await();
                same(whole, values(round, root, length), round);
        }
    }

    /** Uneven ones; the first rank has the most. */
    private static long[] shares(int length, int size) {
        long[] shares = new long[size];
        int left = length;
        for (int i = size - 1; i > 0; i--) {
            shares[i] = Math.min(left, length / (size + i));
            left -= (int) shares[i];
        }
        shares[0] = left;
        return shares;
    }

    private static void same(NDArray actual, float[] expected, int round) {
        Assert.assertTrue(
                Arrays.equals(actual.toFloatArray(), expected), "round " + round + " differs");
    }

    /** Other types go the same way or the other; nobody sees which. */
    @Test(timeOut = 60_000)
    public void everyTypeIsReducedAndGathered() throws Exception {
        DataType[] types = {
            DataType.FLOAT64, DataType.INT32, DataType.INT64, DataType.FLOAT16, DataType.FLOAT32
        };
        RankThreads.run(
                3,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    for (DataType type : types) {
                        NDArray array = manager.create(new float[] {rank, 2, 3}).toType(type, true);
                        communicator.allReduce(array, ReduceOp.SUM);
                        Assert.assertEquals(
                                array.toType(DataType.FLOAT64, true).toDoubleArray(),
                                new double[] {3, 6, 9});
                        NDArray own = manager.create(new float[] {rank}).toType(type, true);
                        NDArray all = manager.zeros(new Shape(3), type);
                        communicator
                                .allGather(
                                        TensorView.of(own),
                                        TensorView.of(all),
                                        new long[] {1, 1, 1})
                                .await();
                        Assert.assertEquals(
                                all.toType(DataType.FLOAT64, true).toDoubleArray(),
                                new double[] {0, 1, 2});
                    }
                });
    }
}

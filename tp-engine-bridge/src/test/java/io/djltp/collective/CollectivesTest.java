package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.torch.TensorView;
import io.djltp.testing.TestCases;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.stream.IntStream;

/** Every collective gives what one rank works out that has the tensors of all, to the last bit. */
@SuppressWarnings("try") // a scope is used by being open
public class CollectivesTest {

    /** From small ones, which have a way of their own, to larger ones, not divisible. */
    private static final long[] LENGTHS = {0, 1, 3, 1000, 65_535, 65_537, 150_001};

    /** Equal, unequal and empty shares; the first are taken if there are fewer ranks. */
    private static final long[][] SHARES = {
        {5, 5, 5, 5, 5, 5, 5, 5},
        {3, 0, 7, 1, 0, 2, 11, 4},
        {0, 4, 0, 0, 9, 0, 0, 0},
        {0, 0, 0, 0, 0, 0, 0, 0},
        {65_537, 1, 65_535, 70_000, 0, 3, 1, 1}
    };

    /** Returns every type with every number of ranks. */
    @DataProvider
    public static Object[][] typesAndSizes() {
        return TestCases.product(TestTensors.TYPES, new Integer[] {1, 2, 3, 4, 8});
    }

    @Test(dataProvider = "typesAndSizes", timeOut = 60_000)
    public void everyRankGetsWhatOneRankWorksOut(DataType type, int size) throws Exception {
        int[] ranks = IntStream.range(0, size).toArray();
        long[][] shares =
                Arrays.stream(SHARES).map(of -> Arrays.copyOf(of, size)).toArray(long[][]::new);
        try (PointerScope scope = new PointerScope()) {
            List<EveryOperation.Case> cases =
                    new EveryOperation(type, ranks, LENGTHS, shares).all(); // once for all ranks
            RankThreads.run(size, (group, manager) -> cases.forEach(each -> each.check(group)));
        }
    }

    @Test(timeOut = 60_000)
    public void takesSeveralBlocksARank() throws Exception {
        int length = 2 * (4 * 65_536 + 5) + 1;
        RankThreads.run(
                2,
                (group, manager) -> {
                    for (DataType type : TestTensors.TYPES) {
                        Tensor ones = TestTensors.full(type, 1, length);
                        group.allReduce(TensorView.of(ones), ReduceOp.SUM).await();
                        TestTensors.assertSame(ones, TestTensors.full(type, 2, length), "" + type);
                    }
                    NDArray tensor = manager.arange(length).toType(DataType.FLOAT32, false);
                    group.allReduce(tensor, ReduceOp.SUM);
                    // exact: all values stay below 2^24
                    float[] sum = tensor.toFloatArray();
                    for (int i = 0; i < length; i++) {
                        Assert.assertEquals(sum[i], 2f * i, 0);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void keepsTheShape() throws Exception {
        long[][] shapes = {{2, 3, 5}, {}, {4, 0, 2}};
        RankThreads.run(
                3,
                (group, manager) -> {
                    for (long[] shape : shapes) {
                        for (DataType type : new DataType[] {DataType.FLOAT32, DataType.INT32}) {
                            Tensor tensor = TestTensors.full(type, group.getRank(), shape);
                            group.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
                            Tensor expected = TestTensors.full(type, 3, shape);
                            TestTensors.assertSame(tensor, expected, Arrays.toString(shape));
                        }
                    }
                });
    }

    /**
     * 1 + 2^-8 is not a bfloat16: a sum rounded after every addend would lose all of them, the sum
     * in 32 bits that is rounded once keeps them.
     */
    @Test(timeOut = 60_000)
    public void roundsSixteenBitSumsOnce() throws Exception {
        for (DataType type : new DataType[] {DataType.BFLOAT16, DataType.FLOAT16}) {
            double small = type == DataType.BFLOAT16 ? 1.0 / 256 : 1.0 / 2048;
            RankThreads.run(
                    5,
                    (group, manager) -> {
                        Tensor tensor = TestTensors.full(type, group.getRank() == 0 ? 1 : small, 1);
                        group.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
                        Assert.assertEquals(TestTensors.doubles(tensor)[0], 1 + 4 * small, 0);
                    });
        }
    }

    /** A value that a maximum drops would hide the step that went wrong. */
    @Test(timeOut = 60_000)
    public void passesOnWhatIsNotANumber() throws Exception {
        RankThreads.run(
                3,
                (group, manager) -> {
                    for (ReduceOp op : ReduceOp.values()) {
                        float value = group.getRank() == 1 ? Float.NaN : 1;
                        NDArray tensor = manager.create(new float[] {value, 1});
                        group.allReduce(tensor, op);
                        float[] result = tensor.toFloatArray();
                        Assert.assertTrue(Float.isNaN(result[0]), op.toString());
                        Assert.assertEquals(result[1], op == ReduceOp.SUM ? 3f : 1f, 0);
                    }
                });
    }

    /** Timing must not show: every rank, and every repetition, has the same bits. */
    @Test(timeOut = 60_000)
    public void isReproducibleBitForBit() throws Exception {
        byte[][][] results = new byte[20][4][];
        for (int i = 0; i < results.length; i++) {
            int round = i;
            RankThreads.run(
                    4,
                    (group, manager) -> {
                        int rank = group.getRank();
                        Tensor tensor = TestTensors.random(DataType.FLOAT32, rank, 100_003);
                        Thread.sleep((3 * rank + round) % 5); // ranks come in any order
                        group.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
                        results[round][rank] = TestTensors.bits(tensor);
                    });
        }
        for (byte[][] result : results) {
            for (byte[] bits : result) {
                Assert.assertTrue(Arrays.equals(bits, results[0][0]));
            }
        }
    }

    /** No rank leaves a barrier before all have come. */
    @Test(timeOut = 60_000)
    public void aBarrierWaitsForAllRanks() throws Exception {
        for (int size : new int[] {1, 2, 3, 4, 8}) {
            AtomicIntegerArray come = new AtomicIntegerArray(200);
            RankThreads.run(
                    size,
                    (group, manager) -> {
                        for (int i = 0; i < come.length(); i++) {
                            if (i % size == group.getRank() && i % 10 == 0) {
                                Thread.sleep(1); // each is the last from time to time
                            }
                            come.incrementAndGet(i);
                            group.barrier();
                            Assert.assertEquals(come.get(i), size, "round " + i);
                        }
                    });
        }
    }

    /** A rank may have none, of which DJL would make a scalar. */
    @Test(timeOut = 60_000)
    public void allRanksGetTheNumbersOfAll() throws Exception {
        long[] lengths = {2, 0, 1};
        RankThreads.run(
                3,
                (group, manager) -> {
                    long least = Long.MIN_VALUE;
                    long[] two = {group.getRank(), least + group.getRank()};
                    Assert.assertEquals(
                            GatheredNumbers.of(group, manager, two, "numbers"),
                            new long[] {0, least, 1, least + 1, 2, least + 2});
                    long[] some = new long[(int) lengths[group.getRank()]];
                    Arrays.fill(some, 10 + group.getRank());
                    Assert.assertEquals(
                            GatheredNumbers.of(group, manager, some, lengths, "numbers"),
                            new long[] {10, 10, 12});
                });
    }
}

package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** All-reduce gives every rank the reduction of all, in the order of the ranks, to the last bit. */
@SuppressWarnings("try") // a scope is used by being open
public class AllReduceTest {

    /**
     * From small ones, which have a way of their own, to larger ones, not divisible by the ranks.
     */
    private static final long[] LENGTHS = {0, 1, 3, 1000, 65_535, 65_537, 150_001};

    /** Returns every type with every number of ranks. */
    @DataProvider
    public static Object[][] typesAndSizes() {
        List<Object[]> cases = new ArrayList<>();
        for (DataType type : TestTensors.TYPES) {
            for (int size : new int[] {1, 2, 3, 4, 8}) {
                cases.add(new Object[] {type, size});
            }
        }
        return cases.toArray(new Object[0][]);
    }

    @Test(dataProvider = "typesAndSizes", timeOut = 60_000)
    public void equalsTheSerialReduction(DataType type, int size) throws Exception {
        try (PointerScope scope = new PointerScope()) {
            Map<String, Tensor> expected = new HashMap<>();
            Map<Long, List<Tensor>> inputs = new HashMap<>();
            for (long length : LENGTHS) {
                List<Tensor> ofRanks = new ArrayList<>();
                for (int rank = 0; rank < size; rank++) {
                    ofRanks.add(TestTensors.random(type, length + rank, length));
                }
                inputs.put(length, ofRanks);
                for (ReduceOp op : ReduceOp.values()) {
                    expected.put(op + " " + length, TestTensors.reduce(ofRanks, op));
                }
            }
            RankThreads.run(
                    size,
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        for (long length : LENGTHS) {
                            for (ReduceOp op : ReduceOp.values()) {
                                Tensor tensor = inputs.get(length).get(rank).clone();
                                communicator.allReduce(TensorView.of(tensor), op).await();
                                String what = op + " " + length;
                                TestTensors.assertSame(tensor, expected.get(what), what);
                            }
                        }
                    });
        }
    }

    @Test(timeOut = 60_000)
    public void takesSeveralBlocksARank() throws Exception {
        int length = 2 * (4 * 65_536 + 5) + 1;
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    for (DataType type : TestTensors.TYPES) {
                        Tensor ones = TestTensors.full(type, 1, length);
                        communicator.allReduce(TensorView.of(ones), ReduceOp.SUM).await();
                        TestTensors.assertSame(ones, TestTensors.full(type, 2, length), "" + type);
                    }
                    NDArray tensor = manager.arange(length).toType(DataType.FLOAT32, false);
                    communicator.allReduce(tensor, ReduceOp.SUM);
                    // exact: all values stay below 2^24
                    float[] sum = tensor.toFloatArray();
                    for (int i = 0; i < length; i++) {
                        Assert.assertEquals(sum[i], 2f * i, 0);
                    }
                });
    }

    @Test(timeOut = 60_000)
    public void keepsTheShape() throws Exception {
        RankThreads.run(
                3,
                (communicator, manager) -> {
                    Tensor cube =
                            TestTensors.full(DataType.FLOAT32, communicator.getRank(), 2, 3, 5);
                    communicator.allReduce(TensorView.of(cube), ReduceOp.SUM).await();
                    TestTensors.assertSame(
                            cube, TestTensors.full(DataType.FLOAT32, 3, 2, 3, 5), "cube");
                    Tensor scalar = TestTensors.full(DataType.INT32, communicator.getRank());
                    communicator.allReduce(TensorView.of(scalar), ReduceOp.MAX).await();
                    TestTensors.assertSame(scalar, TestTensors.full(DataType.INT32, 2), "scalar");
                    Tensor empty = TestTensors.zeros(DataType.INT64, 4, 0, 2);
                    communicator.allReduce(TensorView.of(empty), ReduceOp.SUM).await();
                    TestTensors.assertSame(
                            empty, TestTensors.zeros(DataType.INT64, 4, 0, 2), "empty");
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
                    (communicator, manager) -> {
                        double value = communicator.getRank() == 0 ? 1 : small;
                        Tensor tensor = TestTensors.full(type, value, 1);
                        communicator.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
                        Assert.assertEquals(TestTensors.doubles(tensor)[0], 1 + 4 * small, 0);
                    });
        }
    }

    /** A value that a maximum drops would hide the step that went wrong. */
    @Test(timeOut = 60_000)
    public void passesOnWhatIsNotANumber() throws Exception {
        RankThreads.run(
                3,
                (communicator, manager) -> {
                    for (ReduceOp op : ReduceOp.values()) {
                        float value = communicator.getRank() == 1 ? Float.NaN : 1;
                        NDArray tensor = manager.create(new float[] {value, 1});
                        communicator.allReduce(tensor, op);
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
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        Tensor tensor = TestTensors.random(DataType.FLOAT32, rank, 100_003);
                        Thread.sleep((3 * rank + round) % 5); // ranks come in any order
                        communicator.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
                        results[round][rank] = TestTensors.bits(tensor);
                    });
        }
        for (byte[][] result : results) {
            for (byte[] bits : result) {
                Assert.assertTrue(Arrays.equals(bits, results[0][0]));
            }
        }
    }
}

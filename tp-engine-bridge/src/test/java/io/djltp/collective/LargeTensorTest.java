package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.testng.Assert;
import org.testng.annotations.Test;

/** Tensors of more than 2 GiB: no length or offset may be an int of bytes. */
public class LargeTensorTest {

    private static final long LENGTH = 540_000_001L; // 2.16 GB of float32

    @Test(timeOut = 90_000)
    public void moreThanTwoGibibytesAreReducedAndBroadcast() throws Exception {
        RankThreads.run(
                2,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    try (Tensor tensor = TestTensors.full(DataType.FLOAT32, rank + 1, LENGTH)) {
                        for (long index : PLACES) {
                            set(tensor, index, value(index, rank));
                        }
                        communicator.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
                        for (long index : PLACES) {
                            Assert.assertEquals(
                                    get(tensor, index), value(index, 0) + value(index, 1), 0);
                        }
                        Assert.assertEquals(get(tensor, LENGTH / 3), 3f, 0);
                        Assert.assertEquals(get(tensor, 2 * (LENGTH / 3)), 3f, 0);
                        set(tensor, LENGTH - 1, rank);
                        communicator.broadcast(TensorView.of(tensor), 1).await();
                        Assert.assertEquals(get(tensor, LENGTH - 1), 1f, 0);
                    }
                });
    }

    /** The ends, the middle where the ranks' ranges meet, and around 2^31 bytes. */
    private static final long[] PLACES = {
        0, 1, LENGTH / 2 - 1, LENGTH / 2, LENGTH / 2 + 1, (1L << 29) - 1, 1L << 29, LENGTH - 1
    };

    private static float value(long index, int rank) {
        // whole numbers: exact, and different from the rest
        return 10 * (rank + 1) + index % 7;
    }

    private static void set(Tensor tensor, long index, float value) {
        tensor.narrow(0, index, 1).fill_(new Scalar(value));
    }

    private static float get(Tensor tensor, long index) {
        return tensor.narrow(0, index, 1).item_float();
    }
}

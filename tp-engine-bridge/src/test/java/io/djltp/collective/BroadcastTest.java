package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.testng.annotations.Test;

/** Broadcast gives every rank the tensor of the root, whichever rank that is. */
public class BroadcastTest {

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void givesEveryRankTheTensorOfTheRoot(DataType type, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    for (int root = 0; root < size; root++) {
                        for (long rows : new long[] {0, 1, 1001}) {
                            Tensor tensor = TestTensors.random(type, 7 + rank, rows, 70);
                            communicator.broadcast(TensorView.of(tensor), root).await();
                            TestTensors.assertSame(
                                    tensor,
                                    TestTensors.random(type, 7 + root, rows, 70),
                                    rows + " rows from " + root);
                        }
                    }
                });
    }
}

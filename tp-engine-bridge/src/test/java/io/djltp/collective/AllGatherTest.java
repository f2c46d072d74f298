package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.testng.annotations.Test;

import java.util.Arrays;

/** All-gather gives every rank the shares of all, one after another. */
public class AllGatherTest {

    /** Equal, unequal and empty shares; the first are taken if there are fewer ranks. */
    static final long[][] SHARES = {
        {5, 5, 5, 5, 5, 5, 5, 5},
        {3, 0, 7, 1, 0, 2, 11, 4},
        {0, 4, 0, 0, 9, 0, 0, 0},
        {0, 0, 0, 0, 0, 0, 0, 0},
        {65_537, 1, 65_535, 70_000, 0, 3, 1, 1}
    };

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void putsTheSharesOneAfterAnother(DataType type, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    for (long[] of : SHARES) {
                        long[] shares = Arrays.copyOf(of, size);
                        Tensor expected = TestTensors.concat(TestTensors.shares(type, shares));
                        Tensor input = TestTensors.random(type, rank, shares[rank]);
                        Tensor output = TestTensors.full(type, 1, expected.numel());
                        communicator
                                .allGather(TensorView.of(input), TensorView.of(output), shares)
                                .await();
                        String what = Arrays.toString(shares);
                        TestTensors.assertSame(output, expected, what);
                        TestTensors.assertSame(
                                input,
                                TestTensors.random(type, rank, shares[rank]),
                                "the input after " + what);
                    }
                });
    }

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void worksInPlace(DataType type, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    for (long[] of : SHARES) {
                        long[] shares = Arrays.copyOf(of, size);
                        Tensor expected = TestTensors.concat(TestTensors.shares(type, shares));
                        Tensor output = TestTensors.full(type, 1, expected.numel());
                        long start = Arrays.stream(shares, 0, rank).sum();
                        Tensor own = output.narrow(0, start, shares[rank]);
                        own.copy_(TestTensors.random(type, rank, shares[rank]));
                        communicator
                                .allGather(TensorView.of(own), TensorView.of(output), shares)
                                .await();
                        TestTensors.assertSame(output, expected, Arrays.toString(shares));
                    }
                });
    }
}

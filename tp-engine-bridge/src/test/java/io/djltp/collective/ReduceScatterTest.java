package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Reduce-scatter leaves each rank its share of the reduction. */
public class ReduceScatterTest {

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void leavesEachRankItsShare(DataType type, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    for (long[] of : AllGatherTest.SHARES) {
                        long[] shares = Arrays.copyOf(of, size);
                        for (ReduceOp op : ReduceOp.values()) {
                            Tensor input = input(type, shares, rank);
                            Tensor output = TestTensors.full(type, 1, shares[rank]);
                            communicator
                                    .reduceScatter(
                                            TensorView.of(input), TensorView.of(output), shares, op)
                                    .await();
                            String what = op + " " + Arrays.toString(shares);
                            TestTensors.assertSame(output, expected(type, shares, rank, op), what);
                            TestTensors.assertSame(
                                    input, input(type, shares, rank), "the input after " + what);
                        }
                    }
                });
    }

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void worksInPlace(DataType type, int size) throws Exception {
        RankThreads.run(
                size,
                (communicator, manager) -> {
                    int rank = communicator.getRank();
                    for (long[] of : AllGatherTest.SHARES) {
                        long[] shares = Arrays.copyOf(of, size);
                        Tensor input = input(type, shares, rank);
                        long start = Arrays.stream(shares, 0, rank).sum();
                        Tensor own = input.narrow(0, start, shares[rank]);
                        communicator
                                .reduceScatter(
                                        TensorView.of(input),
                                        TensorView.of(own),
                                        shares,
                                        ReduceOp.SUM)
                                .await();
                        TestTensors.assertSame(
                                own,
                                expected(type, shares, rank, ReduceOp.SUM),
                                Arrays.toString(shares));
                    }
                });
    }

    private static Tensor input(DataType type, long[] shares, int rank) {
        return TestTensors.random(type, rank, Arrays.stream(shares).sum());
    }

    private static Tensor expected(DataType type, long[] shares, int rank, ReduceOp op) {
        long start = Arrays.stream(shares, 0, rank).sum();
        List<Tensor> inputs = new ArrayList<>();
        for (int i = 0; i < shares.length; i++) {
            inputs.add(input(type, shares, i).narrow(0, start, shares[rank]));
        }
        return TestTensors.reduce(inputs, op);
    }
}

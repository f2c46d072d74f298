package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Reduce-scatter leaves each rank its share of the reduction. */
@SuppressWarnings("try") // a scope is used by being open
public class ReduceScatterTest {

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void leavesEachRankItsShare(DataType type, int size) throws Exception {
        try (PointerScope scope = new PointerScope()) {
            List<Case> cases = cases(type, size, ReduceOp.values());
            RankThreads.run(
                    size,
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        for (Case each : cases) {
                            long[] shares = each.shares;
                            Tensor input = each.inputs.get(rank).clone();
                            Tensor output = TestTensors.full(type, 1, shares[rank]);
                            communicator
                                    .reduceScatter(
                                            TensorView.of(input),
                                            TensorView.of(output),
                                            shares,
                                            each.op)
                                    .await();
                            TestTensors.assertSame(output, each.expected(rank), each.toString());
                            TestTensors.assertSame(
                                    input, each.inputs.get(rank), "the input after " + each);
                        }
                    });
        }
    }

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void worksInPlace(DataType type, int size) throws Exception {
        try (PointerScope scope = new PointerScope()) {
            List<Case> cases = cases(type, size, ReduceOp.SUM);
            RankThreads.run(
                    size,
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        for (Case each : cases) {
                            Tensor input = each.inputs.get(rank).clone();
                            Tensor own = each.part(input, rank);
                            communicator
                                    .reduceScatter(
                                            TensorView.of(input),
                                            TensorView.of(own),
                                            each.shares,
                                            each.op)
                                    .await();
                            TestTensors.assertSame(own, each.expected(rank), each.toString());
                        }
                    });
        }
    }

    /** Returns all shares with all operations: worked out once, and not by every rank. */
    private static List<Case> cases(DataType type, int size, ReduceOp... ops) {
        List<Case> cases = new ArrayList<>();
        for (long[] of : AllGatherTest.SHARES) {
            long[] shares = Arrays.copyOf(of, size);
            List<Tensor> inputs = new ArrayList<>();
            for (int rank = 0; rank < size; rank++) {
                inputs.add(TestTensors.random(type, rank, Arrays.stream(shares).sum()));
            }
            for (ReduceOp op : ops) {
                cases.add(new Case(shares, op, inputs, TestTensors.reduce(inputs, op)));
            }
        }
        return cases;
    }

    /** What all ranks put in, and the reduction of it. */
    private record Case(long[] shares, ReduceOp op, List<Tensor> inputs, Tensor reduction) {

        Tensor part(Tensor whole, int rank) {
            return whole.narrow(0, Arrays.stream(shares, 0, rank).sum(), shares[rank]);
        }

        Tensor expected(int rank) {
            return part(reduction, rank);
        }

        @Override
        public String toString() {
            return op + " " + Arrays.toString(shares);
        }
    }
}

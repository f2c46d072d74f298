package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** All-gather gives every rank the shares of all, one after another. */
@SuppressWarnings("try") // a scope is used by being open
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
        try (PointerScope scope = new PointerScope()) {
            List<Case> cases = cases(type, size);
            RankThreads.run(
                    size,
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        for (Case each : cases) {
                            Tensor input = each.inputs.get(rank).clone();
                            Tensor output = TestTensors.full(type, 1, each.expected.numel());
                            communicator
                                    .allGather(
                                            TensorView.of(input),
                                            TensorView.of(output),
                                            each.shares)
                                    .await();
                            String what = Arrays.toString(each.shares);
                            TestTensors.assertSame(output, each.expected, what);
                            TestTensors.assertSame(
                                    input, each.inputs.get(rank), "the input after " + what);
                        }
                    });
        }
    }

    @Test(dataProvider = "typesAndSizes", dataProviderClass = AllReduceTest.class, timeOut = 60_000)
    public void worksInPlace(DataType type, int size) throws Exception {
        try (PointerScope scope = new PointerScope()) {
            List<Case> cases = cases(type, size);
            RankThreads.run(
                    size,
                    (communicator, manager) -> {
                        int rank = communicator.getRank();
                        for (Case each : cases) {
                            long[] shares = each.shares;
                            Tensor output = TestTensors.full(type, 1, each.expected.numel());
                            long start = Arrays.stream(shares, 0, rank).sum();
                            Tensor own = output.narrow(0, start, shares[rank]);
                            own.copy_(each.inputs.get(rank));
                            communicator
                                    .allGather(TensorView.of(own), TensorView.of(output), shares)
                                    .await();
                            TestTensors.assertSame(output, each.expected, Arrays.toString(shares));
                        }
                    });
        }
    }

    /** Returns all shares: worked out once, and not by every rank. */
    private static List<Case> cases(DataType type, int size) {
        List<Case> cases = new ArrayList<>();
        for (long[] of : SHARES) {
            long[] shares = Arrays.copyOf(of, size);
            List<Tensor> inputs = TestTensors.shares(type, shares);
            cases.add(new Case(shares, inputs, TestTensors.concat(inputs)));
        }
        return cases;
    }

    /** What all ranks put in, and what each gets. */
    private record Case(long[] shares, List<Tensor> inputs, Tensor expected) {}
}

package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

import java.util.Arrays;
import java.util.SplittableRandom;

/**
 * Runs many random operations, the same on all ranks, and prints the memory of the process early
 * and at the end.
 */
@SuppressWarnings("try") // a scope is used by being open
final class MixedOperations {

    private MixedOperations() {}

    public static void main(String[] args) throws Exception {
        int operations = Integer.parseInt(args[0]);
        int warm = operations / 10;
        RankThreads.run(
                4,
                (communicator, manager) -> {
                    SplittableRandom random = new SplittableRandom(42);
                    for (int i = 0; i < operations; i++) {
                        if (i == warm) {
                            report(communicator, "early");
                        }
                        try (PointerScope scope = new PointerScope()) {
                            operate(communicator, random.split());
                        }
                    }
                    report(communicator, "late");
                });
    }

    private static void operate(Communicator group, SplittableRandom random) {
        DataType type = TestTensors.TYPES[random.nextInt(TestTensors.TYPES.length)];
        ReduceOp op = ReduceOp.values()[random.nextInt(3)];
        long[] shares = random.longs(group.getSize(), 0, 2000).toArray();
        long total = Arrays.stream(shares).sum();
        Tensor whole = TestTensors.full(type, group.getRank() + 1, total);
        Tensor share = TestTensors.full(type, group.getRank() + 1, shares[group.getRank()]);
        TensorView view = TensorView.of(whole);
        switch (random.nextInt(5)) {
            case 0:
                group.allReduce(view, op).await();
                double expected = op == ReduceOp.SUM ? 10 : op == ReduceOp.MAX ? 4 : 1;
                check(whole, 0, total, expected);
                break;
            case 1:
                group.allGather(TensorView.of(share), view, shares).await();
                long start = 0;
                for (int rank = 0; rank < shares.length; rank++) {
                    check(whole, start, shares[rank], rank + 1);
                    start += shares[rank];
                }
                break;
            case 2:
                group.reduceScatter(view, TensorView.of(share), shares, ReduceOp.SUM).await();
                check(share, 0, share.numel(), 10);
                break;
            case 3:
                int root = random.nextInt(group.getSize());
                group.broadcast(view, root).await();
                check(whole, 0, total, root + 1);
                break;
            default:
                group.barrier();
        }
    }

    private static void check(Tensor tensor, long start, long length, double expected) {
        if (length > 0) {
            double first = TestTensors.doubles(tensor.narrow(0, start, 1))[0];
            double last = TestTensors.doubles(tensor.narrow(0, start + length - 1, 1))[0];
            if (first != expected || last != expected) {
                throw new AssertionError(first + " and " + last + " instead of " + expected);
            }
        }
    }

    private static void report(Communicator communicator, String when) throws Exception {
        communicator.barrier();
        if (communicator.getRank() == 0) {
            ProcessMemory.print(when);
        }
        communicator.barrier();
    }
}

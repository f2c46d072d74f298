package io.djltp.internal.collective.nccl;

import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.testng.Assert;

import java.util.Arrays;

/**
 * Runs every operation once on one rank and checks its results. All values are small whole numbers,
 * which every type holds and whose sums no order of reduction changes.
 */
@SuppressWarnings("try") // a scope is used by being open
final class EveryOperation {

    private final Communicator group;
    private final DataType type;
    private final int rank;
    private final int size;

    EveryOperation(Communicator group, DataType type) {
        this.group = group;
        this.type = type;
        rank = group.getRank();
        size = group.getSize();
    }

    /** Runs all of them. */
    static void run(Communicator group, DataType type, int length) {
        try (PointerScope scope = new PointerScope()) {
            EveryOperation operation = new EveryOperation(group, type);
            operation.allReduce(length);
            operation.broadcast(length);
            long[] equal = new long[group.getSize()];
            Arrays.fill(equal, length);
            long[] unequal = new long[group.getSize()];
            for (int i = 0; i < unequal.length; i++) {
                unequal[i] = i % 3 == 1 ? 0 : length + 5L * i;
            }
            for (long[] shares : new long[][] {equal, unequal}) {
                operation.allGather(shares, false);
                operation.allGather(shares, true);
                operation.reduceScatter(shares, false);
                operation.reduceScatter(shares, true);
            }
            operation.allToAll(length);
            group.barrier();
        }
    }

    /** What a rank puts in at a place. */
    private static double value(int rank, long place) {
        return (rank + 1) * (place % 5) - 3;
    }

    private double reduced(ReduceOp op, long place) {
        double result = value(0, place);
        for (int r = 1; r < size; r++) {
            double next = value(r, place);
            result =
                    op == ReduceOp.SUM
                            ? result + next
                            : op == ReduceOp.MAX ? Math.max(result, next) : Math.min(result, next);
        }
        return result;
    }

    private void allReduce(int length) {
        for (ReduceOp op : ReduceOp.values()) {
            Tensor tensor = input(length);
            group.allReduce(TensorView.of(tensor), op).await();
            double[] result = values(tensor);
            for (int i = 0; i < length; i++) {
                check(result[i], reduced(op, i), op, i);
            }
        }
    }

    private void broadcast(int length) {
        for (int root = 0; root < size; root++) {
            Tensor tensor = input(length);
            group.broadcast(TensorView.of(tensor), root).await();
            double[] result = values(tensor);
            for (int i = 0; i < length; i++) {
                check(result[i], value(root, i), "broadcast", i);
            }
        }
    }

    private void allGather(long[] shares, boolean inPlace) {
        long total = Arrays.stream(shares).sum();
        long start = Arrays.stream(shares, 0, rank).sum();
        Tensor output = zeros(total);
        Tensor own = input((int) shares[rank]);
        Tensor input = own;
        if (inPlace) {
            input = output.narrow(0, start, shares[rank]);
            input.copy_(own);
        }
        group.allGather(TensorView.of(input), TensorView.of(output), shares).await();
        double[] result = values(output);
        int place = 0;
        for (int r = 0; r < size; r++) {
            for (long i = 0; i < shares[r]; i++) {
                check(result[place++], value(r, i), "all-gather", place);
            }
        }
    }

    private void reduceScatter(long[] shares, boolean inPlace) {
        long start = Arrays.stream(shares, 0, rank).sum();
        for (ReduceOp op : ReduceOp.values()) {
            Tensor input = input((int) Arrays.stream(shares).sum());
            Tensor output = inPlace ? input.narrow(0, start, shares[rank]) : zeros(shares[rank]);
            group.reduceScatter(TensorView.of(input), TensorView.of(output), shares, op).await();
            double[] result = values(output);
            for (int i = 0; i < result.length; i++) {
                check(result[i], reduced(op, start + i), op, i);
            }
        }
    }

    /** Rank r sends length + 2 r + 3 q elements to rank q, and nothing if both are odd. */
    private void allToAll(int length) {
        long[] sent = new long[size];
        long[] received = new long[size];
        for (int r = 0; r < size; r++) {
            boolean odd = r % 2 == 1 && rank % 2 == 1;
            sent[r] = odd ? 0 : length + 2L * rank + 3L * r;
            received[r] = odd ? 0 : length + 2L * r + 3L * rank;
        }
        Tensor input = input((int) Arrays.stream(sent).sum());
        Tensor output = zeros(Arrays.stream(received).sum());
        group.allToAll(TensorView.of(input), TensorView.of(output), sent, received).await();
        double[] result = values(output);
        int place = 0;
        for (int r = 0; r < size; r++) {
            long start = 0; // where the sender has this rank's share
            for (int q = 0; q < rank; q++) {
                start += r % 2 == 1 && q % 2 == 1 ? 0 : length + 2L * r + 3L * q;
            }
            for (long i = 0; i < received[r]; i++) {
                check(result[place++], value(r, start + i), "all-to-all", place);
            }
        }
    }

    /** Makes a text only of what is wrong: there are millions of elements. */
    private static void check(double actual, double expected, Object what, long place) {
        if (actual != expected) {
            Assert.fail(what + " at " + place + ": " + actual + " instead of " + expected);
        }
    }

    private Tensor input(int length) {
        double[] values = new double[length];
        for (int i = 0; i < length; i++) {
            values[i] = value(rank, i);
        }
        return length == 0 ? zeros(0) : Tensor.create(values, length).to(scalarType());
    }

    private Tensor zeros(long length) {
        double[] none = new double[Math.max(1, (int) length)];
        return Tensor.create(none, none.length).to(scalarType()).narrow(0, 0, length);
    }

    static double[] values(Tensor tensor) {
        double[] values = new double[(int) tensor.numel()];
        if (values.length > 0) {
            tensor.to(ScalarType.Double)
                    .contiguous()
                    .<java.nio.DoubleBuffer>createBuffer()
                    .get(values);
        }
        return values;
    }

    private ScalarType scalarType() {
        switch (type) {
            case FLOAT32:
                return ScalarType.Float;
            case FLOAT64:
                return ScalarType.Double;
            case FLOAT16:
                return ScalarType.Half;
            case BFLOAT16:
                return ScalarType.BFloat16;
            case INT32:
                return ScalarType.Int;
            case INT64:
                return ScalarType.Long;
            default:
                throw new AssertionError(type);
        }
    }
}

package io.djltp.collective.mpi;

import io.djltp.collective.Communicator;
import io.djltp.collective.GroupFailure;
import io.djltp.collective.ReduceOp;
import io.djltp.torch.Autograd;
import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.time.Duration;
import java.util.Arrays;
import java.util.SplittableRandom;
import java.util.function.DoubleBinaryOperator;
import java.util.function.IntToDoubleFunction;

/**
 * A process of a job that runs all operations on all types and checks the results against what Java
 * computes: small whole numbers, whose sums are exact in every type.
 */
@SuppressWarnings("try") // a scope is used by being open
final class MpiOperations {

    static final Duration TIMEOUT = Duration.ofSeconds(30);

    /** After how many elements the values begin anew: no divisor of any length. */
    private static final int PERIOD = 23;

    /** More than the ranks together gather at once: see {@link MpiAlgorithms}. */
    private static final int LARGE_BYTES = 150_000;

    private static final ScalarType[] TYPES = {
        ScalarType.Float,
        ScalarType.Double,
        ScalarType.Half,
        ScalarType.BFloat16,
        ScalarType.Int,
        ScalarType.Long
    };

    private final Communicator group;
    private final int rank;
    private final int size;
    private ScalarType type;

    private MpiOperations(Communicator group) {
        this.group = group;
        rank = group.getRank();
        size = group.getSize();
    }

    /**
     * Runs the process.
     *
     * @param args none
     */
    public static void main(String[] args) {
        LibTorch.load();
        Autograd.setThreads(1); // the processes share few cores
        try (MpiWorld world = MpiWorld.start()) {
            checkWorld(world);
            GroupFailure failure = new GroupFailure();
            try (MpiCommunicator group = MpiCommunicator.create(world, TIMEOUT, failure)) {
                runAll(group);
                runParts(group);
            }
            try (MpiCommunicator group = MpiCommunicator.create(world, TIMEOUT, failure, false)) {
                runAll(group);
                runParts(group);
            }
            // pieces of 100 elements stand for those of 2^30: ten make a tensor
            try (MpiCommunicator group =
                    MpiCommunicator.create(world, TIMEOUT, failure, true, 100)) {
                runAll(group, false);
            }
            MpiRun.report(world.getRank(), "done", world.getSize() + " processes");
        }
    }

    private static void checkWorld(MpiWorld world) {
        if (MpiWorld.start() != world) {
            throw new AssertionError("two worlds");
        }
        for (int length : new int[] {0, 1, 3000}) {
            byte[] message = new byte[length];
            Arrays.fill(message, (byte) 42);
            byte[] received = world.broadcast(world.getRank() == 0 ? message : null);
            if (!Arrays.equals(received, message)) {
                throw new AssertionError("a message of " + length + " bytes was damaged");
            }
        }
    }

    private static void runParts(Communicator group) {
        // the odd ranks in reverse order, and the even ones
        int color = group.getRank() % 2;
        try (Communicator part = group.split(color, color == 1 ? -group.getRank() : 0)) {
            int odd = group.getSize() / 2;
            int expected = color == 1 ? odd - 1 - group.getRank() / 2 : group.getRank() / 2;
            if (part.getRank() != expected || part.getSize() != (color == 1 ? odd : odd(group))) {
                throw new AssertionError("rank " + part.getRank() + " of " + part.getSize());
            }
            runAll(part);
            group.barrier();
        }
    }

    private static int odd(Communicator group) {
        return (group.getSize() + 1) / 2;
    }

    private static void runAll(Communicator group) {
        runAll(group, true);
    }

    private static void runAll(Communicator group, boolean large) {
        MpiOperations operations = new MpiOperations(group);
        for (ScalarType type : TYPES) {
            operations.type = type;
            int longest = large ? operations.largeLength() : 1001;
            for (int length : new int[] {0, 1, 5, 1000, longest}) {
                try (PointerScope scope = new PointerScope()) {
                    operations.runReductions(length);
                    operations.runMoves(length);
                }
            }
            try (PointerScope scope = new PointerScope()) {
                operations.checkRounding(longest);
                operations.checkOrder(longest);
            }
        }
        group.barrier();
    }

    /** Returns what is too large for a gather of all ranks' tensors, and is reduced by shares. */
    private int largeLength() {
        int bytes = (int) of(new double[1]).element_size();
        return LARGE_BYTES / bytes / Math.max(2, size) + 1;
    }

    private void runReductions(int length) {
        for (ReduceOp op : ReduceOp.values()) {
            String what = op + " of " + length;
            double[] sum = periodic(length, i -> reduce(op, r -> value(r, i)));
            Tensor tensor = tensor(rank, length);
            group.allReduce(TensorView.of(tensor), op).await();
            check(tensor, sum, "all-reduce " + what);

            long[] shares = shares(length);
            int start = start(shares, rank);
            double[] share = Arrays.copyOfRange(sum, start, start + (int) shares[rank]);
            Tensor input = tensor(rank, length);
            Tensor output = of(new double[(int) shares[rank]]);
            group.reduceScatter(TensorView.of(input), TensorView.of(output), shares, op).await();
            check(output, share, "reduce-scatter " + what);
            check(input, values(rank, length), "the input of reduce-scatter " + what);

            Tensor place = input.narrow(0, start, shares[rank]);
            group.reduceScatter(TensorView.of(input), TensorView.of(place), shares, op).await();
            check(place, share, "reduce-scatter in place " + what);
        }
    }

    private void runMoves(int length) {
        Tensor tensor = tensor(rank, length);
        int root = size - 1;
        group.broadcast(TensorView.of(tensor), root).await();
        check(tensor, values(root, length), "broadcast of " + length);

        long[] shares = shares(length);
        double[] gathered = new double[length];
        for (int r = 0; r < size; r++) {
            double[] share = values(r, (int) shares[r]);
            System.arraycopy(share, 0, gathered, start(shares, r), share.length);
        }
        Tensor share = tensor(rank, (int) shares[rank]);
        Tensor output = of(new double[length]);
        group.allGather(TensorView.of(share), TensorView.of(output), shares).await();
        check(output, gathered, "all-gather of " + length);

        output.fill_(new org.bytedeco.pytorch.Scalar(0));
        Tensor place = output.narrow(0, start(shares, rank), shares[rank]);
        place.copy_(share);
        group.allGather(TensorView.of(place), TensorView.of(output), shares).await();
        check(output, gathered, "all-gather in place of " + length);
        runAllToAll(length / size);
    }

    private void runAllToAll(int length) {
        long[] sent = new long[size];
        long[] received = new long[size];
        Arrays.setAll(sent, to -> part(length, rank, to));
        Arrays.setAll(received, from -> part(length, from, rank));
        double[] expected = new double[(int) Arrays.stream(received).sum()];
        for (int from = 0; from < size; from++) {
            int begin = 0;
            for (int to = 0; to < rank; to++) {
                begin += part(length, from, to);
            }
            double[] all = values(from, begin + (int) received[from]);
            System.arraycopy(all, begin, expected, start(received, from), all.length - begin);
        }
        Tensor input = tensor(rank, (int) Arrays.stream(sent).sum());
        Tensor output = of(new double[expected.length]);
        group.allToAll(TensorView.of(input), TensorView.of(output), sent, received).await();
        check(output, expected, "all-to-all of " + length);
    }

    /** Sums of a large and many small numbers: 16-bit types are rounded once, at the end. */
    private void checkRounding(int longest) {
        if (type == ScalarType.Half || type == ScalarType.BFloat16) {
            double large = type == ScalarType.Half ? 2048 : 256;
            for (int length : new int[] {10, longest}) {
                double[] own = new double[length];
                Arrays.fill(own, rank == 0 ? large : 1);
                double[] sum = new double[length];
                Arrays.fill(sum, large + size - 1);
                Tensor tensor = of(own);
                group.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
                check(tensor, doubles(of(sum)), "a rounded sum");
            }
        }
    }

    /** Sums of numbers of all magnitudes: they are taken in the order of the ranks. */
    private void checkOrder(int longest) {
        for (int length : new int[] {100, longest}) {
            double[] own = random(rank, length);
            double[] sum = random(0, length);
            for (int r = 1; r < size; r++) {
                double[] next = random(r, length);
                for (int i = 0; i < length; i++) {
                    double exact = sum[i] + next[i];
                    sum[i] = type == ScalarType.Double ? exact : (float) exact;
                }
            }
            Tensor tensor = of(own);
            group.allReduce(TensorView.of(tensor), ReduceOp.SUM).await();
            check(tensor, doubles(of(sum)), "a sum in order");
        }
    }

    /** Returns numbers of the type. */
    private double[] random(int rank, int length) {
        SplittableRandom random = new SplittableRandom(rank);
        double[] values = new double[length];
        Arrays.setAll(values, i -> (random.nextDouble() - 0.5) * (1 << random.nextInt(9)));
        return doubles(of(values));
    }

    /** Returns the elements that one rank sends another: some send nothing. */
    private static int part(int length, int from, int to) {
        return length == 0 ? 0 : (from * 31 + to * 17) % 3 * length / 2;
    }

    private double reduce(ReduceOp op, IntToDoubleFunction values) {
        DoubleBinaryOperator operator =
                op == ReduceOp.SUM ? Double::sum : op == ReduceOp.MAX ? Math::max : Math::min;
        double result = values.applyAsDouble(0);
        for (int r = 1; r < size; r++) {
            result = operator.applyAsDouble(result, values.applyAsDouble(r));
        }
        return result;
    }

    /** Returns uneven shares: nothing for rank 0 if there are others, the most for the last. */
    private long[] shares(int length) {
        long[] shares = new long[size];
        for (int r = 1; r < size; r++) {
            shares[r] = length / (size + 1);
        }
        shares[size - 1] += length - Arrays.stream(shares).sum();
        return shares;
    }

    private static int start(long[] shares, int rank) {
        return (int) Arrays.stream(shares, 0, rank).sum();
    }

    private static double value(int rank, int index) {
        return (index * 7 + rank * 13) % PERIOD - 11;
    }

    private static double[] values(int rank, int length) {
        return periodic(length, i -> value(rank, i));
    }

    private static double[] periodic(int length, IntToDoubleFunction function) {
        double[] values = new double[length];
        for (int i = 0; i < length; i++) {
            values[i] = i < PERIOD ? function.applyAsDouble(i) : values[i - PERIOD];
        }
        return values;
    }

    private Tensor tensor(int rank, int length) {
        return of(values(rank, length));
    }

    private Tensor of(double[] values) {
        Tensor tensor = values.length == 0 ? empty() : Tensor.create(values);
        return tensor.to(type);
    }

    private static Tensor empty() {
        return Tensor.create(new double[] {0}).narrow(0, 0, 0).clone();
    }

    private static double[] doubles(Tensor tensor) {
        double[] values = new double[(int) tensor.numel()];
        if (values.length > 0) {
            tensor.to(ScalarType.Double)
                    .contiguous()
                    .<java.nio.DoubleBuffer>createBuffer()
                    .get(values);
        }
        return values;
    }

    private void check(Tensor actual, double[] expected, String what) {
        double[] values = doubles(actual);
        int index = Arrays.mismatch(values, expected);
        if (index >= 0) {
            throw new AssertionError(
                    "%s %s: element %d of %d on rank %d of %d is %s instead of %s"
                            .formatted(
                                    type,
                                    what,
                                    index,
                                    expected.length,
                                    rank,
                                    size,
                                    values[index],
                                    expected[index]));
        }
    }
}

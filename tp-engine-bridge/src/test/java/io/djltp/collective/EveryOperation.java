package io.djltp.collective;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * Every collective operation, with what each rank puts in and what it must get to the last bit: the
 * reduction in the order of the ranks. Each rank, in whatever process, can work that out alone.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class EveryOperation {

    private final DataType type;
    private final int[] ranks;
    private final int size;
    private final long[] lengths;
    private final long[][] shares;

    /** Begins an operation on a rank's input. */
    private interface Operation {
        Started start(Communicator group, Tensor input);
    }

    private record Started(Work work, Tensor output) {}

    /** An operation under way, and what it must give. */
    public record Pending(String name, Work work, Tensor output, Tensor expected) {

        /** Waits for it, and compares. */
        public void check() {
            work.await();
            TestTensors.assertSame(output, expected, name);
        }
    }

    /** What all ranks put in, and what each gets. */
    record Case(
            String name,
            List<Tensor> inputs,
            IntFunction<Tensor> expected,
            boolean keepsInput,
            Operation operation) {

        Pending begin(Communicator group, Tensor input) {
            Started started = operation.start(group, input);
            Tensor result = expected.apply(group.getRank());
            return new Pending(name, started.work, started.output, result);
        }

        void check(Communicator group) {
            try (PointerScope scope = new PointerScope()) {
                Tensor input = inputs.get(group.getRank()).clone();
                begin(group, input).check();
                if (keepsInput) {
                    Tensor before = inputs.get(group.getRank());
                    TestTensors.assertSame(input, before, "the input after " + name);
                }
            }
        }
    }

    /**
     * Chooses the operations.
     *
     * @param type the type of the tensors
     * @param ranks numbers that tell what the ranks of the group put in
     * @param lengths the lengths of tensors that are reduced or broadcast
     * @param shares the shares of all ranks that are gathered or scattered
     */
    EveryOperation(DataType type, int[] ranks, long[] lengths, long[]... shares) {
        this.type = type;
        this.ranks = ranks;
        this.lengths = lengths;
        this.shares = shares;
        size = ranks.length;
    }

    /**
     * Runs all of them once on one rank.
     *
     * @param group the group
     * @param type the type of the tensors
     * @param length about how long the tensors are
     */
    public static void run(Communicator group, DataType type, int length) {
        int size = group.getSize();
        try (PointerScope scope = new PointerScope()) {
            new EveryOperation(
                            type,
                            IntStream.range(0, size).toArray(),
                            new long[] {length},
                            LongStream.generate(() -> length).limit(size).toArray(),
                            uneven(size, length))
                    .all()
                    .forEach(each -> each.check(group));
        }
        group.barrier();
    }

    /**
     * Begins one of them.
     *
     * @param group the group
     * @param ranks numbers that tell what the ranks of the group put in
     * @param seed which one
     * @param length about how long the tensors are
     * @return the operation, to be waited for
     */
    public static Pending begin(Communicator group, int[] ranks, int seed, int length) {
        EveryOperation every =
                new EveryOperation(
                        DataType.FLOAT32, ranks, new long[] {length}, uneven(ranks.length, length));
        List<Case> cases = every.kind(seed % 5);
        Case one = cases.get(seed % cases.size());
        return one.begin(group, one.inputs.get(group.getRank()).clone());
    }

    private static long[] uneven(int size, int length) {
        return IntStream.range(0, size).mapToLong(i -> i % 3 == 1 ? 0 : length + 5L * i).toArray();
    }

    /** Returns all of them, worked out. */
    List<Case> all() {
        return IntStream.range(0, 5).boxed().flatMap(kind -> kind(kind).stream()).toList();
    }

    private List<Case> kind(int number) {
        List<Case> cases = new ArrayList<>();
        switch (number) {
            case 0 -> allReduces(cases);
            case 1 -> broadcasts(cases);
            case 2 -> allGathers(cases);
            case 3 -> reduceScatters(cases);
            default -> cases.add(allToAll());
        }
        return cases;
    }

    private List<Tensor> inputs(long seed, IntFunction<Long> length) {
        return IntStream.range(0, size)
                .mapToObj(i -> TestTensors.random(type, seed + 31L * ranks[i], length.apply(i)))
                .toList();
    }

    private void allReduces(List<Case> cases) {
        for (long length : lengths) {
            List<Tensor> inputs = inputs(length, rank -> length);
            for (ReduceOp op : ReduceOp.values()) {
                Tensor expected = TestTensors.reduce(inputs, op);
                Operation operation =
                        (group, in) -> new Started(group.allReduce(TensorView.of(in), op), in);
                String name = "all-reduce " + op + " " + length;
                cases.add(new Case(name, inputs, rank -> expected, false, operation));
            }
        }
    }

    private void broadcasts(List<Case> cases) {
        for (long length : lengths) {
            List<Tensor> inputs = inputs(7, rank -> length);
            for (int i = 0; i < size; i++) {
                int root = i;
                Operation operation =
                        (group, in) -> new Started(group.broadcast(TensorView.of(in), root), in);
                String name = "broadcast " + length + " from " + root;
                cases.add(new Case(name, inputs, rank -> inputs.get(root), false, operation));
            }
        }
    }

    private void allGathers(List<Case> cases) {
        for (long[] counts : shares) {
            List<Tensor> inputs = inputs(0, rank -> counts[rank]);
            Tensor all = TestTensors.concat(inputs);
            for (boolean inPlace : new boolean[] {false, true}) {
                Operation operation =
                        (group, in) -> {
                            Tensor output = TestTensors.full(type, 1, all.numel());
                            Tensor own = part(output, counts, group.getRank());
                            TensorView from = TensorView.of(inPlace ? own.copy_(in) : in);
                            Work work = group.allGather(from, TensorView.of(output), counts);
                            return new Started(work, output);
                        };
                String name = "all-gather " + Arrays.toString(counts) + inPlace;
                cases.add(new Case(name, inputs, rank -> all, true, operation));
            }
        }
    }

    private void reduceScatters(List<Case> cases) {
        for (long[] counts : shares) {
            List<Tensor> inputs = inputs(0, rank -> Arrays.stream(counts).sum());
            for (ReduceOp op : ReduceOp.values()) {
                Tensor sum = TestTensors.reduce(inputs, op);
                for (boolean inPlace : new boolean[] {false, true}) {
                    Operation operation =
                            (group, in) -> {
                                Tensor own = part(in, counts, group.getRank());
                                Tensor to = inPlace ? own : TestTensors.full(type, 1, own.numel());
                                TensorView from = TensorView.of(in);
                                Work work =
                                        group.reduceScatter(from, TensorView.of(to), counts, op);
                                return new Started(work, to);
                            };
                    String name = "reduce-scatter " + op + Arrays.toString(counts) + inPlace;
                    IntFunction<Tensor> expected = rank -> part(sum, counts, rank);
                    cases.add(new Case(name, inputs, expected, !inPlace, operation));
                }
            }
        }
    }

    /** The transposition of the shares, uneven, and nothing from some ranks to some others. */
    private Case allToAll() {
        long[][] sent = new long[size][size]; // [from][to]
        for (int from = 0; from < size; from++) {
            for (int to = 0; to < size; to++) {
                boolean none = (from * 3 + to * 5) % 4 == 1;
                sent[from][to] = none ? 0 : lengths[0] + 1 + (from + 2 * to) % 3;
            }
        }
        List<Tensor> inputs = inputs(0, rank -> Arrays.stream(sent[rank]).sum());
        IntFunction<Tensor> expected =
                to ->
                        TestTensors.concat(
                                IntStream.range(0, size)
                                        .mapToObj(from -> part(inputs.get(from), sent[from], to))
                                        .toList());
        Operation operation =
                (group, in) -> {
                    int rank = group.getRank();
                    long[] received = Arrays.stream(sent).mapToLong(row -> row[rank]).toArray();
                    Tensor output = TestTensors.zeros(type, Arrays.stream(received).sum());
                    TensorView from = TensorView.of(in);
                    Work work = group.allToAll(from, TensorView.of(output), sent[rank], received);
                    return new Started(work, output);
                };
        return new Case("all-to-all", inputs, expected, true, operation);
    }

    private static Tensor part(Tensor whole, long[] shares, int rank) {
        return whole.narrow(0, Arrays.stream(shares, 0, rank).sum(), shares[rank]);
    }
}

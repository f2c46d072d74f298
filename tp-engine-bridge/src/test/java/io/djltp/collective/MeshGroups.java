package io.djltp.collective;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.torch.TensorView;

import org.testng.Assert;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.stream.IntStream;

/**
 * A mesh of two axes, {@code data} x {@code tensor}, as one rank sees it: rank {@code d * tensor +
 * t} is in the tensor group of its row {@code d} and in the data group of its column {@code t}.
 */
public final class MeshGroups implements AutoCloseable {

    private static final int[] LENGTHS = {1, 300, 3, 20_000, 41}; // around what is sent in one step

    private final Communicator world;
    private final NDManager manager;
    private final int row;
    private final int column;
    private final Communicator tensor;
    private final Communicator data;
    private final Deque<Pending> pending = new ArrayDeque<>();

    /**
     * Splits the group of all ranks along both axes.
     *
     * @param world the group of all ranks
     * @param manager makes the tensors
     * @param sizes the sizes of the axes, data and tensor
     */
    public MeshGroups(Communicator world, NDManager manager, int... sizes) {
        this.world = world;
        this.manager = manager;
        row = world.getRank() / sizes[1];
        column = world.getRank() % sizes[1];
        tensor = world.split(row, column, "axis tensor");
        data = world.split(column, row, "axis data");
        Assert.assertEquals(tensor.getSize(), sizes[1]);
        Assert.assertEquals(tensor.getRank(), column);
        Assert.assertEquals(data.getSize(), sizes[0]);
        Assert.assertEquals(data.getRank(), row);
    }

    public Communicator tensor() {
        return tensor;
    }

    public Communicator data() {
        return data;
    }

    /**
     * Begins operations on both groups and on that of all ranks, several before the first is waited
     * for, and compares what they give. Which group comes first differs between rows, and in every
     * other round between columns: ranks that share a group agree.
     *
     * @param rounds the number of rounds
     */
    public void run(int rounds) {
        int[] rowRanks =
                IntStream.range(0, tensor.getSize()).map(t -> row * tensor.getSize() + t).toArray();
        int[] columnRanks =
                IntStream.range(0, data.getSize())
                        .map(d -> d * tensor.getSize() + column)
                        .toArray();
        int[] all = IntStream.range(0, world.getSize()).toArray();
        for (int round = 0; round < rounds; round++) {
            boolean tensorFirst = (round % 2 == 0 ? row : column) % 2 == 0;
            if (tensorFirst) {
                begin(tensor, rowRanks, round);
            }
            begin(data, columnRanks, round + 2);
            if (!tensorFirst) {
                begin(tensor, rowRanks, round);
            }
            if (round % 3 == 0) {
                begin(world, all, round + 1);
            }
            if (round % 4 == 3) {
                finish();
            }
        }
        finish();
        world.barrier();
    }

    private void finish() {
        while (!pending.isEmpty()) {
            pending.pollLast().check(); // the youngest first
        }
    }

    private void begin(Communicator group, int[] ranks, int seed) {
        int length = LENGTHS[seed % LENGTHS.length];
        switch (seed % 7) {
            case 0:
                allGather(group, ranks, seed, length);
                break;
            case 1:
                reduceScatter(group, ranks, seed, length);
                break;
            case 2:
                int root = seed % ranks.length;
                NDArray tensorOfRoot = array(world.getRank(), seed, length);
                add(
                        group.broadcast(TensorView.of(tensorOfRoot), root),
                        tensorOfRoot,
                        values(ranks[root], seed, length),
                        seed);
                break;
            case 3:
                allToAll(group, ranks, seed, length);
                break;
            default:
                NDArray tensors = array(world.getRank(), seed, length);
                add(
                        group.allReduce(TensorView.of(tensors), ReduceOp.SUM),
                        tensors,
                        sum(ranks, seed, length),
                        seed);
        }
    }

    private void allGather(Communicator group, int[] ranks, int seed, int length) {
        long[] shares = shares(ranks.length, length);
        float[] expected = {};
        for (int i = 0; i < ranks.length; i++) {
            expected = concat(expected, values(ranks[i], seed, (int) shares[i]));
        }
        NDArray input = array(world.getRank(), seed, (int) shares[group.getRank()]);
        NDArray output = manager.create(new float[expected.length]);
        add(
                group.allGather(TensorView.of(input), TensorView.of(output), shares),
                output,
                expected,
                seed);
    }

    private void reduceScatter(Communicator group, int[] ranks, int seed, int length) {
        long[] shares = shares(ranks.length, length);
        int total = (int) Arrays.stream(shares).sum();
        int start = (int) Arrays.stream(shares, 0, group.getRank()).sum();
        int share = (int) shares[group.getRank()];
        NDArray input = array(world.getRank(), seed, total);
        NDArray output = manager.create(new float[share]);
        add(
                group.reduceScatter(
                        TensorView.of(input), TensorView.of(output), shares, ReduceOp.SUM),
                output,
                Arrays.copyOfRange(sum(ranks, seed, total), start, start + share),
                seed);
    }

    private void allToAll(Communicator group, int[] ranks, int seed, int length) {
        int size = ranks.length;
        int rank = group.getRank();
        long[] sent = IntStream.range(0, size).mapToLong(to -> length + rank + 2 * to).toArray();
        long[] received =
                IntStream.range(0, size).mapToLong(from -> length + from + 2 * rank).toArray();
        float[] expected = {};
        for (int from = 0; from < size; from++) {
            int before = rank * (length + from) + rank * (rank - 1); // what goes to other ranks
            float[] input = values(ranks[from], seed, before + (int) received[from]);
            expected = concat(expected, Arrays.copyOfRange(input, before, input.length));
        }
        NDArray input = array(world.getRank(), seed, (int) Arrays.stream(sent).sum());
        NDArray output = manager.create(new float[expected.length]);
        add(
                group.allToAll(TensorView.of(input), TensorView.of(output), sent, received),
                output,
                expected,
                seed);
    }

    private void add(Work work, NDArray result, float[] expected, int seed) {
        pending.add(new Pending(work, result, expected, seed));
    }

    private NDArray array(int rank, int seed, int length) {
        return manager.create(values(rank, seed, length));
    }

    /** Returns small whole numbers, whose sums are exact in every order. */
    private static float[] values(int rank, int seed, int length) {
        float[] values = new float[length];
        for (int i = 0; i < length; i++) {
            values[i] = (i * 7 + rank * 13 + seed * 5) % 23 - 11;
        }
        return values;
    }

    private static float[] sum(int[] ranks, int seed, int length) {
        float[] sum = new float[length];
        for (int rank : ranks) {
            float[] values = values(rank, seed, length);
            for (int i = 0; i < length; i++) {
                sum[i] += values[i];
            }
        }
        return sum;
    }

    /** Returns uneven shares; the second rank has none. */
    private static long[] shares(int size, int length) {
        long[] shares = new long[size];
        Arrays.setAll(shares, i -> i == 1 ? 0 : length + 3L * i);
        return shares;
    }

    private static float[] concat(float[] first, float[] second) {
        float[] both = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, both, first.length, second.length);
        return both;
    }

    /** Closes the groups of both axes. */
    @Override
    public void close() {
        data.close();
        tensor.close();
    }

    /** An operation under way, and what it must give. */
    private record Pending(Work work, NDArray result, float[] expected, int seed) {

        void check() {
            work.await();
            int difference = Arrays.mismatch(result.toFloatArray(), expected);
            Assert.assertEquals(difference, -1, "operation " + seed + " differs from");
            result.close();
        }
    }
}

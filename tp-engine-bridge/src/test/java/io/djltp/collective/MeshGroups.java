package io.djltp.collective;

import org.bytedeco.javacpp.PointerScope;
import org.testng.Assert;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.stream.IntStream;

/**
 * A mesh of two axes, {@code data} x {@code tensor}, as one rank sees it: rank {@code d * tensor +
 * t} is in the tensor group of its row {@code d} and in the data group of its column {@code t}.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class MeshGroups implements AutoCloseable {

    private static final int[] LENGTHS = {1, 300, 3, 20_000, 41}; // around what is sent in one step

    private final Communicator world;
    private final int row;
    private final int column;
    private final Communicator tensor;
    private final Communicator data;
    private final Deque<EveryOperation.Pending> pending = new ArrayDeque<>();

    /**
     * Splits the group of all ranks along both axes.
     *
     * @param world the group of all ranks
     * @param sizes the sizes of the axes, data and tensor
     */
    public MeshGroups(Communicator world, int... sizes) {
        this.world = world;
        row = world.getRank() / sizes[1];
        column = world.getRank() % sizes[1];
        tensor = world.split(row, column, "axis tensor");
        data = world.split(column, row, "axis data");
        Assert.assertEquals(tensor.getSize(), sizes[1]);
        Assert.assertEquals(tensor.getRank(), column);
        Assert.assertEquals(data.getSize(), sizes[0]);
        Assert.assertEquals(data.getRank(), row);
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
        int width = tensor.getSize();
        int[] ofRow = IntStream.range(0, width).map(t -> row * width + t).toArray();
        int[] ofColumn = IntStream.range(0, data.getSize()).map(d -> d * width + column).toArray();
        int[] all = IntStream.range(0, world.getSize()).toArray();
        try (PointerScope scope = new PointerScope()) {
            for (int round = 0; round < rounds; round++) {
                boolean tensorFirst = (round % 2 == 0 ? row : column) % 2 == 0;
                if (tensorFirst) {
                    begin(tensor, ofRow, round);
                }
                begin(data, ofColumn, round + 2);
                if (!tensorFirst) {
                    begin(tensor, ofRow, round);
                }
                if (round % 3 == 0) {
                    begin(world, all, round + 1);
                }
                if (round % 4 == 3) {
                    finish();
                }
            }
            finish();
        }
        world.barrier();
    }

    private void begin(Communicator group, int[] ranks, int seed) {
        // seeds have each kind with each length in turn
        int length = LENGTHS[(seed + seed / 5) % LENGTHS.length];
        pending.add(EveryOperation.begin(group, ranks, seed, length));
    }

    private void finish() {
        while (!pending.isEmpty()) {
            pending.pollLast().check(); // the youngest first
        }
    }

    /** Closes the groups of both axes. */
    @Override
    public void close() {
        data.close();
        tensor.close();
    }
}

package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;

import java.util.Arrays;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * The labels of a batch as one rank sees them: which rows count, and which rows have a class of
 * this rank as their label, in the order of the classes.
 */
final class ShardLabels {

    final boolean[] counts; // whether a row counts, by row
    final long[] rows; // the rows with a label of this rank, in the order of the labels
    final long[] columns; // the columns of their labels, in ascending order
    final long[] sample; // the columns that the step is over, or null if it is over all
    final long classes; // how many the step is over, over all ranks
    private final long[] labels; // of all rows, over all ranks

    /**
     * Finds the labels of a rank.
     *
     * @param labels the labels, over all ranks, checked
     * @param shard the classes of the rank
     * @param ignoreIndex the label of rows that do not count
     */
    private ShardLabels(long[] labels, ClassShard shard, long ignoreIndex) {
        this.labels = labels;
        counts = new boolean[labels.length];
        long[] places = new long[labels.length]; // of labels here: column, then row
        int found = 0;
        for (int i = 0; i < labels.length; i++) {
            counts[i] = labels[i] != ignoreIndex;
            long column = counts[i] ? shard.columnOf(labels[i]) : -1;
            if (column >= 0) {
                places[found++] = column * labels.length + i;
            }
        }
        Arrays.sort(places, 0, found);
        rows = new long[found];
        columns = new long[found];
        for (int i = 0; i < found; i++) {
            rows[i] = places[i] % labels.length;
            columns[i] = places[i] / labels.length;
        }
        sample = null;
        classes = shard.total();
    }

    private ShardLabels(ShardLabels all, long[] sample, long classes) {
        counts = all.counts;
        labels = all.labels;
        rows = all.rows;
        columns = Arrays.stream(all.columns).map(c -> Arrays.binarySearch(sample, c)).toArray();
        this.sample = sample;
        this.classes = classes;
    }

    /**
     * Finds the labels of a rank.
     *
     * @param rows the features or logits of the rows, [x1, ..., xn, columns]
     * @param labels the labels over all ranks, [x1, ..., xn], of any numeric type
     * @param shard the classes of the rank
     * @param ignoreIndex the label of rows that do not count
     * @throws IllegalArgumentException if a label is not a class, or there is not one for each row
     */
    static ShardLabels of(NDArray rows, NDArray labels, ClassShard shard, long ignoreIndex) {
        Shape each = leading(rows);
        if (labels.size() != each.size()) {
            throw new IllegalArgumentException(
                    ("The labels %s do not fit the logits %s over all ranks: one label"
                                    + " for each row is needed")
                            .formatted(labels.getShape(), each.add(shard.total())));
        }
        return new ShardLabels(
                ClassLabels.read(labels, shard.total(), ignoreIndex), shard, ignoreIndex);
    }

    /**
     * Returns the same labels in a step over some of the classes.
     *
     * @param sampled the columns that the step is over, ascending, those of all labels among them
     * @param classes how many classes the step is over, over all ranks
     * @return the labels, whose columns are positions in the sample
     */
    ShardLabels restrictedTo(long[] sampled, long classes) {
        return new ShardLabels(this, sampled, classes);
    }

    /** Returns the labels of all rows, over all ranks. */
    long[] all() {
        return labels;
    }

    /** Returns the labels that count, over all ranks. */
    long[] counted() {
        return IntStream.range(0, labels.length)
                .filter(i -> counts[i])
                .mapToLong(i -> labels[i])
                .toArray();
    }

    /** Returns for each row how many classes of a rank have a lower number than its label. */
    long[] columnsBefore(ClassShard shard) {
        return LongStream.of(labels).map(shard::columnsBefore).toArray();
    }

    /** Returns the first place in {@link #columns} of a column that is not before a given one. */
    int from(long column) {
        return from(columns, column);
    }

    /** The same in any ascending columns, each of which may come several times. */
    static int from(long[] columns, long column) {
        int low = 0;
        int high = columns.length;
        while (low < high) {
            int middle = (low + high) >>> 1;
            if (columns[middle] < column) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        return low;
    }

    /**
     * Returns where some of the labels' logits lie in the logits of a chunk of columns, taken as
     * one vector.
     *
     * @param from the first label, see {@link #from}
     * @param to the first label that is not asked for
     * @param start the first column of the chunk
     * @param ofColumn how far apart the logits of neighbouring columns lie
     * @param ofRow how far apart the logits of neighbouring rows lie
     */
    long[] places(int from, int to, long start, long ofColumn, long ofRow) {
        long[] places = new long[to - from];
        for (int i = 0; i < places.length; i++) {
            places[i] = (columns[from + i] - start) * ofColumn + rows[from + i] * ofRow;
        }
        return places;
    }

    /** Returns features, or logits, as rows, [x1 * ... * xn, columns], no part of a graph. */
    static Tensor rows(NDArray features) {
        Tensor tensor = TensorView.of(features).tensor().detach();
        // not -1: of features of length 0, any number of rows would do
        return tensor.reshape(leading(features).size(), tensor.size(-1));
    }

    /** Returns the shape without the last axis, [x1, ..., xn]. */
    static Shape leading(NDArray rows) {
        return rows.getShape().slice(0, rows.getShape().dimension() - 1);
    }

    /**
     * Returns where the labels of a thread lie in its chunks.
     *
     * @param memory the memory of the thread
     * @param ofColumn how far apart the places of neighbouring columns are
     * @param ofRow how far apart those of neighbouring rows are
     */
    Places places(ChunkMemory memory, long ofColumn, long ofRow) {
        return new Places(memory, ofColumn, ofRow);
    }

    /**
     * The places of a thread's labels, for all chunks in one tensor: to make one for each chunk
     * takes longer than what is done at these places.
     */
    final class Places {

        private final ChunkPlan plan;
        private final int first; // label of the thread
        private final Tensor all; // or null if there are none

        private Places(ChunkMemory memory, long ofColumn, long ofRow) {
            plan = memory.plan();
            first = from(plan.range().start());
            long[] found = new long[from(plan.range().end()) - first];
            for (int i = 0; i < found.length; i++) {
                long column = columns[first + i] - plan.range().start();
                found[i] = column % plan.chunk() * ofColumn + rows[first + i] * ofRow;
            }
            all = found.length == 0 ? null : memory.index(found);
        }

        /** Returns the labels of a chunk. */
        OfChunk of(int index) {
            int from = from(plan.start(index));
            int to = from(plan.start(index) + plan.length(index));
            return from == to
                    ? OfChunk.NONE
                    : new OfChunk(from, to, all.narrow(0, from - first, to - from));
        }
    }

    /** The labels that lie in a chunk, and their places; {@code null} if none do. */
    record OfChunk(int from, int to, Tensor places) {

        static final OfChunk NONE = new OfChunk(0, 0, null);

        boolean isEmpty() {
            return places == null;
        }

        Tensor part(Tensor ofAllLabels) {
            return ofAllLabels.narrow(0, from, to - from);
        }
    }
}

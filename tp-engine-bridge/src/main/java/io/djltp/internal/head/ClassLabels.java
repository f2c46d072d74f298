package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.head.LossOptions;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.Map;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * The labels of a batch as numbers of classes, read once and checked: which rows count, and which
 * rows have a class of this rank as their label. DJL's own losses cut 1.5 down to the class 1
 * without a word; here it is an error.
 */
public final class ClassLabels {

    /** From which number on a type does not hold every whole number. */
    private static final Map<DataType, Long> FIRST_GAP =
            Map.of(
                    DataType.FLOAT64, 1L << 53,
                    DataType.FLOAT32, 1L << 24,
                    DataType.FLOAT16, 1L << 11,
                    DataType.BFLOAT16, 1L << 8);

    final ClassShard shard; // the classes of the rank
    final LossOptions options; // of the loss
    final long[] all; // of all rows, over all ranks
    final boolean[] counts; // whether a row counts, by row
    final long[] rows; // the rows with a label of this rank, in the order of the labels
    final long[] columns; // the columns of their labels, in ascending order
    final long @Nullable [] sample; // the columns that the step is over, null if it is over all
    final long classes; // how many the step is over, over all ranks

    private ClassLabels(long[] all, ClassShard shard, LossOptions options) {
        this.all = all;
        this.shard = shard;
        this.options = options;
        counts = new boolean[all.length];
        long[] places = new long[all.length]; // of labels here: column, then row
        int found = 0;
        for (int i = 0; i < all.length; i++) {
            counts[i] = all[i] != options.ignoreIndex();
            long column = counts[i] ? shard.columnOf(all[i]) : -1;
            if (column >= 0) {
                places[found++] = column * all.length + i;
            }
        }
        long[] sorted = LongStream.of(places).limit(found).sorted().toArray();
        rows = LongStream.of(sorted).map(place -> place % all.length).toArray();
        columns = LongStream.of(sorted).map(place -> place / all.length).toArray();
        sample = null;
        classes = shard.total();
    }

    private ClassLabels(ClassLabels labels, long[] sample, long classes) {
        all = labels.all;
        shard = labels.shard;
        options = labels.options;
        counts = labels.counts;
        rows = labels.rows;
        columns = LongStream.of(labels.columns).map(c -> Arrays.binarySearch(sample, c)).toArray();
        this.sample = sample;
        this.classes = classes;
    }

    /**
     * Finds the labels of a rank.
     *
     * @param rows the features or logits of the rows, [x1, ..., xn, columns]
     * @param labels the labels over all ranks, [x1, ..., xn], of any numeric type
     * @param shard the classes of the rank
     * @param options the options of the loss
     * @throws IllegalArgumentException if a label is not a class, or there is not one for each row
     */
    static ClassLabels of(NDArray rows, NDArray labels, ClassShard shard, LossOptions options) {
        Shape each = leading(rows);
        if (labels.size() != each.size()) {
            throw new IllegalArgumentException(
                    ("The labels %s do not fit the logits %s over all ranks: one label"
                                    + " for each row is needed")
                            .formatted(labels.getShape(), each.add(shard.total())));
        }
        return new ClassLabels(read(labels, shard.total(), options.ignoreIndex()), shard, options);
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
     * Returns the same labels in a step over some of the classes.
     *
     * @param sampled the columns that the step is over, ascending, those of all labels among them
     * @param classes how many classes the step is over, over all ranks
     * @return the labels, whose columns are positions in the sample
     */
    ClassLabels restrictedTo(long[] sampled, long classes) {
        return new ClassLabels(this, sampled, classes);
    }

    /** Returns the labels that count, over all ranks. */
    long[] counted() {
        return IntStream.range(0, all.length)
                .filter(i -> counts[i])
                .mapToLong(i -> all[i])
                .toArray();
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
     * Returns where labels' logits lie in those of a chunk, taken as one vector.
     *
     * @param from the first label, see {@link #from}
     * @param to the first label that is not asked for
     * @param start the first column of the first chunk
     * @param chunk the columns of a chunk
     * @param ofColumn how far apart the logits of neighbouring columns lie
     * @param ofRow how far apart the logits of neighbouring rows lie
     */
    long[] places(int from, int to, long start, long chunk, long ofColumn, long ofRow) {
        return IntStream.range(from, to)
                .mapToLong(i -> (columns[i] - start) % chunk * ofColumn + rows[i] * ofRow)
                .toArray();
    }

    /**
     * The places of a thread's labels, for all chunks in one tensor: to make one for each chunk
     * takes longer than what is done at these places.
     */
    final class Places {

        private final ChunkPlan plan;
        private final @Nullable OfChunk all; // of the thread, null if there are none

        /** Finds the places in the memory of the thread. */
        Places(ChunkMemory memory) {
            plan = memory.plan();
            long start = plan.range().start();
            int first = from(start);
            int end = from(plan.range().end());
            long rows = memory.batchRows();
            all =
                    first == end
                            ? null
                            : new OfChunk(
                                    first,
                                    end,
                                    memory.index(places(first, end, start, plan.chunk(), 1, 0)),
                                    memory.index(places(first, end, start, plan.chunk(), rows, 1)));
        }

        /** Returns the labels of a chunk, {@code null} if it has none. */
        @Nullable OfChunk of(int index) {
            int from = from(plan.start(index));
            int to = from(plan.start(index) + plan.length(index));
            if (all == null || from == to) {
                return null;
            }
            long length = to - from;
            return new OfChunk(
                    from,
                    to,
                    all.inClasses.narrow(0, from - all.from, length),
                    all.inLogits.narrow(0, from - all.from, length));
        }
    }

    /** The labels that lie in a chunk, or in those of a thread, and their places. */
    record OfChunk(int from, int to, Tensor inClasses, Tensor inLogits) {

        Tensor part(Tensor ofAllLabels) {
            return ofAllLabels.narrow(0, from, to - from);
        }
    }

    /**
     * Reads labels.
     *
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @param classes the number of classes of all ranks
     * @param ignoreIndex the label of rows that do not count
     * @return the labels, [x1 * ... * xn]
     * @throws IllegalArgumentException if one of the others is no class, no whole number, or so
     *     large that its floating-point type does not tell it from the next class
     */
    public static long[] read(NDArray labels, long classes, long ignoreIndex) {
        DataType type = labels.getDataType();
        double[] values = type.isFloating() ? doubles(labels) : null;
        long[] numbers =
                values == null
                        ? longs(labels)
                        : DoubleStream.of(values).mapToLong(value -> (long) value).toArray();
        for (int i = 0; i < numbers.length; i++) {
            boolean whole = values == null || values[i] == numbers[i];
            boolean known = numbers[i] >= 0 && numbers[i] < classes || numbers[i] == ignoreIndex;
            if (!whole || !known) {
                String why =
                        ("but the labels of %s classes are the whole numbers 0 to %s (or %s for a"
                                        + " row that does not count): correct the label, or give"
                                        + " the last layer more classes")
                                .formatted(classes, classes - 1, ignoreIndex);
                Object label = values == null || whole ? (Object) numbers[i] : values[i];
                throw refused(labels, i, label, why);
            }
            if (values != null && numbers[i] >= FIRST_GAP.getOrDefault(type, Long.MAX_VALUE)) {
                String why =
                        ("and %s does not hold every whole number from %s on: give the labels as"
                                        + " INT64")
                                .formatted(type, FIRST_GAP.get(type));
                throw refused(labels, i, numbers[i], why);
            }
        }
        return numbers;
    }

    private static double[] doubles(NDArray labels) {
        try (NDArray copy = labels.toType(DataType.FLOAT64, true)) {
            return HostReads.doubles(copy);
        }
    }

    private static long[] longs(NDArray labels) {
        if (labels.getDataType() == DataType.INT64) {
            return HostReads.longs(labels);
        }
        try (NDArray copy = labels.toType(DataType.INT64, true)) {
            return HostReads.longs(copy);
        }
    }

    private static IllegalArgumentException refused(
            NDArray labels, int place, Object label, String why) {
        Shape shape = labels.getShape();
        String where =
                shape.dimension() == 1
                        ? "row " + place
                        : "the position " + TensorView.position(place, shape);
        return new IllegalArgumentException(
                "The label of %s is %s, %s".formatted(where, label, why));
    }
}

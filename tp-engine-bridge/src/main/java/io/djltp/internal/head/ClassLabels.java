package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * The labels of a batch as numbers of classes, read once and checked: which rows count, and which
 * rows have classes of this rank as their labels. DJL's own losses cut 1.5 down to the class 1
 * without a word; here it is an error.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ClassLabels {

    /** What fills up the labels of a row that has fewer than others. */
    public static final long FILL = -1;

    /** From which number on a type does not hold every whole number. */
    private static final Map<DataType, Long> FIRST_GAP =
            Map.of(
                    DataType.FLOAT64, 1L << 53,
                    DataType.FLOAT32, 1L << 24,
                    DataType.FLOAT16, 1L << 11,
                    DataType.BFLOAT16, 1L << 8);

    final ClassShard shard; // the classes of the rank
    final LossOptions options; // of the loss
    final long[] all; // of one row after the other, over all ranks
    final int width; // the places of a row in them
    final boolean[] counts; // whether a row has a label, by row
    final double[] weights; // the mean weight of the labels of a row, 0 without any, by row
    final long[] labels; // of this rank, in the order of their columns
    final long[] places; // where they are in all
    final long[] rows; // their rows
    final long[] columns; // their columns, in ascending order
    final double[] parts; // what each of all has in the weight of its row, by place
    final long @Nullable [] sample; // the columns that the step is over, null if it is over all
    final long classes; // how many the step is over, over all ranks

    private ClassLabels(long[] all, int width, ClassShard shard, LossOptions options) {
        this.all = all;
        this.width = width;
        this.shard = shard;
        this.options = options;
        int count = all.length / width;
        counts = new boolean[count];
        weights = new double[count];
        int[] numbers = new int[count]; // of labels, by row
        long[] found = new long[all.length]; // labels here: column, then place
        int here = 0;
        for (int i = 0; i < all.length; i++) {
            if (all[i] != options.ignoreIndex()) {
                counts[i / width] = true;
                numbers[i / width]++;
                weights[i / width] += options.weightOf(all[i]);
                long column = shard.columnOf(all[i]);
                if (column >= 0) {
                    found[here++] = column * all.length + i;
                }
            }
        }
        long[] sorted = LongStream.of(found).limit(here).sorted().toArray();
        places = LongStream.of(sorted).map(each -> each % all.length).toArray();
        labels = LongStream.of(places).map(place -> all[(int) place]).toArray();
        rows = LongStream.of(places).map(place -> place / width).toArray();
        columns = LongStream.of(sorted).map(each -> each / all.length).toArray();
        parts = new double[all.length];
        for (int i = 0; i < all.length; i++) {
            if (all[i] != options.ignoreIndex()) {
                double sum = weights[i / width];
                parts[i] = sum == 0 ? 1.0 / numbers[i / width] : options.weightOf(all[i]) / sum;
            }
        }
        Arrays.setAll(weights, row -> weights[row] / Math.max(1, numbers[row]));
        sample = null;
        classes = shard.total();
    }

    private ClassLabels(ClassLabels whole, long[] sample, long classes) {
        all = whole.all;
        width = whole.width;
        shard = whole.shard;
        options = whole.options;
        counts = whole.counts;
        weights = whole.weights;
        labels = whole.labels;
        places = whole.places;
        rows = whole.rows;
        parts = whole.parts;
        columns = LongStream.of(whole.columns).map(c -> Arrays.binarySearch(sample, c)).toArray();
        this.sample = sample;
        this.classes = classes;
    }

    /**
     * Finds the labels of a rank.
     *
     * @param rows the features or logits of the rows, [x1, ..., xn, columns]
     * @param labels the labels over all ranks, [x1, ..., xn], or [x1, ..., xn, width] filled up
     *     with {@value #FILL}, of any numeric type
     * @param shard the classes of the rank
     * @param options the options of the loss
     * @throws IllegalArgumentException if a label is not a class, there are none for a row, or a
     *     row has one twice
     */
    static ClassLabels of(NDArray rows, NDArray labels, ClassShard shard, LossOptions options) {
        Given given = Given.of(rows, labels, shard, options);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return given.checked(HostReads.doubles(given.bits()));
        }
    }

    /**
     * Labels that the host has not read yet.
     *
     * @param labels the labels
     * @param many whether a row may have several
     * @param shard the classes of the rank
     * @param options the options of the loss
     */
    record Given(NDArray labels, boolean many, ClassShard shard, LossOptions options) {

        /** The same as {@link ClassLabels#of}, but for the numbers. */
        static Given of(NDArray rows, NDArray labels, ClassShard shard, LossOptions options) {
            Shape each = leading(rows);
            boolean many = areMany(labels.getShape(), each);
            if (many ? labels.size() == 0 && each.size() > 0 : labels.size() != each.size()) {
                throw Errors.argument(
                        "The labels %s do not fit the logits %s over all ranks: one label for each"
                                + " row is needed, or several as %s",
                        labels.getShape(), each.add(shard.total()), each + " and an axis more");
            }
            return new Given(labels, many, shard, options);
        }

        /** Returns the columns of the labels, -1 for those of other ranks, int64 [places]. */
        Tensor columns() {
            Tensor all = TensorView.of(labels).tensor().detach();
            return shard.columnsOf(all.reshape(-1).to(ScalarType.Long));
        }

        /** Returns what {@link #checked} needs to have read, [places]. */
        Tensor bits() {
            return ClassLabels.bits(labels);
        }

        /** Checks the labels, and finds those of the rank. What is read behind them is left out. */
        ClassLabels checked(double... bits) {
            long[] all =
                    ClassLabels.checked(labels, bits, shard.total(), options.ignoreIndex(), many);
            return new ClassLabels(all, width(), shard, options);
        }

        int width() {
            Shape shape = labels.getShape();
            return many ? (int) Math.max(1, shape.get(shape.dimension() - 1)) : 1;
        }
    }

    /** Returns whether labels have an axis more than the rows: several labels of a row. */
    private static boolean areMany(Shape labels, Shape rows) {
        int axes = rows.dimension();
        return labels.dimension() == axes + 1 && labels.slice(0, axes).equals(rows);
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

    /** Returns numbers of this rank's labels at their places in {@link #all}, and 0 elsewhere. */
    Tensor atPlaces(Tensor ofLabels, Tensor indexOfPlaces) {
        return ofLabels.new_zeros(new long[] {all.length}).index_copy_(0, indexOfPlaces, ofLabels);
    }

    /** Returns the labels that count, over all ranks. */
    long[] counted() {
        return LongStream.of(all).filter(label -> label != options.ignoreIndex()).toArray();
    }

    /** Returns the columns of the labels of this rank, each once. */
    long[] columnsOfBatch() {
        return LongStream.of(columns).distinct().toArray();
    }

    /**
     * Returns how many classes a drawn one that is no label stands for: with P classes among the
     * labels of the batch, all others over the drawn others.
     */
    double weightOfOthers() {
        long ofBatch = LongStream.of(counted()).distinct().count();
        return classes == ofBatch ? 1 : (double) (shard.total() - ofBatch) / (classes - ofBatch);
    }

    /** Returns whether a row may have several labels. */
    boolean areMany() {
        return width > 1;
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
            if (first == end) {
                all = null;
                return;
            }
            long[] inClasses = places(first, end, start, plan.chunk(), 1, 0);
            long[] inLogits = places(first, end, start, plan.chunk(), rows, 1);
            Tensor both =
                    memory.index(
                            LongStream.concat(LongStream.of(inClasses), LongStream.of(inLogits))
                                    .toArray());
            long length = end - first;
            all =
                    new OfChunk(
                            first, end, both.narrow(0, 0, length), both.narrow(0, length, length));
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
     * Reads labels, one of each row.
     *
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @param classes the number of classes of all ranks
     * @param ignoreIndex the label of rows that do not count
     * @return the labels, [x1 * ... * xn]
     * @throws IllegalArgumentException if one of the others is no class, no whole number, or so
     *     large that its floating-point type does not tell it from the next class
     */
    public static long[] read(NDArray labels, long classes, long ignoreIndex) {
        return read(labels, classes, ignoreIndex, false);
    }

    /**
     * Checks labels.
     *
     * @param labels the labels, [x1, ..., xn] or [x1, ..., xn, width]
     * @param predictions the features or logits of the rows, [x1, ..., xn, columns]
     * @param classes the number of classes of all ranks
     * @param ignoreIndex the label that does not count
     * @throws IllegalArgumentException as {@link #read}, or if a row has a label twice
     */
    public static void check(NDArray labels, Shape predictions, long classes, long ignoreIndex) {
        Shape each = predictions.slice(0, predictions.dimension() - 1);
        read(labels, classes, ignoreIndex, areMany(labels.getShape(), each));
    }

    /**
     * Returns the sum of the weights of the rows of a batch.
     *
     * @param labels the labels, [x1, ..., xn] or [x1, ..., xn, width], classes or to be ignored
     * @param predictions the shape of the features or logits of the rows, [x1, ..., xn, columns]
     * @param options the weights of the classes, and the label that does not count
     * @return the sum
     */
    public static double weight(NDArray labels, Shape predictions, LossOptions options) {
        Shape each = predictions.slice(0, predictions.dimension() - 1);
        boolean many = areMany(labels.getShape(), each);
        long[] all = read(labels, Long.MAX_VALUE, options.ignoreIndex(), many);
        ClassShard none = new ClassShard(Cut.ofLengths(0), null);
        int width = new Given(labels, many, none, options).width();
        return DoubleStream.of(new ClassLabels(all, width, none, options).weights).sum();
    }

    private static long[] read(NDArray labels, long classes, long ignoreIndex, boolean many) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return checked(labels, HostReads.doubles(bits(labels)), classes, ignoreIndex, many);
        }
    }

    /** Returns labels as they are read with numbers in float64: those of integers are bits. */
    private static Tensor bits(NDArray labels) {
        Tensor all = TensorView.of(labels).tensor().detach().reshape(-1);
        return all.is_floating_point()
                ? all.to(ScalarType.Double)
                : all.to(ScalarType.Long).contiguous().view(ScalarType.Double);
    }

    /** Checks labels: where they are several of a row, what fills it up becomes the ignored one. */
    private static long[] checked(
            NDArray labels, double[] bits, long classes, long ignoreIndex, boolean many) {
        DataType type = labels.getDataType();
        double[] values = type.isFloating() ? bits : null;
        long[] numbers = new long[(int) labels.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = values == null ? Double.doubleToRawLongBits(bits[i]) : (long) bits[i];
            boolean whole = values == null || values[i] == numbers[i];
            boolean known = numbers[i] >= 0 && numbers[i] < classes || numbers[i] == ignoreIndex;
            if (!whole || !known && !(many && numbers[i] == FILL)) {
                String why =
                        ("but the labels of %s classes are the whole numbers 0 to %s (or %s for a"
                                        + " row that does not count): correct the label, or give"
                                        + " the last layer more classes")
                                .formatted(classes, classes - 1, many ? FILL : ignoreIndex);
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
        if (many) {
            int width = (int) labels.getShape().get(labels.getShape().dimension() - 1);
            checkDistinct(labels, numbers, width, ignoreIndex);
        }
        return numbers;
    }

    private static void checkDistinct(NDArray labels, long[] numbers, int width, long ignoreIndex) {
        Set<Long> ofRow = new HashSet<>();
        for (int i = 0; i < numbers.length; i++) {
            if (i % width == 0) {
                ofRow.clear();
            }
            numbers[i] = numbers[i] == FILL ? ignoreIndex : numbers[i];
            if (numbers[i] != ignoreIndex && !ofRow.add(numbers[i])) {
                throw refused(labels, i, numbers[i], "which its row has twice: leave one out");
            }
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

package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.torch.FlushDenormals;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.List;

/**
 * Which rows of a table are in which bag: the sums of the rows of each bag, and the update of the
 * rows that are in any, and of no others, by the gradient of the sums.
 *
 * @param offsets where a bag begins, [bags]
 * @param rows the rows of one bag after the other
 * @param weights their weights, or {@code null}: each counts once
 */
@SuppressWarnings("try") // a scope is used by being open
public record EmbeddingBags(long[] offsets, long[] rows, float @Nullable [] weights) {

    private static final long SUM = 0; // libtorch's number of the way to put a bag together
    private static final long CACHE_BYTES = 1 << 18;
    private static final int DIGIT = 10; // bits
    private static final long MASK = (1 << DIGIT) - 1;

    /**
     * Reads bags of a fixed width, which zeros fill up.
     *
     * @param places the rows of one bag after the other; behind each the bits of its weight, if
     *     they have weights
     * @param width the numbers of a bag
     * @param weighted whether the rows have weights
     * @return the bags
     */
    public static EmbeddingBags padded(int[] places, int width, boolean weighted) {
        int step = weighted ? 2 : 1;
        long[] offsets = new long[places.length / width];
        long[] rows = new long[countRows(places, step)];
        float[] weights = weighted ? new float[rows.length] : null;
        int count = 0;
        for (int i = 0; i < places.length; i += step) {
            if (i % width == 0) {
                offsets[i / width] = count;
            }
            if (places[i] != 0) {
                if (weights != null) {
                    weights[count] = Float.intBitsToFloat(places[i + 1]);
                }
                rows[count++] = places[i];
            }
        }
        return new EmbeddingBags(offsets, rows, weights);
    }

    /**
     * Reads bags that {@link #toInts} wrote.
     *
     * @param ints what it wrote, among other numbers
     * @param from where it begins
     * @param count the number of the bags
     * @param weighted whether it has weights
     * @return the bags
     */
    public static EmbeddingBags of(int[] ints, int from, int count, boolean weighted) {
        long[] offsets = new long[count];
        int size = 0;
        for (int bag = 0; bag < count; bag++) {
            offsets[bag] = size;
            size += ints[from + bag];
        }
        int first = from + count;
        int behind = first + size;
        long[] rows = Arrays.stream(ints, first, behind).asLongStream().toArray();
        float[] weights = weighted ? new float[size] : null;
        for (int i = 0; weights != null && i < size; i++) {
            weights[i] = Float.intBitsToFloat(ints[behind + i]);
        }
        return new EmbeddingBags(offsets, rows, weights);
    }

    /**
     * Returns the lengths of the bags, then the rows of one after the other, then the bits of their
     * weights.
     *
     * @param withWeights whether weights are wanted, which are 1 if there are none
     * @return the numbers
     */
    public int[] toInts(boolean withWeights) {
        int first = offsets.length;
        int behind = first + rows.length;
        int[] ints = new int[behind + (withWeights ? rows.length : 0)];
        for (int bag = 0; bag < first; bag++) {
            ints[bag] = (int) (end(bag) - offsets[bag]);
        }
        for (int i = 0; i < rows.length; i++) {
            ints[first + i] = (int) rows[i];
            if (withWeights) {
                ints[behind + i] = Float.floatToRawIntBits(weights == null ? 1 : weights[i]);
            }
        }
        return ints;
    }

    /**
     * Puts bags one after the other. Rows without weights get weights of 1 if others have some.
     *
     * @param all the bags
     * @return all of them
     */
    public static EmbeddingBags join(List<EmbeddingBags> all) {
        long[] rows = all.stream().flatMapToLong(each -> Arrays.stream(each.rows)).toArray();
        long[] offsets = new long[all.stream().mapToInt(each -> each.offsets.length).sum()];
        boolean weighted = all.stream().anyMatch(each -> each.weights != null);
        float[] weights = weighted ? new float[rows.length] : null;
        int bag = 0;
        int at = 0;
        for (EmbeddingBags each : all) {
            for (long offset : each.offsets) {
                offsets[bag++] = at + offset;
            }
            for (int i = 0; weights != null && i < each.rows.length; i++) {
                weights[at + i] = each.weights == null ? 1 : each.weights[i];
            }
            at += each.rows.length;
        }
        return new EmbeddingBags(offsets, rows, weights);
    }

    private long end(int bag) {
        return bag + 1 < offsets.length ? offsets[bag + 1] : rows.length;
    }

    private static int countRows(int[] places, int step) {
        int count = 0;
        for (int i = 0; i < places.length; i += step) {
            count += places[i] == 0 ? 0 : 1;
        }
        return count;
    }

    /**
     * Reads the rows of bags, and their weights, from the device. A row that no int can hold
     * becomes the nearest that one can, which is in no table either.
     *
     * @param ids the rows, int32 or int64 [bags, places]
     * @param given their weights, float32 [bags, places], or {@code null}
     * @return the rows, behind each the bits of its weight, if they have weights
     */
    public static int[] places(NDArray ids, @Nullable NDArray given) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor places = saturated(TensorView.of(ids).tensor()).to(ScalarType.Int);
            if (given != null) {
                Tensor bits = TensorView.of(given).tensor().detach().view(ScalarType.Int);
                places = torch.stack(new TensorVector(places, bits), -1);
            }
            try (NDArray all = TensorView.toArray(places, ids.getManager())) {
                return HostReads.ints(all);
            }
        }
    }

    /**
     * Returns whether all rows are in a table.
     *
     * @param places the rows, behind each the bits of its weight, if they have weights
     * @param weighted whether they have
     * @param tableRows the rows of the table
     * @return whether they are
     */
    public static boolean areIn(int[] places, boolean weighted, long tableRows) {
        boolean all = true;
        for (int i = 0; i < places.length; i += weighted ? 2 : 1) {
            all &= places[i] >= 0 && places[i] < tableRows;
        }
        return all;
    }

    /** Of a row of 64 bits, the lower 32 would be another row. */
    private static Tensor saturated(Tensor ids) {
        return ids.scalar_type().intern() == ScalarType.Long
                ? ids.clamp(bound(Integer.MIN_VALUE), bound(Integer.MAX_VALUE))
                : ids;
    }

    private static ScalarOptional bound(long value) {
        return new ScalarOptional(new Scalar(value));
    }

    /**
     * Returns the sum of the rows of each bag.
     *
     * @param table the table, [rows, features]
     * @param like an array whose manager the result gets
     * @param recorded whether autograd may record it
     * @return the sums, [bags, features]
     */
    public NDArray sum(NDArray table, NDArray like, boolean recorded) {
        try (TorchScope scope = recorded ? TorchScope.open() : TorchScope.withoutGraph()) {
            Tensor sums = sum(TensorView.of(table).tensor(), rows, offsets, weights);
            return TensorView.toArray(sums, like.getManager());
        }
    }

    /**
     * Updates the rows that are in any bag.
     *
     * @param table the table, [rows, features], changed in place
     * @param gradient the gradient of the sums, [bags, features]
     * @param update the update, begun; its state is that of the table
     */
    public void update(NDArray table, NDArray gradient, WeightUpdate update) {
        if (rows.length == 0) {
            return;
        }
        try (TorchScope scope = TorchScope.withoutGraph();
                FlushDenormals zeros = new FlushDenormals()) {
            Tensor values = TensorView.of(table).tensor().detach();
            Tensor sums = TensorView.of(gradient).tensor().detach().to(ScalarType.Float);
            update.prepare(values.size(0), values.size(1), sums.options());
            Transposed byRow = transposed();
            int count = byRow.rows.length;
            // a few rows after the other, so that what is made of them stays in the cache
            long inCache = Math.max(1, CACHE_BYTES / (Float.BYTES * values.size(1)));
            int most = values.is_cuda() ? count : (int) Math.min(count, inCache);
            for (int first = 0; first < count; first += most) {
                try (TorchScope some = TorchScope.withoutGraph()) {
                    Transposed part = byRow.part(first, Math.min(count, first + most));
                    Tensor ofRows = sum(sums, part.bags, part.offsets, part.weights);
                    SparseRows sparse = new SparseRows(values, index(part.rows, values), ofRows);
                    update.apply(sparse);
                    sparse.setRows(values, sparse.weight.to(values.scalar_type()));
                }
            }
        }
    }

    /**
     * The same the other way round: the bags that each row is in, as often as it is.
     *
     * @param rows the rows that are in any bag, ascending
     * @param offsets where the bags of a row begin
     * @param bags the bags of one row after the other
     * @param weights the weights of the row in the bags, or {@code null}
     */
    record Transposed(long[] rows, long[] offsets, long[] bags, float @Nullable [] weights) {

        /** Returns some of the rows. */
        Transposed part(int from, int to) {
            int begin = (int) offsets[from];
            int end = to < rows.length ? (int) offsets[to] : bags.length;
            long[] begins = Arrays.copyOfRange(offsets, from, to);
            Arrays.setAll(begins, i -> begins[i] - begin);
            return new Transposed(
                    Arrays.copyOfRange(rows, from, to),
                    begins,
                    Arrays.copyOfRange(bags, begin, end),
                    weights == null ? null : Arrays.copyOfRange(weights, begin, end));
        }
    }

    /** Returns the bags by row. */
    Transposed transposed() {
        long[] bagOf = new long[rows.length];
        for (int bag = 0; bag < offsets.length; bag++) {
            Arrays.fill(bagOf, (int) offsets[bag], (int) end(bag), bag);
        }
        long[] found = new long[rows.length];
        long[] begins = new long[rows.length];
        long[] bags = new long[rows.length];
        float[] unsorted = weights;
        float[] sorted = unsorted == null ? null : new float[rows.length];
        int count = 0;
        int at = 0;
        for (int place : placesByRow()) {
            if (count == 0 || rows[place] != found[count - 1]) {
                begins[count] = at;
                found[count++] = rows[place];
            }
            bags[at] = bagOf[place];
            if (unsorted != null && sorted != null) {
                sorted[at] = unsorted[place];
            }
            at++;
        }
        return new Transposed(
                Arrays.copyOf(found, count), Arrays.copyOf(begins, count), bags, sorted);
    }

    /** Sorts the places of the rows by their rows, a digit after the other (radix sort). */
    private int[] placesByRow() {
        long largest = 0;
        for (long row : rows) {
            largest = Math.max(largest, row);
        }
        int[] places = new int[rows.length];
        Arrays.setAll(places, i -> i);
        int[] next = new int[rows.length];
        for (int shift = 0; largest >>> shift != 0; shift += DIGIT) {
            int[] ends = new int[(1 << DIGIT) + 1]; // of the digits before
            for (long row : rows) {
                ends[(int) (row >>> shift & MASK) + 1]++;
            }
            for (int i = 1; i < ends.length; i++) {
                ends[i] += ends[i - 1];
            }
            for (int place : places) {
                next[ends[(int) (rows[place] >>> shift & MASK)]++] = place;
            }
            int[] sorted = next;
            next = places;
            places = sorted;
        }
        return places;
    }

    private static Tensor sum(
            Tensor rows, long[] index, long[] offsets, float @Nullable [] weights) {
        Tensor bags = index(offsets, rows);
        TensorOptional each =
                weights == null
                        ? new TensorOptional()
                        : new TensorOptional(
                                HostReads.toDevice(rows.device(), weights).to(rows.scalar_type()));
        return torch.embedding_bag(rows, index(index, rows), bags, false, SUM, false, each, false)
                .get0();
    }

    private static Tensor index(long[] values, Tensor like) {
        return HostReads.toDevice(like.device(), values);
    }

    /** Some rows of a table, copied out of it, with their gradient in float32. */
    private static final class SparseRows extends RowGradient {

        private final Tensor rows; // int64 [length]

        SparseRows(Tensor table, Tensor rows, Tensor gradient) {
            super(table.index_select(0, rows).to(ScalarType.Float), gradient);
            this.rows = rows;
        }

        /** {@inheritDoc} */
        @Override
        public Tensor rowsOf(Tensor state, int number) {
            return state.index_select(0, rows);
        }

        /** {@inheritDoc} */
        @Override
        public void setRows(Tensor state, Tensor changed) {
            state.index_copy_(0, rows, changed);
        }
    }
}

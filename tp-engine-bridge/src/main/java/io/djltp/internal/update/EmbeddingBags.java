package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.torch.FlushDenormals;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Arrays;
import java.util.stream.IntStream;

/**
 * Which rows of a table are in which bag: the sums of the rows of each bag, and the update of the
 * rows that are in any, and of no others, by the gradient of the sums.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class EmbeddingBags {

    private static final long SUM = 0; // libtorch's number of the way to put a bag together

    private final long[] offsets; // where a bag begins, [bags]
    private final long[] rows; // of one bag after the other

    /**
     * Reads bags of a fixed width, which zeros fill up.
     *
     * @param ids the rows of one bag after the other
     * @param width the places of a bag
     * @param tableRows the rows of the table
     * @throws IllegalArgumentException if a row is not in the table
     */
    public EmbeddingBags(int[] ids, int width, long tableRows) {
        offsets = new long[width == 0 ? 0 : ids.length / width];
        long[] found = new long[ids.length];
        int count = 0;
        for (int i = 0; i < ids.length; i++) {
            if (i % width == 0) {
                offsets[i / width] = count;
            }
            if (ids[i] < 0 || ids[i] >= tableRows) {
                throw new IllegalArgumentException(
                        ("A row of an embedding bag is %s, but the table has the rows 1 to"
                                        + " %s (or 0 for none)")
                                .formatted(ids[i], tableRows - 1));
            }
            if (ids[i] != 0) {
                found[count++] = ids[i];
            }
        }
        rows = Arrays.copyOf(found, count);
    }

    /**
     * Returns the sum of the rows of each bag, unseen by autograd.
     *
     * @param table the table, [rows, features]
     * @param like an array whose manager the result gets
     * @return the sums, [bags, features]
     */
    public NDArray sum(NDArray table, NDArray like) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor values = TensorView.of(table).tensor().detach();
            return TensorView.toArray(sum(values, rows, offsets), like.getManager());
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
            Transposed byRow = transposed();
            Tensor ofRows = sum(sums, byRow.bags, byRow.offsets);
            update.prepare(values.size(0), values.size(1), ofRows.options());
            SparseRows sparse = new SparseRows(values, index(byRow.rows, values), ofRows);
            update.apply(sparse);
            sparse.setRows(values, sparse.weight.to(values.scalar_type()));
        }
    }

    /**
     * The same the other way round: the bags that each row is in, as often as it is.
     *
     * @param rows the rows that are in any bag, ascending
     * @param offsets where the bags of a row begin
     * @param bags the bags of one row after the other
     */
    record Transposed(long[] rows, long[] offsets, long[] bags) {}

    /** Returns the bags by row. */
    Transposed transposed() {
        long[] pairs = new long[rows.length]; // of a row, and below it a bag: both are from 32 bits
        for (int bag = 0; bag < offsets.length; bag++) {
            long end = bag + 1 < offsets.length ? offsets[bag + 1] : rows.length;
            for (int i = (int) offsets[bag]; i < end; i++) {
                pairs[i] = rows[i] << Integer.SIZE | bag;
            }
        }
        Arrays.sort(pairs);
        long[] all = Arrays.stream(pairs).map(pair -> pair >>> Integer.SIZE).toArray();
        long[] begins =
                IntStream.range(0, all.length)
                        .filter(i -> i == 0 || all[i] != all[i - 1])
                        .asLongStream()
                        .toArray();
        return new Transposed(
                Arrays.stream(all).distinct().toArray(),
                begins,
                Arrays.stream(pairs).map(pair -> (int) pair).toArray());
    }

    private static Tensor sum(Tensor rows, long[] index, long[] offsets) {
        Tensor bags = index(offsets, rows);
        TensorOptional none = new TensorOptional();
        return torch.embedding_bag(rows, index(index, rows), bags, false, SUM, false, none, false)
                .get0();
    }

    private static Tensor index(long[] values, Tensor like) {
        return torch.tensor(values).to(like.device(), ScalarType.Long);
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

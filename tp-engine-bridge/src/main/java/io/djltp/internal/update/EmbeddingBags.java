package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.torch.FlushDenormals;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** Sums of rows of a table, and the update of the rows that were used, and of no others. */
@SuppressWarnings("try") // a scope is used by being open
public final class EmbeddingBags {

    private static final long SUM = 0; // libtorch's number of the way to put a bag together

    private EmbeddingBags() {}

    /**
     * Returns the sum of the rows of each bag, unseen by autograd.
     *
     * @param table the table, [rows, features]
     * @param index the bags
     * @param like an array whose manager the result gets
     * @return the sums, [bags, features]
     */
    public static NDArray sum(NDArray table, BagIndex index, NDArray like) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor values = TensorView.of(table).tensor().detach();
            Tensor sums = sum(values, index.rows, index.offsets);
            return TensorView.toArray(sums, like.getManager());
        }
    }

    /**
     * Updates the rows that are in any bag.
     *
     * @param table the table, [rows, features], changed in place
     * @param index the bags
     * @param gradient the gradient of the sums, [bags, features]
     * @param update the update, begun; its state is that of the table
     */
    public static void update(
            NDArray table, BagIndex index, NDArray gradient, WeightUpdate update) {
        if (index.rows.length == 0) {
            return;
        }
        try (TorchScope scope = TorchScope.withoutGraph();
                FlushDenormals zeros = new FlushDenormals()) {
            Tensor values = TensorView.of(table).tensor().detach();
            Tensor sums = TensorView.of(gradient).tensor().detach().to(ScalarType.Float);
            BagIndex.Transposed byRow = index.transposed();
            Tensor ofRows = sum(sums, byRow.bags(), byRow.offsets());
            update.prepare(values.size(0), values.size(1), ofRows.options());
            Tensor rows = index(byRow.rows(), values);
            SparseRows sparse = new SparseRows(values, rows, ofRows);
            update.apply(sparse);
            sparse.writeBack();
        }
    }

    private static Tensor sum(Tensor rows, long[] index, long[] offsets) {
        return torch.embedding_bag(
                        rows,
                        index(index, rows),
                        index(offsets, rows),
                        false,
                        SUM,
                        false,
                        new TensorOptional(),
                        false)
                .get0();
    }

    private static Tensor index(long[] values, Tensor like) {
        return torch.tensor(values).to(like.device(), ScalarType.Long);
    }

    /** Some rows of a table, copied out of it, with their gradient in float32. */
    private static final class SparseRows extends RowGradient {

        private final Tensor table;
        private final Tensor rows; // int64 [length]

        SparseRows(Tensor table, Tensor rows, Tensor gradient) {
            super(table.index_select(0, rows).to(ScalarType.Float), gradient);
            this.table = table;
            this.rows = rows;
        }

        /** Writes the updated rows into the table. */
        void writeBack() {
            table.index_copy_(0, rows, weight.to(table.scalar_type()));
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

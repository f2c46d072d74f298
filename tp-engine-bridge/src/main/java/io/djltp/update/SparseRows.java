package io.djltp.update;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** Some rows of a table, copied out of it, with their gradient in float32. */
final class SparseRows extends RowsWithGradient {

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

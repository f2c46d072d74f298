package io.djltp.update;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** Some rows of a table, copied out of it, with their gradient. */
final class SparseRows extends GradientRows {

    private final Tensor table;
    private final Tensor rows; // int64 [length]
    private final Tensor gradient; // [length, features], float32

    SparseRows(Tensor table, Tensor rows, Tensor gradient) {
        super(table.index_select(0, rows).to(ScalarType.Float));
        this.table = table;
        this.rows = rows;
        this.gradient = gradient;
    }

    /** Writes the updated rows into the table. */
    void writeBack() {
        table.index_copy_(0, rows, weight.to(table.scalar_type()));
    }

    /** {@inheritDoc} */
    @Override
    public boolean isMade() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public Tensor gradient(float factor) {
        return factor == 1 ? gradient : gradient.mul_(new Scalar(factor));
    }

    /** {@inheritDoc} */
    @Override
    public Tensor spare() {
        return torch.empty_like(gradient);
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

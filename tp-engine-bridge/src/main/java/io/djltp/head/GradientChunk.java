package io.djltp.head;

import io.djltp.update.GradientRows;
import io.djltp.update.UnitRows;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;

/**
 * The gradient of the weights of some classes as the two factors that it is a product of, and as
 * the few rows in which a label lies. It is only computed into what it is added to.
 */
final class GradientChunk extends GradientRows {

    private final long start; // the first column of the chunk
    private final long length;

    private final ChunkBuffers buffers;
    private final Tensor columns; // of the chunk, int64 [length], or null if they are a range
    private final Tensor directions; // the unit rows that were used, or null if it was the weight
    private final ChunkArithmetic.WeightProduct product;
    private final Tensor labels; // [labels], int64, from the start of the chunk; null if none
    private final Tensor labelRows; // [labels, features]
    private final float labelScale;
    private final AddedGradient.Chunks added; // or null

    GradientChunk(
            ChunkBuffers buffers,
            ChunkedLinear linear,
            int index,
            Tensor used,
            ChunkArithmetic.WeightProduct product,
            Tensor labels,
            Tensor labelRows,
            float labelScale,
            AddedGradient.Chunks added) {
        super(linear.updated(index, used));
        start = buffers.plan().start(index);
        length = buffers.plan().length(index);
        this.buffers = buffers;
        columns = linear.columns(index);
        directions = linear.isUnit() ? used : null;
        this.product = product;
        this.labels = labels;
        this.labelRows = labelRows;
        this.labelScale = labelScale;
        this.added = added;
    }

    /** {@inheritDoc} */
    @Override
    public void addTo(Tensor target, float keep, float factor) {
        if (directions == null) {
            addProduct(target, keep, factor);
        } else {
            Tensor gradient = gradient(factor); // before the target, which may be the weight
            target.mul_(new Scalar(keep)).add_(gradient);
        }
    }

    /** {@inheritDoc} */
    @Override
    public Tensor gradient(float factor) {
        Tensor gradient = buffers.work(ChunkBuffers.Work.GRADIENT, length);
        addProduct(gradient, 0, factor);
        if (directions != null) {
            Tensor inverse = UnitRows.inverseLengths(weight);
            UnitRows.project(gradient, directions, inverse, spare());
            if (added != null) {
                added.addTo(gradient, start, length, factor);
            }
        }
        return gradient;
    }

    private void addProduct(Tensor target, float keep, float factor) {
        product.addTo(target, keep, factor);
        if (labels != null) {
            target.index_add_(0, labels, labelRows, new Scalar(factor * labelScale));
        }
        if (added != null && directions == null) {
            added.addTo(target, start, length, factor);
        }
    }

    /** {@inheritDoc} */
    @Override
    public Tensor spare() {
        return buffers.work(ChunkBuffers.Work.SPARE, length);
    }

    /** {@inheritDoc} */
    @Override
    public Tensor rowsOf(Tensor state, int number) {
        if (columns == null) {
            return state.narrow(0, start, length);
        }
        if (state.dim() == 1) {
            return state.index_select(0, columns);
        }
        ChunkBuffers.Work which =
                number == 0 ? ChunkBuffers.Work.FIRST_STATE : ChunkBuffers.Work.SECOND_STATE;
        Tensor place = buffers.work(which, length);
        return torch.index_select_out(place, state, 0, columns);
    }

    /** {@inheritDoc} */
    @Override
    public void setRows(Tensor state, Tensor rows) {
        if (columns != null) {
            state.index_copy_(0, columns, rows);
        }
    }
}

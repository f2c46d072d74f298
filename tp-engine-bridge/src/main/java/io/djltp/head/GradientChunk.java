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

    private final long start; // the first class of the chunk, of all classes of the rank
    private final long length;
    private static final int FIRST_STATE = 3; // the work memory of copies of states

    private final ChunkBuffers buffers;
    private final Tensor classes; // of the chunk, int64 [length], or null if they are a range
    private final Tensor directions; // the unit rows that were used, or null if it was the weight
    private final Tensor probabilities; // [length, rows]
    private final Tensor features; // [rows, features]
    private final Tensor labels; // [labels], int64, from the start of the chunk; null if none
    private final Tensor labelRows; // [labels, features]
    private final float labelScale;

    GradientChunk(
            ChunkBuffers buffers,
            ChunkedLinear linear,
            int index,
            Tensor used,
            Tensor probabilities,
            Tensor features,
            Tensor labels,
            Tensor labelRows,
            float labelScale) {
        super(linear.updated(index, used));
        start = buffers.plan().start(index);
        length = buffers.plan().length(index);
        this.buffers = buffers;
        classes = linear.classes(index);
        directions = linear.isUnit() ? used : null;
        this.probabilities = probabilities;
        this.features = features;
        this.labels = labels;
        this.labelRows = labelRows;
        this.labelScale = labelScale;
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
        Tensor gradient = buffers.work(0, length);
        addProduct(gradient, 0, factor);
        if (directions != null) {
            Tensor inverse = UnitRows.inverseLengths(weight);
            UnitRows.project(gradient, directions, inverse, spare());
        }
        return gradient;
    }

    private void addProduct(Tensor target, float keep, float factor) {
        target.addmm_(probabilities, features, new Scalar(keep), new Scalar(factor));
        if (labels != null) {
            target.index_add_(0, labels, labelRows, new Scalar(factor * labelScale));
        }
    }

    /** {@inheritDoc} */
    @Override
    public Tensor spare() {
        return buffers.work(1, length);
    }

    /** {@inheritDoc} */
    @Override
    public Tensor rowsOf(Tensor state, int number) {
        if (classes == null) {
            return state.narrow(0, start, length);
        }
        if (state.dim() == 1) {
            return state.index_select(0, classes);
        }
        Tensor place = buffers.work(FIRST_STATE + number, length);
        return torch.index_select_out(place, state, 0, classes);
    }

    /** {@inheritDoc} */
    @Override
    public void setRows(Tensor state, Tensor rows) {
        if (classes != null) {
            state.index_copy_(0, classes, rows);
        }
    }
}

package io.djltp.internal.update;

import ai.djl.ndarray.types.DataType;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.function.Consumer;

/**
 * The update of a weight whose gradient is there as a whole, or is zero everywhere. Where a rule is
 * more than one operation, it is done to so many elements at a time that they stay in the cache:
 * each goes through the memory once, and nothing of the size of the weight is made.
 */
@SuppressWarnings("try") // a scope is used by being open
final class DenseUpdate {

    /** Elements of a weight that stay in the cache of one core with their gradient and state. */
    private static final long BLOCK = 1 << 16;

    private static final long BLOCK_OF_GPU = 1 << 22; // to keep it busy

    private final Tensor weight; // [rows, length], or [elements, 1] where rows do not matter
    private final @Nullable Tensor gradient; // as the weight, null if it is zero
    private final WeightUpdate update;
    private final long rows;
    private final long length; // of a row
    private final boolean wide; // whether the weight is of the type that is computed in
    private final boolean atOnce; // whether one operation is all there is to do
    private final ScalarType type; // that is computed in, and of the state
    private final TensorOptions options;

    /**
     * Prepares the update of a weight.
     *
     * @param values the weight, contiguous and not empty
     * @param gradient its gradient, of as many elements, whose elements may be others afterwards,
     *     or {@code null} if it is zero
     * @param update the update, begun
     */
    DenseUpdate(Tensor values, @Nullable Tensor gradient, WeightUpdate update) {
        options = update.prepare(values);
        rows = values.dim() == 0 ? 1 : values.size(0);
        length = values.numel() / rows;
        long width = update.isOfRows() ? length : 1;
        weight = values.view(-1, width);
        this.gradient = gradient == null ? null : gradient.reshape(-1, width);
        this.update = update;
        DataType stored = TensorView.of(weight).getDataType();
        wide = stored == DataType.FLOAT32 || stored == DataType.FLOAT64;
        type = stored == DataType.FLOAT64 ? ScalarType.Double : ScalarType.Float;
        atOnce = gradient != null && update.onlyFused(stored, weight.is_cuda()) != null;
    }

    /** Updates the weight. */
    void run() {
        update.measure(rule -> forBlocks(rule, false));
        forBlocks(update::apply, true);
    }

    private void forBlocks(Consumer<RowGradient> rule, boolean changed) {
        long elements = weight.is_cuda() ? BLOCK_OF_GPU : BLOCK * Autograd.getThreads();
        long step = atOnce ? weight.size(0) : Math.max(1, elements / weight.size(1));
        long start = 0;
        for (long group : update.rowGroups(rows)) {
            long end = start + group * length / weight.size(1);
            forBlocks(start, end, step, rule, changed);
            start = end;
        }
    }

    private void forBlocks(
            long start, long end, long step, Consumer<RowGradient> rule, boolean changed) {
        for (long first = start; first < end; first += step) {
            long count = Math.min(step, end - first);
            try (PointerScope block = new PointerScope()) {
                Tensor own = weight.narrow(0, first, count);
                Tensor used = wide ? own : own.to(type);
                Tensor ofRows =
                        gradient == null
                                ? torch.zeros(used.shape(), options)
                                : gradient.narrow(0, first, count).to(type).contiguous();
                rule.accept(new DenseRows(used, ofRows, first));
                if (changed && !wide) {
                    own.copy_(used);
                }
            }
        }
    }

    /** Consecutive rows of a weight, in place, with their gradient. */
    private static final class DenseRows extends RowGradient {

        private final long first;

        DenseRows(Tensor weight, Tensor gradient, long first) {
            super(weight, gradient);
            this.first = first;
        }

        /** {@inheritDoc} */
        @Override
        public Tensor rowsOf(Tensor state, int number) {
            Tensor all = state.dim() == 1 ? state : state.view(-1, weight.size(1));
            return all.narrow(0, first, weight.size(0));
        }
    }
}

package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;

import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.FlushDenormals;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.NoGradGuard;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.function.Consumer;

/**
 * The update of a weight whose gradient is there as a whole, or is zero everywhere. Where a rule is
 * more than one operation, it is done to so many rows at a time that they stay in the cache: each
 * element goes through the memory once, and nothing of the size of the weight is made.
 */
@SuppressWarnings("try") // a scope is used by being open
final class DenseUpdate {

    /** Elements of a weight that stay in the cache of one core with their gradient and state. */
    private static final long BLOCK = 1 << 16;

    private static final long BLOCK_OF_GPU = 1 << 22; // to keep it busy

    private final Tensor weight; // [rows, length]
    private final @Nullable Tensor gradient; // [rows, length], null if it is zero
    private final WeightUpdate update;
    private final boolean wide; // whether the weight is of the type that is computed in
    private final ScalarType type; // that is computed in, and of the state
    private final TensorOptions options;
    private final long step;

    private DenseUpdate(Tensor weight, @Nullable Tensor gradient, WeightUpdate update) {
        this.weight = weight;
        this.gradient = gradient == null ? null : gradient.reshape(weight.shape());
        this.update = update;
        ScalarType stored = weight.scalar_type().intern();
        wide = stored == ScalarType.Float || stored == ScalarType.Double;
        type = wide ? stored : ScalarType.Float;
        options = weight.options().dtype(new ScalarTypeOptional(type));
        boolean atOnce = wide && gradient != null && update.isOneOperation(weight.is_cuda());
        long elements = weight.is_cuda() ? BLOCK_OF_GPU : BLOCK * Autograd.getThreads();
        step = atOnce ? weight.size(0) : Math.max(1, elements / weight.size(1));
    }

    /**
     * Updates a weight.
     *
     * @param weight the weight, contiguous
     * @param gradient its gradient, of the same shape, whose elements may be others afterwards, or
     *     {@code null} if it is zero
     * @param update the update, begun
     */
    static void run(NDArray weight, @Nullable NDArray gradient, WeightUpdate update) {
        if (weight.size() == 0 || gradient == null && update.ignoresZeroGradient()) {
            return;
        }
        Tensor values = TensorView.of(weight).tensor();
        Tensor gradients = gradient == null ? null : TensorView.of(gradient).tensor();
        long rows = values.dim() == 0 ? 1 : values.size(0);
        long length = values.numel() / rows;
        try (PointerScope scope = new PointerScope();
                NoGradGuard guard = new NoGradGuard();
                FlushDenormals denormals = new FlushDenormals()) {
            new DenseUpdate(values.detach().view(rows, length), gradients, update).run();
        }
    }

    private void run() {
        update.prepare(weight.size(0), weight.size(1), options);
        update.measure(rule -> forBlocks(rule, false));
        forBlocks(update::apply, true);
    }

    private void forBlocks(Consumer<RowGradient> rule, boolean changed) {
        long start = 0;
        for (long rows : update.rowGroups(weight.size(0))) {
            forBlocks(start, start + rows, rule, changed);
            start += rows;
        }
    }

    private void forBlocks(long start, long end, Consumer<RowGradient> rule, boolean changed) {
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
            return state.narrow(0, first, weight.size(0));
        }
    }
}

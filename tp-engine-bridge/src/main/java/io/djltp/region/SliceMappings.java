package io.djltp.region;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.MemoryFormat;

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicReference;

/**
 * The mappings that give a rank its slice of an axis, or put the slices of all ranks together,
 * whatever the cut.
 */
@SuppressWarnings("try") // a scope is used by being open
abstract class SliceMappings implements AutoCloseable {

    /** What went wrong first in a hook. */
    final AtomicReference<Throwable> failure = new AtomicReference<>();

    private final Communicator communicator;
    private final String issuer;
    private final Map<AxisKey, CutAxis> axes = new HashMap<>();

    private static final int LAST = -1;

    private record AxisKey(Cut cut, int number) {}

    /** Creates the mappings of a rank. */
    SliceMappings(Communicator communicator, String issuer) {
        this.communicator = communicator;
        this.issuer = issuer;
    }

    /**
     * Gathers the slices of the last axis: all-gather forward, own slice of the gradient backward.
     * For a consumer that is replicated, and whose gradient is therefore whole on every rank. What
     * several ranks have is taken from the first of them, which gets the gradient of it.
     *
     * @param input this rank's slice, [..., length of the rank's shard]
     * @param cut how the last axis is cut
     * @return the whole, [..., length of the axis]
     * @throws IllegalArgumentException if the slice is not as long as the rank's shard
     */
    public NDArray gatherFromRegion(NDArray input, Cut cut) {
        return isWhole(cut) ? input : gather(input, axis(cut, LAST), false);
    }

    /**
     * Takes this rank's slice of the last axis: own slice forward; backward the slices' gradients
     * are put together by an all-gather, or summed where several ranks have taken the same.
     *
     * @param input the whole, [..., length of the axis]
     * @param cut how the last axis is cut
     * @return this rank's slice, [..., length of the rank's shard]; a view if it is one range
     * @throws IllegalArgumentException if the last axis has another length
     */
    public NDArray scatterToRegion(NDArray input, Cut cut) {
        return isWhole(cut) ? input : scatter(input, axis(cut, LAST));
    }

    /**
     * Gathers the slices of axis 0, see {@link #gatherFromSequenceRegion(NDArray, Cut, int,
     * boolean)}.
     *
     * @param input this rank's slice, [length of the rank's shard, ...]
     * @param cut how axis 0 is cut
     * @param partialGradient whether every rank's gradient is a summand of the whole gradient
     * @return the whole, [length of the axis, ...]
     * @throws IllegalArgumentException if the slice is not as long as the rank's shard
     */
    public NDArray gatherFromSequenceRegion(NDArray input, Cut cut, boolean partialGradient) {
        return gatherFromSequenceRegion(input, cut, 0, partialGradient);
    }

    /**
     * Gathers the slices of an axis: all-gather forward; backward the reduce-scatter of gradients
     * that are partial, as those of a tensor-parallel consumer are, or the own slice of one that is
     * whole.
     *
     * @param input this rank's slice, [.., length of the rank's shard, ..]
     * @param cut how the axis is cut
     * @param axis the number of the axis
     * @param partialGradient whether every rank's gradient is a summand of the whole gradient
     * @return the whole, [.., length of the axis, ..]
     * @throws IllegalArgumentException if the slice is not as long as the rank's shard
     */
    public NDArray gatherFromSequenceRegion(
            NDArray input, Cut cut, int axis, boolean partialGradient) {
        return isWhole(cut) ? input : gather(input, axis(cut, axis), partialGradient);
    }

    /**
     * Gathers the rows of all ranks, of which each may have any number: all-gather forward, the own
     * rows of the gradient backward. For a consumer that is replicated.
     *
     * @param input this rank's rows, [rows of this rank, ...]
     * @param rows the number of rows of each rank
     * @return the rows of all ranks, [sum of the rows, ...]
     */
    public NDArray gatherRows(NDArray input, long[] rows) {
        return gatherFromSequenceRegion(input, Cut.ofLengths(rows), false);
    }

    private NDArray gather(NDArray input, CutAxis axis, boolean partialGradient) {
        axis.check(input.getShape(), false);
        try (PointerScope scope = new PointerScope()) {
            Tensor whole = axis.padded(input);
            try (TorchScope guard = TorchScope.withoutGraph()) {
                axis.fill(whole);
            }
            if (partialGradient && whole.requires_grad()) {
                whole.register_hook(axis.summed);
            }
            return TensorView.toArray(whole, input.getManager());
        }
    }

    /**
     * Takes this rank's slice of axis 0, see {@link #scatterToSequenceRegion(NDArray, Cut, int)}.
     *
     * @param input the whole, [length of the axis, ...]
     * @param cut how axis 0 is cut
     * @return this rank's slice, [length of the rank's shard, ...]; a view if it is one range
     * @throws IllegalArgumentException if axis 0 has another length
     */
    public NDArray scatterToSequenceRegion(NDArray input, Cut cut) {
        return scatterToSequenceRegion(input, cut, 0);
    }

    /**
     * Takes this rank's slice of an axis: own slice forward; backward the slices' gradients are put
     * together by an all-gather, or summed where several ranks have taken the same.
     *
     * @param input the whole, [.., length of the axis, ..]
     * @param cut how the axis is cut
     * @param axis the number of the axis
     * @return this rank's slice, [.., length of the rank's shard, ..]; a view if it is one range
     * @throws IllegalArgumentException if the axis has another length
     */
    public NDArray scatterToSequenceRegion(NDArray input, Cut cut, int axis) {
        return isWhole(cut) ? input : scatter(input, axis(cut, axis));
    }

    private NDArray scatter(NDArray input, CutAxis axis) {
        axis.check(input.getShape(), true);
        try (PointerScope scope = new PointerScope()) {
            Tensor whole = TensorView.of(input).tensor();
            Tensor slice = axis.slice(GradientHook.hooked(whole, axis.ofWhole));
            return TensorView.toArray(slice, input.getManager());
        }
    }

    /**
     * Leaves a tensor-parallel region into slices of axis 0, see {@link
     * #reduceScatterToSequenceRegion(NDArray, Cut, int)}.
     *
     * @param input this rank's summand of the whole, [length of the axis, ...]
     * @param cut how axis 0 is cut
     * @return this rank's slice of the sum, [length of the rank's shard, ...]
     * @throws IllegalArgumentException if axis 0 has another length
     */
    public NDArray reduceScatterToSequenceRegion(NDArray input, Cut cut) {
        return reduceScatterToSequenceRegion(input, cut, 0);
    }

    /**
     * Leaves a tensor-parallel region into slices of an axis: reduce-scatter forward; backward as
     * {@link #scatterToSequenceRegion}.
     *
     * @param input this rank's summand of the whole, [.., length of the axis, ..]
     * @param cut how the axis is cut
     * @param number the number of the axis
     * @return this rank's slice of the sum, [.., length of the rank's shard, ..]
     * @throws IllegalArgumentException if the axis has another length
     */
    public NDArray reduceScatterToSequenceRegion(NDArray input, Cut cut, int number) {
        if (isWhole(cut)) {
            return input;
        }
        CutAxis axis = axis(cut, number);
        axis.check(input.getShape(), true);
        try (PointerScope scope = new PointerScope()) {
            Tensor whole = GradientHook.hooked(TensorView.of(input).tensor(), axis.ofWhole);
            // a plain clone would keep the order of the axes in memory
            Tensor output =
                    axis.slice(whole).clone(new MemoryFormatOptional(MemoryFormat.Contiguous));
            try (TorchScope guard = TorchScope.withoutGraph()) {
                axis.sumToSlice(whole.detach(), output.detach());
            }
            return TensorView.toArray(output, input.getManager());
        }
    }

    /** Returns the group, which from here on knows who calls. */
    final Communicator issue() {
        communicator.setIssuer(issuer);
        return communicator;
    }

    /** Returns whether the group has one rank. */
    final boolean single() {
        return communicator.getSize() == 1;
    }

    /** Returns whether a rank alone has the whole. */
    private boolean isWhole(Cut cut) {
        if (cut.getRanks() != communicator.getSize()) {
            throw new IllegalArgumentException(
                    "A cut over %s ranks is not one of a group of %s"
                            .formatted(cut.getRanks(), communicator.getSize()));
        }
        return single() && cut.isConsecutive();
    }

    /** Returns an axis and its hooks, the same at every call. */
    final CutAxis axis(Cut cut, int number) {
        return axes.computeIfAbsent(
                new AxisKey(cut, number),
                key -> new CutAxis(this::issue, communicator.getRank(), cut, number, failure));
    }

    /** Frees the hooks. No backward pass through a mapping may follow. */
    @Override
    public void close() {
        axes.values().forEach(CutAxis::close);
    }
}

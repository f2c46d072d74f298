package io.djltp.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.MemoryFormat;

import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;

/**
 * An axis of arrays that are cut over a group, as one of its ranks sees it: what it has of a whole,
 * and how it gets the rest.
 *
 * <p>A gradient in a region of slices is a summand on each rank. So what a scatter has given to
 * several ranks gets the sum of their gradients, and of what several ranks could have given to a
 * gather, the first has given it and gets the gradient; those of the others are zero.
 */
final class CutAxis implements AutoCloseable {

    private final Supplier<Communicator> group;
    private final Cut cut;
    private final int number;
    private final int rank;
    private final CutPlan plan;

    /** Makes the whole gradient of a scatter's input out of that of the own slice. */
    final GradientHook ofWhole;

    /** Sums the gradients of a gather's output, where they are summands. */
    final GradientHook summed;

    private final GradientHook ofFirst; // of a gather's input: zero what another rank has given

    /**
     * Prepares an axis.
     *
     * @param group returns the rank's end of the group, for a call
     * @param rank the rank
     * @param cut how the axis is cut
     * @param number the number of the axis, or -1 for the last
     * @param failure where the first exception of a hook is kept
     */
    CutAxis(
            Supplier<Communicator> group,
            int rank,
            Cut cut,
            int number,
            AtomicReference<Throwable> failure) {
        this.group = group;
        this.rank = rank;
        this.cut = cut;
        this.number = number;
        plan = new CutPlan(cut);
        // the gradient of a slice or of a copy to places of a whole: fresh memory
        ofWhole = new GradientHook(this::putTogether, true, failure);
        summed = new GradientHook(gradient -> beginSum(gradient).await(), false, failure);
        ofFirst = new GradientHook(this::zeroOthers, true, failure);
    }

    private int axis(Tensor tensor) {
        return number < 0 ? (int) tensor.dim() + number : number;
    }

    /** Returns whether the ranks' slices lie one after the other in memory. */
    private boolean isLeading(Tensor tensor) {
        boolean leading = cut.isConsecutive();
        for (int i = 0; i < axis(tensor); i++) {
            leading &= tensor.size(i) == 1;
        }
        return leading;
    }

    /** Returns how many elements each rank sends, of an array that is whole. */
    private long[] counts(Tensor whole) {
        long slice = cut.getLength() == 0 ? 0 : whole.numel() / cut.getLength();
        return Arrays.stream(plan.sent()).map(length -> length * slice).toArray();
    }

    /** Takes the own slice, as a part of the graph. */
    Tensor slice(Tensor whole) {
        int axis = axis(whole);
        List<ShardRange> ranges = cut.getRanges(rank);
        return ranges.size() == 1
                ? whole.narrow(axis, ranges.get(0).start(), ranges.get(0).length())
                : whole.index_select(axis, CutPlan.positions(ranges, whole));
    }

    /** Puts the own slice to its places in a zeroed whole, as a part of the graph. */
    Tensor padded(NDArray input) {
        Tensor tensor = TensorView.of(input).tensor();
        int axis = axis(tensor);
        List<ShardRange> ranges = cut.getRanges(rank);
        if (cut.isPartition() && ranges.size() == 1) {
            long[] padding = new long[2 * ((int) tensor.dim() - axis)]; // from the last axis back
            padding[padding.length - 2] = ranges.get(0).start();
            padding[padding.length - 1] = cut.getLength() - ranges.get(0).end();
            try (Scalar zero = new Scalar(0)) {
                return torch.constant_pad_nd(tensor, padding, zero).contiguous();
            }
        }
        if (!cut.isPartition()) {
            tensor = GradientHook.hooked(tensor, ofFirst);
        }
        long[] sizes = TensorView.of(tensor).getShape().getShape();
        sizes[axis] = cut.getLength();
        return torch.zeros(sizes, tensor.options())
                .index_copy(axis, CutPlan.positions(ranges, tensor), tensor);
    }

    /** Fills a whole, in which the own slice is right, with what the others have. */
    void fill(Tensor whole) {
        Tensor target = whole.detach();
        int axis = axis(target);
        long[] counts = counts(target);
        if (isLeading(target)) { // the slices lie as they arrive
            ShardRange own = cut.getRange(rank);
            gather(target.narrow(axis, own.start(), own.length()), target, counts);
            return;
        }
        Tensor all = torch.empty_like(target).view(-1);
        gather(CutPlan.joined(target, axis, plan.sentBy(rank)), all, counts);
        long start = 0;
        for (int i = 0; i < counts.length; i++) {
            Tensor arrived = all.narrow(0, start, counts[i]);
            if (i != rank && counts[i] > 0) {
                CutPlan.distribute(arrived, target, axis, plan.sentBy(i));
            }
            start += counts[i];
        }
    }

    private void gather(Tensor own, Tensor all, long[] counts) {
        group.get().allGather(TensorView.of(own), TensorView.of(all), counts).await();
    }

    /** Of a gradient that has the own slice, and zeros beside it, all slices are put together. */
    private void putTogether(Tensor gradient) {
        if (cut.isPartition()) {
            fill(gradient);
        } else {
            group.get().allReduce(TensorView.of(gradient), ReduceOp.SUM).await();
        }
    }

    /**
     * Begins to sum a contiguous array, cut along the axis: when it is done, what this rank sends
     * of such an array is the sum over the ranks, and the rest anything.
     */
    Work beginSum(Tensor whole) {
        long[] counts = counts(whole);
        int axis = axis(whole);
        if (isLeading(whole)) {
            ShardRange own = cut.getRange(rank);
            // the caller's scope keeps the slice until the operation is complete
            Tensor place = whole.narrow(axis, own.start(), own.length());
            return group.get()
                    .reduceScatter(
                            TensorView.of(whole), TensorView.of(place), counts, ReduceOp.SUM);
        }
        Tensor sorted = inOrderOfRanks(whole, axis);
        long start = Arrays.stream(counts, 0, rank).sum();
        Tensor sum = sorted.narrow(0, start, counts[rank]);
        group.get()
                .reduceScatter(TensorView.of(sorted), TensorView.of(sum), counts, ReduceOp.SUM)
                .await();
        CutPlan.distribute(sum, whole, axis, plan.sentBy(rank));
        return Work.DONE;
    }

    /** Copies what each rank has, one rank after the other, in one row. */
    private Tensor inOrderOfRanks(Tensor whole, int axis) {
        if (axis == 0) {
            return CutPlan.joined(whole, 0, plan.sentByAll()).view(-1);
        }
        TensorVector parts = new TensorVector();
        for (int i = 0; i < cut.getRanks(); i++) {
            parts.push_back(CutPlan.joined(whole, axis, plan.sentBy(i)).view(-1));
        }
        return torch.cat(parts, 0);
    }

    /** Sums an array over the ranks and writes the own slice of the axis of it. */
    void sumToSlice(Tensor whole, Tensor slice) {
        if (cut.isPartition()) {
            Tensor sorted =
                    isLeading(whole) ? whole.contiguous() : inOrderOfRanks(whole, axis(whole));
            group.get()
                    .reduceScatter(
                            TensorView.of(sorted),
                            TensorView.of(slice),
                            counts(whole),
                            ReduceOp.SUM)
                    .await();
        } else {
            // a plain clone would keep the order of the axes in memory
            Tensor sum = whole.clone(new MemoryFormatOptional(MemoryFormat.Contiguous));
            group.get().allReduce(TensorView.of(sum), ReduceOp.SUM).await();
            slice.copy_(slice(sum));
        }
    }

    private void zeroOthers(Tensor gradient) {
        for (Segment segment : plan.segments()) {
            long place = segment.getPlace(rank);
            if (place >= 0 && segment.getFirstRank() != rank) {
                gradient.narrow(axis(gradient), place, segment.range().length()).zero_();
            }
        }
    }

    /** Refuses an array that is not as long as the own slice, or as the whole. */
    void check(Shape shape, boolean whole) {
        int axis = number < 0 ? shape.dimension() + number : number;
        long expected = whole ? cut.getLength() : cut.getShardLength(rank);
        if (axis < 0 || axis >= shape.dimension() || shape.get(axis) != expected) {
            throw new IllegalArgumentException(
                    ("Axis %s%s%s of rank %s must have length %s for a whole of %s over"
                                    + " %s ranks")
                            .formatted(
                                    axis,
                                    whole ? " of " : " of the slice ",
                                    shape,
                                    rank,
                                    expected,
                                    cut.getLength(),
                                    cut.getRanks()));
        }
    }

    /** Frees the hooks. */
    @Override
    public void close() {
        ofWhole.close();
        summed.close();
        ofFirst.close();
    }
}

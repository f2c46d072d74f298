package io.djltp.internal.region;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.collective.Work;
import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.TensorView;

import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.MemoryFormat;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import java.util.stream.IntStream;

/**
 * An axis of arrays that are cut over a group, as one of its ranks sees it: what it has of a whole,
 * and how it gets the rest. When a whole is put together, each segment of it is sent once, by the
 * first rank that holds it, in the order in which they lie in its shard. Where nothing is
 * replicated, that is the shard.
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
    private final List<List<Segment>> sentBy; // by rank, in the order of its shard

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
            AtomicReference<@Nullable Throwable> failure) {
        this.group = group;
        this.rank = rank;
        this.cut = cut;
        this.number = number;
        sentBy = IntStream.range(0, cut.getRanks()).mapToObj(this::firstHeldBy).toList();
        // the gradient of a slice or of a copy to places of a whole: fresh memory
        ofWhole = GradientHook.changing(this::putTogether, true, failure);
        summed = GradientHook.changing(gradient -> beginSum(gradient).await(), false, failure);
        ofFirst = GradientHook.changing(this::zeroOthers, true, failure);
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

    private List<Segment> firstHeldBy(int sender) {
        return cut.getSegments().stream()
                .filter(segment -> segment.getFirstRank() == sender)
                .sorted(Comparator.comparing(segment -> segment.getPlace(sender)))
                .toList();
    }

    private static long length(List<Segment> parts) {
        return parts.stream().mapToLong(part -> part.range().length()).sum();
    }

    /** Returns how many elements each rank sends, of an array that is whole. */
    long[] counts(Tensor whole) {
        long slice = cut.getLength() == 0 ? 0 : whole.numel() / cut.getLength();
        return sentBy.stream().mapToLong(parts -> length(parts) * slice).toArray();
    }

    /** Takes the own slice, as a part of the graph. */
    Tensor slice(Tensor whole) {
        int axis = axis(whole);
        List<ShardRange> ranges = cut.getRanges(rank);
        return ranges.size() == 1
                ? whole.narrow(axis, ranges.get(0).start(), ranges.get(0).length())
                : whole.index_select(axis, positions(ranges, whole));
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
            tensor = ofFirst.on(tensor);
        }
        long[] sizes = TensorView.of(tensor).getShape().getShape();
        sizes[axis] = cut.getLength();
        return torch.zeros(sizes, tensor.options())
                .index_copy(axis, positions(ranges, tensor), tensor);
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
        gather(joined(target, axis, sentBy.get(rank)), all, counts);
        long start = 0;
        for (int i = 0; i < counts.length; i++) {
            if (i != rank && counts[i] > 0) {
                distribute(all.narrow(0, start, counts[i]), target, axis, sentBy.get(i));
            }
            start += counts[i];
        }
    }

    private void gather(Tensor own, Tensor all, long[] counts) {
        group.get().allGather(TensorView.of(own), TensorView.of(all), counts).await();
    }

    private Work reduceScatter(Tensor from, Tensor to, long[] counts) {
        return group.get()
                .reduceScatter(TensorView.of(from), TensorView.of(to), counts, ReduceOp.SUM);
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
            return reduceScatter(whole, whole.narrow(axis, own.start(), own.length()), counts);
        }
        Tensor sorted = inOrderOfRanks(whole, axis);
        Tensor sum = sorted.narrow(0, Arrays.stream(counts, 0, rank).sum(), counts[rank]);
        reduceScatter(sorted, sum, counts).await();
        distribute(sum, whole, axis, sentBy.get(rank));
        return Work.DONE;
    }

    /** Sums an array over the ranks and writes the own slice of the axis of it. */
    void sumToSlice(Tensor whole, Tensor slice) {
        if (cut.isPartition()) {
            Tensor sorted =
                    isLeading(whole) ? whole.contiguous() : inOrderOfRanks(whole, axis(whole));
            reduceScatter(sorted, slice, counts(whole)).await();
        } else {
            Tensor sum = contiguousCopy(whole);
            group.get().allReduce(TensorView.of(sum), ReduceOp.SUM).await();
            slice.copy_(slice(sum));
        }
    }

    /** Returns a copy; a plain clone would keep the order of the axes in memory. */
    static Tensor contiguousCopy(Tensor tensor) {
        return tensor.clone(new MemoryFormatOptional(MemoryFormat.Contiguous));
    }

    private void zeroOthers(Tensor gradient) {
        for (Segment segment : cut.getSegments()) {
            long place = segment.getPlace(rank);
            if (place >= 0 && segment.getFirstRank() != rank) {
                gradient.narrow(axis(gradient), place, segment.range().length()).zero_();
            }
        }
    }

    /** Copies what each rank has, one rank after the other, in one row. */
    private Tensor inOrderOfRanks(Tensor whole, int axis) {
        TensorVector parts = new TensorVector();
        for (List<Segment> each : sentBy) {
            parts.push_back(joined(whole, axis, each).view(-1));
        }
        return torch.cat(parts, 0);
    }

    /** Copies segments of an axis one after the other, contiguous. */
    private static Tensor joined(Tensor whole, int axis, List<Segment> parts) {
        if (parts.isEmpty()) {
            return whole.narrow(axis, 0, 0).contiguous();
        }
        TensorVector tensors = new TensorVector();
        for (Segment part : parts) {
            tensors.push_back(whole.narrow(axis, part.range().start(), part.range().length()));
        }
        Tensor joined = parts.size() == 1 ? tensors.get(0) : torch.cat(tensors, axis);
        return joined.contiguous();
    }

    /** Copies what {@link #joined} has put together to its places. */
    private static void distribute(Tensor joined, Tensor whole, int axis, List<Segment> parts) {
        long[] sizes = TensorView.of(whole).getShape().getShape();
        sizes[axis] = length(parts);
        Tensor from = joined.view(sizes);
        long at = 0;
        for (Segment part : parts) {
            long length = part.range().length();
            whole.narrow(axis, part.range().start(), length).copy_(from.narrow(axis, at, length));
            at += length;
        }
    }

    /** Returns the indices of ranges, on the device of an array. */
    private static Tensor positions(List<ShardRange> ranges, Tensor like) {
        TensorVector indices = new TensorVector();
        for (ShardRange range : ranges) {
            indices.push_back(torch.arange(new Scalar(range.start()), new Scalar(range.end())));
        }
        Tensor all = ranges.isEmpty() ? torch.empty(0) : torch.cat(indices, 0);
        return all.to(like.device(), ScalarType.Long);
    }

    /** Throws if an array is not as long as the own slice, or as the whole. */
    void check(Shape shape, boolean whole) {
        int axis = number < 0 ? shape.dimension() + number : number;
        long expected = whole ? cut.getLength() : cut.getShardLength(rank);
        Errors.check(
                axis >= 0 && axis < shape.dimension() && shape.get(axis) == expected,
                "Axis %s%s%s of rank %s must have length %s for a whole of %s over %s ranks",
                axis,
                whole ? " of " : " of the slice ",
                shape,
                rank,
                expected,
                cut.getLength(),
                cut.getRanks());
    }

    /** Frees the hooks. */
    @Override
    public void close() {
        ofWhole.close();
        summed.close();
        ofFirst.close();
    }
}

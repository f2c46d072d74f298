package io.djltp.region;

import io.djltp.cut.Cut;
import io.djltp.cut.Segment;
import io.djltp.cut.ShardRange;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Comparator;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Which rank sends which segments of an axis when a whole is put together: each is sent once, by
 * the first rank that holds it, in the order in which they lie in its shard. Where nothing is
 * replicated, that is the shard.
 */
final class CutPlan {

    private final List<Segment> segments;
    private final List<List<Segment>> sentBy; // by rank
    private final long[] sent;

    CutPlan(Cut cut) {
        segments = cut.getSegments();
        sentBy = IntStream.range(0, cut.getRanks()).mapToObj(this::firstHeldBy).toList();
        sent =
                sentBy.stream()
                        .mapToLong(each -> each.stream().mapToLong(s -> s.range().length()).sum())
                        .toArray();
    }

    private List<Segment> firstHeldBy(int rank) {
        return segments.stream()
                .filter(segment -> segment.getFirstRank() == rank)
                .sorted(Comparator.comparing(segment -> segment.getPlace(rank)))
                .toList();
    }

    /** Returns the segments, in the order of the axis. */
    List<Segment> segments() {
        return segments;
    }

    /** Returns what a rank sends. */
    List<Segment> sentBy(int rank) {
        return sentBy.get(rank);
    }

    /** Returns what the ranks send, one after the other. */
    List<Segment> sentByAll() {
        return sentBy.stream().flatMap(List::stream).toList();
    }

    /** Returns the length along the axis of what each rank sends. */
    long[] sent() {
        return sent;
    }

    /** Copies segments of an axis one after the other, contiguous. */
    static Tensor joined(Tensor whole, int axis, List<Segment> parts) {
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
    static void distribute(Tensor joined, Tensor whole, int axis, List<Segment> parts) {
        long[] sizes = new long[(int) whole.dim()];
        for (int i = 0; i < sizes.length; i++) {
            sizes[i] = whole.size(i);
        }
        sizes[axis] = parts.stream().mapToLong(part -> part.range().length()).sum();
        Tensor from = joined.view(sizes);
        long at = 0;
        for (Segment part : parts) {
            long length = part.range().length();
            whole.narrow(axis, part.range().start(), length).copy_(from.narrow(axis, at, length));
            at += length;
        }
    }

    /** Returns the indices of ranges, on the device of an array. */
    static Tensor positions(List<ShardRange> ranges, Tensor like) {
        TensorVector indices = new TensorVector();
        for (ShardRange range : ranges) {
            indices.push_back(torch.arange(new Scalar(range.start()), new Scalar(range.end())));
        }
        Tensor all = ranges.isEmpty() ? torch.empty(0) : torch.cat(indices, 0);
        return all.to(like.device(), ScalarType.Long);
    }
}

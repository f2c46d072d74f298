package io.djltp.internal.head;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.TableShard;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * The classes that one rank holds, and the ranks that hold the others. A <em>class</em> is counted
 * over all ranks, a <em>column</em> is the place of a class in the rank's shard of the logits, from
 * 0.
 */
final class ClassShard {

    private final Cut cut;
    private final @Nullable Communicator group;
    private final int rank;
    private final List<ShardRange> ranges;
    private final long length;

    /**
     * Creates the shard of a rank.
     *
     * @param cut the cut of the classes
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @throws IllegalArgumentException if the cut is over other ranks, a class is on several ranks,
     *     or the classes of a rank do not ascend
     */
    ClassShard(Cut cut, @Nullable Communicator group) {
        this(cut, group, group == null ? 0 : group.getRank(), group == null ? 1 : group.getSize());
    }

    /** The same of any rank, which meets the others in the group, or not at all. */
    ClassShard(Cut cut, @Nullable Communicator group, int rank, int ranks) {
        this.cut = cut;
        this.group = group;
        this.rank = rank;
        Errors.check(
                cut.getRanks() == ranks,
                "The classes are cut over %s ranks, but the group has %s",
                cut.getRanks(),
                ranks);
        Errors.check(
                cut.isPartition(),
                "The classes are cut %s, with some of them on several ranks: a softmax would count"
                        + " these several times. Cut the layer over the ranks without replicas, or"
                        + " gather its output and use DJL's SoftmaxCrossEntropyLoss",
                cut);
        IntStream.range(0, ranks).forEach(this::checkAscending);
        ranges = cut.getRanges(rank);
        length = cut.getShardLength(rank);
    }

    private void checkAscending(int ofRank) {
        long end = 0;
        for (ShardRange range : cut.getRanges(ofRank)) {
            if (range.length() > 0 && range.start() < end) {
                throw Errors.argument(
                        "Rank %s has the classes %s, which do not ascend: of equal logits, that of"
                                + " the class with the lower number would not come first. Give the"
                                + " ranges of a rank in ascending order",
                        ofRank, cut.getRanges(ofRank));
            }
            end = Math.max(end, range.end());
        }
    }

    int rank() {
        return rank;
    }

    /** Returns whether there is no other rank. */
    boolean isAlone() {
        return group == null || group.getSize() == 1;
    }

    /** Reduces a tensor over the ranks, in place. */
    void allReduce(Tensor tensor, ReduceOp op) {
        if (group != null && !isAlone()) {
            group.allReduce(TensorView.of(tensor), op).await();
        }
    }

    /** Returns a tensor of all ranks, which has the same shape on each, [ranks, ...]. */
    Tensor allGather(Tensor own) {
        if (group == null || isAlone()) {
            return own.unsqueeze(0);
        }
        long ranks = group.getSize();
        long[] counts = LongStream.generate(own::numel).limit(ranks).toArray();
        long[] shape =
                LongStream.concat(LongStream.of(ranks), LongStream.of(own.shape())).toArray();
        Tensor all = own.new_empty(shape);
        group.allGather(TensorView.of(own), TensorView.of(all), counts).await();
        return all;
    }

    /** Returns the ranges of the rank, in ascending order. */
    List<ShardRange> ranges() {
        return ranges;
    }

    /** Returns the number of classes of the rank. */
    long length() {
        return length;
    }

    /** Returns the number of classes of all ranks. */
    long total() {
        return cut.getLength();
    }

    /** Returns the column of a class, or -1 if another rank holds it. */
    long columnOf(long classNumber) {
        return TableShard.place(ranges, classNumber);
    }

    /**
     * Returns the column of each of some classes, or -1 if another rank or none holds it, int64.
     */
    Tensor columnsOf(Tensor classes) {
        return TableShard.places(ranges, classes);
    }

    /** Returns what the classes of the rank have of something that there is one of a class. */
    float[] part(float... ofAll) {
        float[] part = new float[(int) length()];
        int column = 0;
        for (ShardRange range : ranges) {
            System.arraycopy(ofAll, (int) range.start(), part, column, (int) range.length());
            column += (int) range.length();
        }
        return part;
    }

    /** Returns how many classes of the rank have a lower number than a class of any rank. */
    long columnsBefore(long classNumber) {
        return ranges.stream()
                .mapToLong(r -> Math.max(0, Math.min(r.length(), classNumber - r.start())))
                .sum();
    }

    /** Returns the class of a column. */
    long classOf(long column) {
        long place = column;
        for (ShardRange range : ranges) {
            if (place < range.length()) {
                return range.start() + place;
            }
            place -= range.length();
        }
        throw new IndexOutOfBoundsException("column " + column + " of " + length);
    }

    /**
     * Returns the classes of columns.
     *
     * @param columns the columns, int64 of any shape
     * @return the classes, of the same shape
     */
    Tensor classesOf(Tensor columns) {
        Tensor classes = columns.clone();
        long column = 0;
        long end = 0; // of the range before
        for (ShardRange range : ranges) {
            if (range.length() > 0) {
                classes.add_(columns.ge(new Scalar(column)), new Scalar(range.start() - end));
                column += range.length();
                end = range.end();
            }
        }
        return classes;
    }
}

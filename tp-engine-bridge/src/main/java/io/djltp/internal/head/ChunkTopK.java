package io.djltp.internal.head;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Objects;

/**
 * The classes of a rank with the largest logits, for each row, of logits that exist a chunk of
 * classes at a time. Of equal logits that of the class with the lower number comes first.
 *
 * <p>Most chunks need a close look in few rows: those whose largest logit is above the k-th best so
 * far, which in random order are about k/i of the rows in chunk i. There a chunk is taken as blocks
 * of some classes each. A class outside of the k blocks with the largest maxima cannot be among the
 * k best, because each of these blocks has one that comes before it.
 */
final class ChunkTopK {

    private static final double LOWEST = Double.NEGATIVE_INFINITY;

    private final LogitChunks chunks;
    private final int k;
    private final LogitChunks.@Nullable LogSum logSum; // null if not wanted
    private final TensorOptions integers;
    private final Tensor allValues; // [rows, k]
    private final Tensor allColumns;
    private long count; // how many of the k columns have been found

    /**
     * Passes over the chunks.
     *
     * @param chunks the logits
     * @param k how many classes are wanted; if there are fewer, all are
     * @param withSum whether the exponentials are summed up in the same pass
     */
    ChunkTopK(LogitChunks chunks, int k, boolean withSum) {
        this.chunks = chunks;
        this.k = (int) Math.min(k, chunks.plan.range().length());
        logSum = withSum ? new LogitChunks.LogSum(chunks) : null;
        long[] shape = {chunks.rows, this.k};
        allValues = torch.zeros(shape, chunks.memory.options());
        allColumns = allValues.to(ScalarType.Long);
        integers = allColumns.options();
        chunks.forEach(
                (index, logits) -> {
                    Tensor top = logits.amax(new long[] {1}, false);
                    add(logits, top, chunks.plan.start(index));
                    if (logSum != null) {
                        logSum.add(logits, top);
                    }
                });
    }

    /**
     * Returns the best of this rank.
     *
     * @param shard the classes of this rank
     * @param wanted how many classes are wanted, not more than all ranks have
     * @return the best logits and classes
     */
    Found found(ClassShard shard, int wanted) {
        long[] missing = {0, wanted - k}; // of a rank with fewer classes
        Tensor values =
                torch.constant_pad_nd(allValues.to(ScalarType.Double), missing, new Scalar(LOWEST));
        Tensor classes =
                torch.constant_pad_nd(
                        shard.classesOf(allColumns).to(ScalarType.Double),
                        missing,
                        new Scalar(-LOWEST));
        return logSum == null
                ? new Found(values, classes, null, null)
                : new Found(values, classes, logSum.largest.to(ScalarType.Double), logSum.sum);
    }

    /**
     * The best classes of a rank, or of all. All of it is in float64, which holds class numbers and
     * logits exactly.
     *
     * @param values the logits, float64 [rows, k]; -infinity for none
     * @param classes the classes, float64 [rows, k]; infinity for none
     * @param largest what the exponentials are above, float64 [rows], or {@code null} if they are
     *     not wanted
     * @param sum the sum of the exponentials of all logits, float64 [rows], or {@code null}
     */
    record Found(Tensor values, Tensor classes, @Nullable Tensor largest, @Nullable Tensor sum) {

        /** Brings the best of each rank together: one all-gather. */
        Found gather(ClassShard shard) {
            TensorVector columns = new TensorVector(values, classes);
            if (largest != null && sum != null) {
                columns.push_back(largest.unsqueeze(1));
                columns.push_back(sum.unsqueeze(1));
            }
            long wanted = values.size(1);
            Tensor all = shard.allGather(torch.cat(columns, 1));
            Tensor everyValue = ofAllRanks(all, 0, wanted);
            Tensor everyClass = ofAllRanks(all, wanted, wanted);
            // of equal logits, that of the lower class comes first
            Tensor order = everyClass.argsort(true, 1, false);
            Best best = sorted(everyValue.gather(1, order), everyClass.gather(1, order), wanted);
            if (largest == null) {
                return new Found(best.values, best.classes, null, null);
            }
            Tensor largests = all.select(2, 2 * wanted); // [ranks, rows]
            Tensor top = largests.amax(new long[] {0}, false);
            Tensor sums = largests.sub(top).exp_().mul_(all.select(2, 2 * wanted + 1)).sum(0);
            return new Found(best.values, best.classes, top, sums);
        }

        private static Tensor ofAllRanks(Tensor all, long start, long length) {
            Tensor part = all.narrow(2, start, length).transpose(0, 1);
            return part.reshape(all.size(1), all.size(0) * length);
        }

        /** Returns the logarithms of the probabilities. */
        Tensor logProbabilities() {
            Tensor top = Objects.requireNonNull(largest, "not asked for").unsqueeze(1);
            // the largest first: a log-sum-exp would lose the digits that it has after the point
            return values.sub(top).sub_(Objects.requireNonNull(sum).unsqueeze(1).log());
        }
    }

    private Best found() {
        return new Best(allValues.narrow(1, 0, count), allColumns.narrow(1, 0, count));
    }

    private void add(Tensor logits, Tensor top, long start) {
        Best best = found();
        if (count < k) {
            Best merged = merge(best, logits, start);
            count = merged.values.size(1);
            found().values.copy_(merged.values);
            found().classes.copy_(merged.classes);
            return;
        }
        // an equal logit of a later class comes after; NaN comes before everything, as in a sort
        Tensor rows = top.le(best.values.select(1, k - 1)).logical_not_().nonzero().squeeze(1);
        if (rows.size(0) > 0) {
            Best merged = merge(best.rows(rows), logits.index_select(0, rows), start);
            best.values.index_copy_(0, rows, merged.values);
            best.classes.index_copy_(0, rows, merged.classes);
        }
    }

    /** Puts what was found before and the classes of a chunk in one order. */
    private Best merge(Best before, Tensor logits, long start) {
        Best candidates = candidates(logits, start);
        Tensor values = joined(before.values, candidates.values);
        Tensor classes = joined(before.classes, candidates.classes);
        return sorted(values, classes, k);
    }

    private static Tensor joined(Tensor first, Tensor second) {
        return torch.cat(new TensorVector(first, second), 1);
    }

    /**
     * Returns the largest values of each row and what belongs to them. Of equal ones the first
     * comes first.
     *
     * @param values the values, [rows, columns]
     * @param classes what belongs to them, in the same shape
     * @param k how many are wanted; if there are fewer columns, all are
     */
    private static Best sorted(Tensor values, Tensor classes, long k) {
        Tensor order = values.argsort(true, 1, true).narrow(1, 0, Math.min(k, values.size(1)));
        return new Best(values.gather(1, order), classes.gather(1, order));
    }

    /** Returns classes of a chunk among which are its best, in ascending order. */
    private Best candidates(Tensor logits, long start) {
        long rows = logits.size(0);
        long length = logits.size(1);
        // about as many maxima as candidates
        long size = Long.highestOneBit(Math.max(1, (long) Math.sqrt((double) length / k)));
        long count = length / size;
        if (count <= k) {
            return new Best(logits, numbers(start, start + length).expand(rows, length));
        }
        Tensor blocks = logits.narrow(1, 0, count * size).view(rows, count, size);
        Tensor order = blocks.amax(new long[] {2}, false).argsort(true, 1, true);
        Tensor chosen = order.narrow(1, 0, k).sort(1, false).get0().unsqueeze(2);
        Tensor values = blocks.gather(1, chosen.expand(rows, k, size)).view(rows, k * size);
        Tensor classes =
                chosen.mul(new Scalar(size)).add(numbers(start, start + size)).view(rows, k * size);
        long rest = length - count * size;
        Tensor last = numbers(start + count * size, start + length).expand(rows, rest);
        return new Best(
                joined(values, logits.narrow(1, count * size, rest)), joined(classes, last));
    }

    private Tensor numbers(long from, long to) {
        return torch.arange(new Scalar(from), new Scalar(to), integers);
    }

    /**
     * Logits and their classes.
     *
     * @param values the logits, [rows, count]
     * @param classes the classes, [rows, count]
     */
    record Best(Tensor values, Tensor classes) {

        Best rows(Tensor numbers) {
            return new Best(values.index_select(0, numbers), classes.index_select(0, numbers));
        }
    }
}

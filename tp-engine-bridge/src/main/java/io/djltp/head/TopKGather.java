package io.djltp.head;

import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The best classes of each rank brought together: one all-gather of k logits and classes and, if
 * probabilities are wanted, of the largest logit and the sum of exponentials above it, for each row
 * and rank. All of it is in float64, which holds class numbers and logits exactly.
 */
final class TopKGather {

    private final long rows;
    private final int k;
    private final boolean withSum;
    private final boolean inOrder; // whether the classes of the ranks ascend
    private final Tensor[] parts; // of each rank, [rows, 2 * its k and 2 for the sum]

    /**
     * Gathers.
     *
     * @param found what this rank has found
     * @param shard the classes of this rank
     * @param k how many classes are wanted, not more than there are
     */
    TopKGather(ChunkTopK found, ClassShard shard, int k) {
        this.k = k;
        rows = found.values().size(0);
        withSum = found.logSum() != null;
        inOrder = shard.cut().isConsecutive();
        Tensor packed = pack(found, shard);
        int size = shard.cut().getRanks();
        parts = new Tensor[size];
        if (size == 1) {
            parts[0] = packed;
            return;
        }
        long[] counts = new long[size];
        long sum = 0;
        for (int rank = 0; rank < size; rank++) {
            counts[rank] = rows * width(shard.cut().getShardLength(rank));
            sum += counts[rank];
        }
        Tensor all = torch.empty(new long[] {sum}, packed.options(), new MemoryFormatOptional());
        shard.group().allGather(TensorView.of(packed), TensorView.of(all), counts).await();
        long start = 0;
        for (int rank = 0; rank < size; rank++) {
            long width = width(shard.cut().getShardLength(rank));
            parts[rank] = all.narrow(0, start, counts[rank]).view(rows, width);
            start += counts[rank];
        }
    }

    private long width(long classes) {
        return 2 * Math.min(k, classes) + (withSum ? 2 : 0);
    }

    private Tensor pack(ChunkTopK found, ClassShard shard) {
        TensorVector columns =
                new TensorVector(
                        found.values().to(ScalarType.Double),
                        shard.classesOf(found.columns()).to(ScalarType.Double));
        if (withSum) {
            Tensor largest = found.logSum().largest();
            columns.push_back(largest.to(ScalarType.Double).unsqueeze(1));
            columns.push_back(found.logSum().sumAbove(largest).unsqueeze(1));
        }
        return torch.cat(columns, 1);
    }

    /** Returns the best logits and classes of all ranks, float64 [rows, k]. */
    ChunkTopK.Best best() {
        TensorVector values = new TensorVector();
        TensorVector classes = new TensorVector();
        for (Tensor part : parts) {
            long count = (part.size(1) - (withSum ? 2 : 0)) / 2;
            values.push_back(part.narrow(1, 0, count));
            classes.push_back(part.narrow(1, count, count));
        }
        Tensor allValues = torch.cat(values, 1);
        Tensor allClasses = torch.cat(classes, 1);
        if (!inOrder) { // of equal logits, that of the lower class comes first
            Tensor order = allClasses.argsort(true, 1, false);
            allValues = allValues.gather(1, order);
            allClasses = allClasses.gather(1, order);
        }
        return ChunkTopK.sorted(allValues, allClasses, k);
    }

    /** Returns the logarithms of the probabilities that belong to logits of all ranks. */
    Tensor logProbabilities(Tensor logits) {
        Tensor[] largest = new Tensor[parts.length];
        Tensor top = null;
        for (int rank = 0; rank < parts.length; rank++) {
            largest[rank] = parts[rank].select(1, parts[rank].size(1) - 2);
            top = top == null ? largest[rank] : torch.maximum(top, largest[rank]);
        }
        Tensor sum = torch.zeros_like(top);
        for (int rank = 0; rank < parts.length; rank++) {
            Tensor ofRank = parts[rank].select(1, parts[rank].size(1) - 1);
            sum.addcmul_(ofRank, largest[rank].sub(top).exp_());
        }
        // the largest logit first: a log-sum-exp would lose the digits that it has after the point
        return logits.sub(top.unsqueeze(1)).sub_(sum.log_().unsqueeze(1));
    }
}

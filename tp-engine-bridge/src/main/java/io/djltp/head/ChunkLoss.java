package io.djltp.head;

import io.djltp.collective.ReduceOp;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The loss of logits that exist a chunk of classes at a time, by the {@link CrossEntropyFormula}.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkLoss {

    private final LogitChunks chunks;
    private final ShardLabels labels;
    private final LossOptions options;
    private final ChunkLogSum logSum;
    private final Tensor sums;

    ChunkLoss(LogitChunks chunks, ShardLabels labels, LossOptions options) {
        this.chunks = chunks;
        this.labels = labels;
        this.options = options;
        logSum = new ChunkLogSum(chunks);
        sums = CrossEntropyFormula.newSums(options, chunks.rows, chunks.buffers.wide());
    }

    /**
     * Returns the loss over all ranks, a scalar in float32.
     *
     * @param shard the classes of the rank
     */
    Tensor evaluate(ClassShard shard) {
        ChunkRanking ranking = new ChunkRanking(chunks, labels);
        for (int i = 0; i < chunks.plan().count(); i++) {
            try (PointerScope scope = new PointerScope()) {
                add(ranking, i);
            }
        }
        Tensor largest = logSum.largest().clone();
        shard.allReduce(largest, ReduceOp.MAX);
        sums.select(0, CrossEntropyFormula.NORMALISER).copy_(logSum.sumAbove(largest));
        shard.allReduce(sums, ReduceOp.SUM);
        sums.select(0, CrossEntropyFormula.LABEL).sub_(largest);
        Tensor weights = CrossEntropyFormula.rowWeights(labels, options, chunks.buffers.wide());
        Tensor wide = largest.to(ScalarType.Double);
        return new CrossEntropyFormula(options, shard.total(), weights, wide, sums)
                .loss()
                .to(ScalarType.Float);
    }

    private void add(ChunkRanking ranking, int index) {
        Tensor logits = chunks.logits(index);
        ranking.addLabelLogits(index, logits, sums.select(0, CrossEntropyFormula.LABEL));
        if (options.labelSmoothing() > 0) {
            ScalarTypeOptional same = new ScalarTypeOptional();
            sums.select(0, CrossEntropyFormula.LOGITS)
                    .add_(logits.sum(new long[] {1}, false, same));
        }
        logSum.add(logits, logits.amax(new long[] {1}, false));
    }
}

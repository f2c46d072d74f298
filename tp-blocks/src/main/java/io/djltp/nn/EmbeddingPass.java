package io.djltp.nn;

import ai.djl.ndarray.NDArray;

import io.djltp.cut.Cut;
import io.djltp.internal.torch.DelegatedArray;
import io.djltp.internal.update.TableShard;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region.Features;
import io.djltp.rank.DataRows;
import io.djltp.rank.LateRefusal;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;

/** The forward pass of a {@link VocabParallelEmbedding} on a rank. */
final class EmbeddingPass {

    private final VocabParallelEmbedding embedding;
    private final ParallelContext context;
    private final TiedLookups lookups; // or null

    /**
     * Creates a pass.
     *
     * @param embedding the embedding
     * @param context the rank
     * @param lookups what takes the gradient, if a head updates the weight, or {@code null}
     */
    EmbeddingPass(VocabParallelEmbedding embedding, ParallelContext context, TiedLookups lookups) {
        this.embedding = embedding;
        this.context = context;
        this.lookups = lookups;
    }

    /**
     * Returns the rows of ids, [x1, ..., xn, features].
     *
     * @param values the rank's rows of the weight
     * @param ids the ids
     * @param cutTokens whether the rank gets the rows of its tokens only
     */
    NDArray forward(NDArray values, NDArray ids, boolean cutTokens) {
        if (context.getTensorGroup().getSize() == 1) {
            return lookUp(values, ids);
        }
        ForwardPass pass = context.getPass();
        RegionMappings mappings = context.getMappings(embedding);
        if (cutTokens) {
            return SequenceRegion.reduceScatter(context, embedding, lookUp(values, ids));
        }
        if (!pass.isOverlaid() || !pass.regionOf(ids).isRowsCut()) {
            NDArray rows = mappings.reduceFromRegion(lookUp(values, ids), true);
            return pass.enter(rows, Features.REPLICATED);
        }
        String what = "The input of " + embedding.describe();
        NDArray all = pass.enterGathered(DataRows.gather(context, ids, what));
        NDArray part = lookUp(values, all);
        long rows = all.getShape().get(0);
        return pass.enterScattered(
                mappings.reduceScatterToSequenceRegion(part, rowCut(rows)), rows);
    }

    private NDArray lookUp(NDArray values, NDArray ids) {
        TableShard shard = embedding.shard(context);
        NDArray checked = DelegatedArray.unwrap(check(context, shard, ids, embedding.describe()));
        NDArray own = DelegatedArray.unwrap(values);
        if (lookups != null) {
            return context.getPass().enterLike(lookups.lookUp(shard, own, checked), ids);
        }
        return context.getPass().enterLike(shard.rows(own, checked), ids, embedding.weight());
    }

    /**
     * Checks ids: throws at once where all ranks have them, at the end of the pass where this one
     * has.
     *
     * @param context the rank, or {@code null} outside of ranks
     * @param shard the rows of the rank
     * @param ids the ids
     * @param what the table, for errors
     * @return the ids, or zeros where the pass goes on to its end
     * @throws IllegalArgumentException if an id is none of the table's
     */
    static NDArray check(ParallelContext context, TableShard shard, NDArray ids, String what) {
        try {
            shard.check(ids, what);
            return ids;
        } catch (IllegalArgumentException e) {
            if (context == null || !context.getPass().regionOf(ids).isRowsCut()) {
                throw e;
            }
            LateRefusal.refuse(context, e);
            return ids.zerosLike();
        }
    }

    /** Returns which rows each rank gets back; a row of the batch may have become several. */
    private Cut rowCut(long rows) {
        Cut batch = context.getPass().getBatchCut(context.getDataGroup().getSize());
        long each = rows / Math.max(1, batch.getLength());
        long[] lengths = batch.getShardLengths();
        for (int i = 0; i < lengths.length; i++) {
            lengths[i] *= each;
        }
        return Cut.ofLengths(lengths);
    }
}

package io.djltp.nn.attention;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;

import io.djltp.cut.Cut;
import io.djltp.layout.ShardedLayout;
import io.djltp.nn.ParallelDropout;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.sharding.AxisPart;
import io.djltp.torch.AttentionKernel;

import java.util.Optional;

/**
 * What a rank's heads compute of their queries, keys and values: softmax(q k^T / sqrt(d)) v, each
 * head for itself.
 */
final class WeightedValues {

    private final AttentionShape shape;
    private final boolean causal;
    private final ParallelDropout dropout; // of the weights, or null

    WeightedValues(AttentionShape shape, boolean causal, ParallelDropout dropout) {
        this.shape = shape;
        this.causal = causal;
        this.dropout = dropout;
    }

    Optional<ParallelDropout> getDropout() {
        return Optional.ofNullable(dropout);
    }

    /**
     * Computes the heads.
     *
     * @param store the parameters, which know the rank
     * @param inputs queries, keys and values, and what the user gave: a mask, a bias of the scores
     * @param training whether weights are dropped
     * @return the weighted values of all heads side by side, [B, T, heads d]
     */
    NDArray compute(ParameterStore store, NDList inputs, boolean training) {
        ParallelContext context = RankParameterStore.contextOf(store);
        LocalHeads local = shape.localHeads(context);
        NDArray query = inputs.get(0).transpose(0, 2, 1, 3); // [B, heads, T, d]
        NDArray key = local.expand(inputs.get(1)).transpose(0, 2, 1, 3); // [B, heads, S, d]
        NDArray value = local.expand(inputs.get(2)).transpose(0, 2, 1, 3);
        NDList given = inputs.subNDList(3);
        given.forEach(each -> AttentionMask.check(context, each));
        AttentionMask mask = AttentionMask.of(given, causal, query, key.getShape().get(2));
        NDArray values =
                training && dropout != null
                        ? dropped(store, mask, query, key, value)
                        : AttentionKernel.of(query, key, value, mask.bias(), mask.isCausalOnly());
        Shape all = values.getShape();
        return mask.clear(values)
                .transpose(0, 2, 1, 3)
                .reshape(all.get(0), all.get(2), all.get(1) * all.get(3));
    }

    /** With some weights set to 0, which needs the weights themselves. */
    private NDArray dropped(
            ParameterStore store, AttentionMask mask, NDArray query, NDArray key, NDArray value) {
        // a number that libtorch keeps for the backward pass, so that it is an array of the pass
        NDArray scale = query.getManager().create((float) (1 / Math.sqrt(shape.headDim())));
        NDArray scaled = query.mul(scale.toType(query.getDataType(), false));
        NDArray scores = mask.addTo(scaled.matMul(key.transpose(0, 1, 3, 2))); // [B, heads, T, S]
        NDArray weights = scores.softmax(-1);
        Shape each = weights.getShape();
        NDArray rows = weights.reshape(each.get(0), each.get(1) * each.get(2) * each.get(3));
        ParallelContext context = RankParameterStore.contextOf(store);
        int ranks = AttentionShape.ranks(context);
        if (ranks > 1) { // a row is made of heads: its cut says which of all weights these are
            Cut cut = AxisPart.heads(shape.heads(), each.get(2) * each.get(3)).cut(ranks);
            context.getPass().setLayout(rows, new ShardedLayout(cut));
        }
        NDArray kept = dropout.forward(store, new NDList(rows), true).singletonOrThrow();
        return kept.reshape(each).matMul(value);
    }
}

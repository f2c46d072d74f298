package io.djltp.conformance;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.nn.Block;

import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.VocabParallelEmbedding;

/**
 * The last layer: plain, of numbers, or the logits of classes, whole or in a fused head. The weight
 * of classes may be that of the embedding.
 */
record SweptEnd(
        long outputs,
        boolean classes,
        boolean fused,
        boolean bias,
        SweptTable tied,
        boolean rowsCut) {

    static SweptEnd draw(Draws draws, boolean classes, SweptTable table, boolean rowsCut) {
        SweptTable tied = classes && table != null && draws.coin() ? table : null;
        return new SweptEnd(
                tied != null ? tied.vocabulary() : classes ? draws.classes(7) : draws.between(1, 6),
                classes,
                draws.coin(),
                draws.coin(),
                tied,
                rowsCut);
    }

    /** Creates the layer, which may use the weight of an embedding. */
    Block create(boolean cut, VocabParallelEmbedding embedding) {
        if (!classes) {
            return linear(outputs);
        }
        if (tied == null) {
            return cut ? head(null) : linear(outputs, bias);
        }
        return sequence(linear(tied.features()), head(embedding));
    }

    private Block head(VocabParallelEmbedding embedding) {
        if (fused) {
            ClassificationHead.Builder head =
                    newHead(outputs).optBias(bias).optBatchShardedInput(rowsCut);
            return (embedding == null ? head : head.optTiedWeight(embedding)).build();
        }
        ColumnParallelLinear.Builder layer =
                newColumn(outputs).optBias(bias).optBatchShardedInput(rowsCut);
        return (embedding == null ? layer : layer.optTiedWeight(embedding)).build();
    }
}

package io.djltp.conformance;

import io.djltp.cut.Cut;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Blocks;

/** An embedding whose vocabulary is cut, with which a network begins. */
record SweptTable(int vocabulary, long features, Cut chosen, boolean padded, boolean tokensCut) {

    static SweptTable draw(Draws draws, boolean tokensCut) {
        int vocabulary = draws.classes(9);
        return new SweptTable(
                vocabulary,
                draws.between(4, 6),
                draws.cut(vocabulary),
                draws.between(0, 2) == 0,
                tokensCut);
    }

    VocabParallelEmbedding create() {
        VocabParallelEmbedding.Builder table =
                Blocks.table(vocabulary, features).optSequenceParallel(tokensCut);
        if (padded) {
            table.optPaddingIndex(0);
        }
        if (chosen != null) {
            table.optShardingStrategy(ShardingStrategy.rowwise(chosen));
        }
        return table.build();
    }
}

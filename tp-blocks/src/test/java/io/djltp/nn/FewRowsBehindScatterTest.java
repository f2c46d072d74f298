package io.djltp.nn;

import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.norm.BatchNorm;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Network;
import io.djltp.testing.PlainEmbedding;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

/**
 * Behind a layer that gives each rank its rows of a sum, a rank without a row gets zeros, which
 * batch statistics leave out: of 2 and 3 rows on 3 and 4 ranks.
 */
public class FewRowsBehindScatterTest {

    private static final int[] ROWS = {7, 2, 3, 6}; // of the batches of the steps
    private static final int FEATURES = 5;

    private static final TrainerKind[] KINDS = {
        new TrainerKind(ParallelMode.MIXED, 3), new TrainerKind(ParallelMode.MIXED, 4)
    };

    private static Block norm(boolean cut) {
        return cut ? SyncBatchNorm.builder().build() : BatchNorm.builder().build();
    }

    private static Block end(boolean cut) {
        return sequence(norm(cut), tanh(), first(cut, 8), tanh(), row(cut, 4));
    }

    /** A bias before a normalization has no gradient but rounding errors. */
    private static Block scattered(boolean cut) {
        return cut
                ? RowParallelLinear.builder()
                        .setUnits(6)
                        .optBias(false)
                        .optBatchShardedOutput(true)
                        .build()
                : linear(6, false);
    }

    private static Block embedding(boolean cut) {
        return cut
                ? VocabParallelEmbedding.builder().setVocabularySize(11).setEmbeddingSize(6).build()
                : new PlainEmbedding(11, 6);
    }

    @Test(timeOut = 60_000)
    public void statisticsBehindARowLayer() {
        Network.of(
                        cut -> sequence(first(cut, 8), tanh(), scattered(cut), end(cut)),
                        HalfSquareLoss::new,
                        (manager, step) ->
                                Network.regression(ROWS[step % 4], FEATURES, 4).make(manager, step))
                .assertEqual(KINDS);
    }

    /** Four ids a row; their greatest features, too, must be found of a row that does not count. */
    @Test(timeOut = 60_000)
    public void statisticsBehindAnEmbedding() {
        Network.of(
                        cut -> sequence(embedding(cut), map(x -> x.max(new int[] {1})), end(cut)),
                        HalfSquareLoss::new,
                        (manager, step) -> {
                            int rows = ROWS[step % 4];
                            NDArray ids = TrainingRun.labels(manager, step, 4 * rows, 11);
                            return new NDList[] {
                                new NDList(ids.reshape(rows, 4)),
                                new NDList(TrainingRun.random(manager, 50 + step, rows, 4))
                            };
                        })
                .assertEqual(KINDS);
    }
}

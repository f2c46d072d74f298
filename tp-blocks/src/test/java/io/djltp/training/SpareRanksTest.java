package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.parallel;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.sum;
import static io.djltp.testing.Blocks.tanh;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.Blocks;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.VocabParallelEmbedding;
import io.djltp.nn.mlp.ParallelMlp;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

/**
 * Ranks without a row in MIXED mode, where a layer scatters a sum over the ranks to their rows:
 * what it gives can be joined with what branches off before it.
 */
public class SpareRanksTest {

    private static final int CLASSES = 9;
    private static final int[] ROWS = {6, 1, 3, 2, 6}; // of the batches of the steps

    private static Block mlp() {
        return ParallelMlp.builder().setUnits(6).setHiddenFeatures(7).optBatchSharded(true).build();
    }

    @Test(timeOut = 60_000)
    public void branchesAroundAnMlp() {
        Network.of(
                        cut ->
                                sequence(
                                        linear(6),
                                        tanh(),
                                        parallel(linear(3), mlp()),
                                        linear(6),
                                        sum(Blocks.identityBlock(), mlp()),
                                        head(CLASSES)),
                        VocabParallelCrossEntropyLoss::new,
                        (manager, step) ->
                                Network.classification(ROWS[step], 5, CLASSES).make(manager, step))
                .assertEqual(
                        new TrainerKind(ParallelMode.MIXED, 2),
                        new TrainerKind(ParallelMode.MIXED, 4));
    }

    /** Several tokens a row. */
    @Test(timeOut = 60_000)
    public void branchesBehindAnEmbedding() {
        Network.of(
                        cut ->
                                sequence(
                                        VocabParallelEmbedding.builder()
                                                .setVocabularySize(11)
                                                .setEmbeddingSize(6)
                                                .build(),
                                        sum(linear(6), mlp()),
                                        head(CLASSES)),
                        VocabParallelCrossEntropyLoss::new,
                        (manager, step) ->
                                new NDList[] {
                                    new NDList(
                                            TrainingRun.labels(manager, step, 2 * ROWS[step], 11)
                                                    .reshape(ROWS[step], 2)),
                                    new NDList(
                                            TrainingRun.labels(
                                                            manager,
                                                            9 + step,
                                                            2 * ROWS[step],
                                                            CLASSES)
                                                    .reshape(ROWS[step], 2))
                                })
                .assertEqual(
                        new TrainerKind(ParallelMode.MIXED, 2),
                        new TrainerKind(ParallelMode.MIXED, 4));
    }
}

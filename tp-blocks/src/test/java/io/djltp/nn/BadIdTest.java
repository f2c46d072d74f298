package io.djltp.nn;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.table;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.Trainer;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.Test;

/**
 * An id outside of the vocabulary is one error, never a row of zeros, on whichever rank the row is,
 * in the first pass and in later ones; then training goes on as though the batch had not been.
 */
public class BadIdTest {

    private static final int VOCABULARY = 13;
    private static final int ROWS = 4;
    private static final int PLACES = 3;

    private static VocabParallelEmbedding embedding() {
        return table(VOCABULARY, 4).build();
    }

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void trainingGoesOn(TrainerKind kind) {
        run(kind, true).assertSame(run(PLAIN, false), 1e-5);
    }

    private static TrainingRun run(TrainerKind kind, boolean bad) {
        return TrainingRun.of(
                kind,
                sequence(embedding(), linear(5)),
                new HalfSquareLoss(),
                new Shape(ROWS, PLACES),
                (trainer, manager, numbers) -> {
                    for (int step = 0; step < 3; step++) {
                        NDArray labels = TrainingRun.random(manager, step, ROWS, PLACES, 5);
                        if (bad) {
                            refused(trainer, manager, labels, step == 0 ? -1 : VOCABULARY);
                        }
                        NDArray ids = ids(manager, step);
                        numbers.add(TrainingRun.step(trainer, ids, labels));
                    }
                });
    }

    private static NDArray ids(NDManager manager, int seed) {
        return TrainingRun.labels(manager, seed, ROWS * PLACES, VOCABULARY).reshape(ROWS, PLACES);
    }

    /** In training and in evaluation, in the first row and in the last. */
    private static void refused(Trainer trainer, NDManager manager, NDArray labels, long id) {
        for (int place : new int[] {1, ROWS * PLACES - 1}) {
            long[] ids = ids(manager, 7).toLongArray();
            ids[place] = id;
            NDArray data = manager.create(ids, new Shape(ROWS, PLACES));
            check(id, () -> TrainingRun.backward(trainer, data, labels));
            check(id, () -> trainer.evaluate(new NDList(data)));
        }
    }

    private static void check(long id, Assert.ThrowingRunnable pass) {
        Refusals.throwsArgument(pass, "the id " + id + ", at the position", "vocabulary of 13");
    }

    /** A head that keeps a gradient from the forward pass to the step, and the same weight. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void underAFusedHead(TrainerKind kind) {
        TrainingRun[] runs = new TrainingRun[2];
        for (int i = 0; i < 2; i++) {
            boolean bad = i == 1;
            VocabParallelEmbedding embedding = embedding();
            Block head =
                    newHead(VOCABULARY)
                            .optTiedWeight(embedding)
                            .optBias(false)
                            .optBatchShardedInput(true)
                            .build();
            runs[i] =
                    TrainingRun.of(
                            kind,
                            sequence(embedding, head),
                            new VocabParallelCrossEntropyLoss(),
                            new Shape(ROWS, PLACES),
                            (trainer, manager, numbers) -> {
                                for (int step = 0; step < 2; step++) {
                                    NDArray labels = ids(manager, 20 + step);
                                    if (bad) {
                                        refused(trainer, manager, labels, VOCABULARY);
                                    }
                                    NDArray ids = ids(manager, step);
                                    numbers.add(TrainingRun.step(trainer, ids, labels));
                                }
                            });
        }
        runs[1].assertSame(runs[0], 1e-6);
    }

    /** As an integer 1.5 would be 1; whole numbers may come in any type. */
    @Test(timeOut = 60_000)
    public void anIdThatIsNoWholeNumber() {
        TrainingRun.of(
                TENSOR_2,
                sequence(embedding(), linear(5)),
                new HalfSquareLoss(),
                new Shape(ROWS, PLACES),
                (trainer, manager, numbers) -> {
                    NDList whole = new NDList(ids(manager, 1).toType(DataType.FLOAT32, true));
                    NDList half = new NDList(whole.singletonOrThrow().add(0.5f));
                    IllegalArgumentException e =
                            Assert.expectThrows(
                                    IllegalArgumentException.class, () -> trainer.evaluate(half));
                    Assert.assertTrue(
                            e.getMessage().matches("(?s).*the id \\d+\\.5, at the position .*"),
                            e.getMessage());
                    Assert.assertEquals(
                            trainer.evaluate(whole).head().toFloatArray(),
                            trainer.evaluate(new NDList(ids(manager, 1))).head().toFloatArray());
                });
    }

    @Test(timeOut = 60_000)
    public void theErrorNamesRowsAndRank() {
        TrainingRun.of(
                DATA_2,
                sequence(embedding(), linear(5)),
                new HalfSquareLoss(),
                new Shape(ROWS, PLACES),
                (trainer, manager, numbers) -> {
                    long[] ids = new long[ROWS * PLACES];
                    ids[ROWS * PLACES - 1] = 99;
                    NDList data = new NDList(manager.create(ids, new Shape(ROWS, PLACES)));
                    IllegalArgumentException e =
                            Assert.expectThrows(
                                    IllegalArgumentException.class, () -> trainer.evaluate(data));
                    Assert.assertTrue(
                            e.getMessage()
                                    .endsWith(
                                            "at the position [1, 2] of ids (2, 3): the ids of a"
                                                    + " vocabulary of 13 are the whole numbers 0"
                                                    + " to 12. It is in the rows"
                                                    + " 2 to 3 of the batch, which rank 1 has"),
                            e.getMessage());
                });
    }
}

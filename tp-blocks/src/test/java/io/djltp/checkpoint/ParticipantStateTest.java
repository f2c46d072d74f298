package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.training.loss.Loss;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.internal.rank.StepParticipants;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.util.List;

/** A participant that the library does not know is saved and restored by what it says of itself. */
public class ParticipantStateTest {

    private static final Task TASK =
            new Task(
                    () -> sequence(linear(6), tanh(), new CountedRows(11)),
                    Loss::l2Loss,
                    () -> Configs.sgd(0.1f),
                    (manager, step) -> TrainingRun.random(manager, step, 7, 5),
                    (manager, step) -> TrainingRun.random(manager, 50 + step, 7, 11));

    /** On other ranks each time; on those of the third it is saved before it is made. */
    @Test(timeOut = 60_000)
    public void itsArraysAreCutAsItSays() {
        StoppedRun.inFolder(
                root -> {
                    TrainerKind two = TENSOR_2;
                    StoppedRun.saved(two, TASK, List.of(2), root.resolve("first"));
                    StoppedRun.run(
                            MIXED_3,
                            TASK,
                            7,
                            2,
                            4,
                            (trainer, state, step) -> {
                                if (step == 2) {
                                    StoppedRun.restore(state, root.resolve("first"), 2);
                                    Assert.assertTrue(participants(trainer, 0).asMap().isEmpty());
                                    StoppedRun.save(state, root.resolve("again"));
                                } else {
                                    assertCounts(trainer, 3);
                                }
                            });
                    for (TrainerKind kind : List.of(TENSOR_4, DATA_2, MESH_2X2)) {
                        StoppedRun.run(
                                kind,
                                TASK,
                                7,
                                2,
                                5,
                                (trainer, state, step) -> {
                                    if (step == 2) {
                                        StoppedRun.restore(state, root.resolve("again"), 2);
                                    } else {
                                        assertCounts(trainer, step);
                                    }
                                });
                    }
                });
    }

    /** One that is there gets its state at once. */
    @Test(timeOut = 60_000)
    public void itGoesBackWithTheTrainer() {
        TrainerKind kind = TENSOR_3;
        StoppedRun whole = StoppedRun.whole(kind, TASK, 4);
        StoppedRun.inFolder(
                folder -> {
                    StoppedRun run =
                            StoppedRun.run(
                                    kind,
                                    TASK,
                                    42,
                                    0,
                                    4,
                                    (trainer, state, step) -> {
                                        if (step == 2) {
                                            StoppedRun.save(state, folder);
                                            for (int i = 0; i < 2; i++) {
                                                TrainingRun.step(
                                                        trainer,
                                                        TASK.data().make(trainer.getManager(), 9),
                                                        TASK.labels()
                                                                .make(trainer.getManager(), 9));
                                            }
                                            assertCounts(trainer, 4);
                                            StoppedRun.restore(state, folder, 2);
                                            assertCounts(trainer, 2);
                                        }
                                    });
                    run.assertEndOf(whole, "gone back");
                });
    }

    private static StepParticipants participants(ParallelTrainer trainer, int rank) {
        return trainer.getRanks().getContext(rank).getParticipants();
    }

    private static void assertCounts(ParallelTrainer trainer, int number) {
        for (int rank = 0; rank < trainer.getRanks().size(); rank++) {
            CountedRows.Counts counts =
                    (CountedRows.Counts) participants(trainer, rank).iterator().next();
            Assert.assertTrue(counts.has(number), "rank " + rank + " after step " + number);
        }
    }
}

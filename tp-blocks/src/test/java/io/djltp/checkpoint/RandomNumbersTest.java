package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_4;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.nn.ParallelDropout;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.List;

/** Conformance case 23, its checkpoint: masks go on where they were, on any ranks. */
public class RandomNumbersTest {

    private static final int UNITS = 31;

    /** Masks in a region that is cut, and at the end where all is whole. */
    private static Block masked() {
        return sequence(
                linear(6),
                head(8),
                ParallelDropout.builder().optRate(0.3f).build(),
                row(true, UNITS),
                ParallelDropout.builder().optRate(0.5f).build());
    }

    private static Task task() {
        return new Task(
                RandomNumbersTest::masked,
                Loss::l2Loss,
                () -> Configs.sgd(0.1f),
                (manager, step) -> TrainingRun.random(manager, step, 7, 5),
                (manager, step) -> TrainingRun.random(manager, 50 + step, 7, UNITS));
    }

    @DataProvider
    public Object[][] kinds() {
        return new Object[][] {{TENSOR_2}, {TENSOR_4}, {MIXED_3}, {DATA_1}, {MESH_2X2}};
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void masksGoOn(TrainerKind to) {
        StoppedRun.inFolder(
                folder -> {
                    List<String> expected = masks(TENSOR_2, 42, 0, state -> {});
                    Assert.assertNotEquals(expected.get(3), expected.get(2));
                    Assert.assertNotEquals(masks(to, 7, 0, state -> {}).get(0), expected.get(0));
                    StoppedRun.saved(TENSOR_2, task(), List.of(2), folder);
                    List<String> resumed =
                            masks(to, 7, 2, state -> StoppedRun.restore(state, folder, 2));
                    Assert.assertEquals(resumed, expected.subList(2, 4));
                });
    }

    /** What is done before the first step. */
    @FunctionalInterface
    private interface Start {
        void with(TrainingState state) throws java.io.IOException;
    }

    /** Returns which outputs of each step are dropped. */
    private static List<String> masks(TrainerKind kind, int seed, int from, Start start) {
        List<String> masks = new ArrayList<>();
        Task task = task();
        StoppedRun.run(
                kind,
                task,
                seed,
                from,
                from + 1,
                (trainer, state, first) -> {
                    start.with(state);
                    for (int step = from; step < 4; step++) {
                        masks.add(mask(trainer, task, step));
                    }
                });
        return masks;
    }

    private static String mask(ParallelTrainer trainer, Task task, int step) {
        NDArray data = task.data().make(trainer.getManager(), step);
        StringBuilder dropped = new StringBuilder();
        for (float each : trainer.forward(new NDList(data)).head().toFloatArray()) {
            dropped.append(each == 0 ? '-' : 'x');
        }
        return dropped.toString();
    }
}

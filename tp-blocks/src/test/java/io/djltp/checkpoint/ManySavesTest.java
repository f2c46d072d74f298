package io.djltp.checkpoint;

import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.ndarray.NDManager;

import io.djltp.checkpoint.StateWriter.PendingSave;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Many saves hold no more than a few: not one array, and of a thousand ({@code -Dsaves=1000}) no
 * native memory.
 */
public class ManySavesTest {

    private static final int SAVES = Integer.getInteger("saves", 24);
    private static final long SLACK_KIB = 4 * 1024;

    @Test(timeOut = 500_000)
    public void savesHoldNothing() {
        List<Integer> arrays = new ArrayList<>();
        List<Long> memory = new ArrayList<>();
        StoppedRun.inFolder(
                path -> {
                    try (CheckpointFolder folder = CheckpointFolder.open(path)) {
                        StoppedRun.run(
                                TENSOR_2,
                                ResumedTasks.SAMPLED_HEAD.task(),
                                42,
                                0,
                                SAVES + 1,
                                (trainer, state, step) -> {
                                    if (step > 0) {
                                        save(trainer, state, folder);
                                        arrays.add(arrays());
                                        memory.add(residentKiB());
                                    }
                                });
                    }
                });
        Assert.assertEquals(arrays.get(SAVES - 1), arrays.get(9), "live arrays: " + arrays);
        if (SAVES >= 1000) {
            long growth = memory.get(SAVES - 1) - memory.get(299);
            Assert.assertTrue(growth < SLACK_KIB, growth + " KiB more: " + memory);
        }
    }

    private static void save(ParallelTrainer trainer, TrainingState state, CheckpointFolder folder)
            throws IOException {
        PendingSave save = StoppedRun.begin(state, folder);
        Assert.assertTrue(save.await(), "" + save.getFailure());
        folder.prune(2);
        Assert.assertEquals(save.getStep(), trainer.getState().getStep());
    }

    /** Of the manager above all others. */
    private static int arrays() {
        try (NDManager manager = NDManager.newBaseManager()) {
            return manager.getParentManager().getManagedArrays().size();
        }
    }

    private static long residentKiB() throws IOException {
        Path status = Path.of("/proc/self/status");
        if (!Files.isReadable(status)) {
            return 0; // not on Linux
        }
        System.gc(); // what hangs on unreachable objects is no leak
        return Files.readAllLines(status).stream()
                .filter(line -> line.startsWith("VmRSS:"))
                .mapToLong(line -> Long.parseLong(line.replaceAll("\\D", "")))
                .sum();
    }
}

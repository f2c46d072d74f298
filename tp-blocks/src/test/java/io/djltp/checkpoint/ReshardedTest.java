package io.djltp.checkpoint;

import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** A checkpoint with another number of parts is the same checkpoint, whatever the heads keep. */
public class ReshardedTest {

    private static final int STEP = 3;
    private static final int STEPS = 6;
    private static final List<TrainerKind> KINDS = List.of(TENSOR_2, DATA_2, MIXED_3, MESH_2X2);

    @DataProvider
    public Object[][] cases() {
        List<Object[]> cases = new ArrayList<>();
        for (ResumedTasks each : ResumedTasks.values()) {
            for (TrainerKind kind : KINDS) {
                if (isTheSameElsewhere(each, kind)) {
                    cases.add(new Object[] {each, kind});
                }
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /**
     * DJL's batch norm normalizes a rank's own rows; a whole head has not memory for the margin.
     */
    private static boolean isTheSameElsewhere(ResumedTasks task, TrainerKind kind) {
        return switch (task) {
            case BATCH_NORMS -> kind.mode() == ParallelMode.TENSOR;
            case MARGIN_HEAD -> kind.mode() != ParallelMode.DATA;
            default -> true;
        };
    }

    /** On the ranks before in every bit; on as many ranks as there are parts, the same training. */
    @Test(dataProvider = "cases", timeOut = 120_000)
    public void itIsResumedAtAnySize(ResumedTasks of, TrainerKind kind) {
        Task task = of.task();
        StoppedRun whole = StoppedRun.whole(kind, task, STEPS);
        StoppedRun.inFolder(
                root -> {
                    Path saved = root.resolve("saved");
                    StoppedRun.saved(kind, task, List.of(STEP), saved);
                    for (int parts : new int[] {1, 3, 4}) {
                        String what = of + " of " + kind + " in " + parts + " parts";
                        Path other = root.resolve("" + parts);
                        reshard(saved, other, parts);
                        StoppedRun.resumed(kind, task, STEP, STEPS, other).assertEndOf(whole, what);
                        StoppedRun.resumed(at(parts), task, STEP, STEPS, other)
                                .assertCloseToEndOf(whole, 1e-5, what);
                        Path back = root.resolve(parts + " and 2");
                        reshard(other, back, 2);
                        StoppedRun.resumed(kind, task, STEP, STEPS, back).assertEndOf(whole, what);
                        if (parts > 1) { // what a head has kept, before a forward pass has come
                            Path again = root.resolve("again on " + parts);
                            StoppedRun.savedAgain(at(parts), task, STEP, saved, again);
                            StoppedRun.resumed(kind, task, STEP, STEPS, again)
                                    .assertEndOf(whole, what + ", saved there");
                        }
                    }
                });
    }

    private static TrainerKind at(int ranks) {
        return new TrainerKind(ParallelMode.TENSOR, ranks);
    }

    private static void reshard(Path from, Path to, int parts) throws IOException {
        try (CheckpointFolder source = CheckpointFolder.read(from);
                Checkpoint checkpoint = source.openStep(STEP)) {
            checkpoint.reshard(to, parts).close();
        }
    }
}

package io.djltp.checkpoint;

import io.djltp.rank.DeviceMesh;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.training.JobProcess;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Each process of a job writes its own parts, and reads what its own ranks hold. */
public class RestoringInProcessesTest {

    private static final int SECONDS = 90;

    /** A job saves after each step; three others go on from its checkpoints. */
    @Test(timeOut = 120_000)
    public void processesGoOnFromWhatOthersWrote() throws Exception {
        Path root = TestFolder.create();
        check(root);
    }

    private static void check(Path root) throws Exception {
        String tensor = "1x4";
        String mesh = "2x2";
        List<String> ports = JobProcess.ports(4);
        List<String> arguments = new ArrayList<>();
        String[][] jobs = {{tensor, "0"}, {tensor, "1"}, {mesh, "3"}, {tensor, "2"}};
        for (int i = 0; i < jobs.length; i++) {
            String folder = root.resolve("job").toString();
            arguments.addAll(List.of(jobs[i][0], folder, jobs[i][1], ports.get(i)));
        }
        List<List<String>> lines = JobProcess.run(RestoringProcess.class, SECONDS, arguments, 0, 0);
        for (List<String> ofProcess : lines) {
            List<String> losses = losses(ofProcess);
            List<String> whole = losses.subList(0, 4);
            Assert.assertEquals(losses.subList(4, 7), whole.subList(1, 4), "from 1");
            Assert.assertEquals(losses.subList(8, 10), whole.subList(2, 4), "from 2");
            assertClose(losses.get(7), whole.get(3));
        }
        // the same in one process
        StoppedRun alone =
                StoppedRun.whole(
                        new TrainerKind(null, 4, DeviceMesh.parse(tensor), 0, null, false, null),
                        ResumedTasks.SAMPLED_HEAD.task(),
                        RestoringProcess.STEPS);
        for (int i = 0; i < RestoringProcess.STEPS; i++) {
            Assert.assertEquals(lossOf(losses(lines.get(0)).get(i)), alone.losses.get(i), 1e-5f);
        }
        try (CheckpointFolder folder = CheckpointFolder.read(root.resolve("job"));
                Checkpoint checkpoint = folder.openStep(3)) {
            Assert.assertEquals(checkpoint.getFiles().size(), 4);
            Assert.assertEquals(checkpoint.verify(), List.of());
        }
    }

    private static List<String> losses(List<String> lines) {
        return lines.stream().filter(line -> line.startsWith("LOSS")).toList();
    }

    private static float lossOf(String line) {
        return Float.intBitsToFloat(Integer.parseInt(line.split(" ")[2]));
    }

    private static void assertClose(String actual, String expected) {
        Assert.assertEquals(lossOf(actual), lossOf(expected), 1e-5f * lossOf(expected));
    }
}

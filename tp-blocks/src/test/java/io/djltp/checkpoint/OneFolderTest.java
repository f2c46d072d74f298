package io.djltp.checkpoint;

import ai.djl.util.Utils;

import io.djltp.training.JobProcess;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The processes of a job have one folder of checkpoints, or all of them say whose is another; and
 * what only one of them refuses, all refuse with its words.
 */
public class OneFolderTest {

    private static final int SECONDS = 90;
    private static final String PROCESS_1 = "process 1 (rank 1, pid ";

    private final List<String> arguments = new ArrayList<>();
    private List<String> ports;

    private void add(boolean resume, String option, Path zero, Path one) {
        String port = ports.get(arguments.size() / OneFolderProcess.ARGUMENTS);
        arguments.addAll(List.of(port, "" + resume, option, "" + zero, "" + one));
    }

    @Test(timeOut = 120_000)
    public void allProcessesSayTheSame() throws Exception {
        Path root = Files.createTempDirectory("one-folder");
        try {
            ports = JobProcess.ports(8);
            Path shared = root.resolve("shared");
            Path stale = Files.createDirectory(root.resolve("stale"));
            Files.writeString(stale.resolve(".lock"), "{\"run\":\"0123abcd\"}\n");
            Path file = Files.writeString(root.resolve("file"), "no folder");
            add(false, "same", shared, shared);
            add(false, "same", root.resolve("new"), file);
            add(false, "same", root.resolve("new"), root.resolve("missing"));
            add(true, "same", file, shared);
            add(true, "same", shared, root.resolve("missing"));
            add(true, "same", shared, stale);
            add(true, "other", shared, shared);
            add(true, "same", shared, shared);
            check(root, run(root));
            Assert.assertFalse(Files.exists(root.resolve("missing")));
        } finally {
            Utils.deleteQuietly(root);
        }
    }

    private static void check(Path root, List<String> said) {
        String other = " is not the folder that the process of rank 0 has opened: give all";
        String[] expected = {
            "JOB 1 true",
            "IllegalStateException No checkpoints can be written: " + PROCESS_1,
            "IllegalStateException No checkpoints can be written: " + PROCESS_1,
            "CheckpointException process 0 (rank 0, pid ",
            "CheckpointException " + PROCESS_1,
            "CheckpointException " + PROCESS_1,
            "JobFailedException the settings of the CheckpointListeners differ",
            "JOB 2 true" // nothing of those that were refused is left
        };
        String[] reasons = {
            "",
            root.resolve("file") + other,
            root.resolve("missing") + other,
            "could not use the folder of the checkpoints: Checkpoints cannot be written to ",
            root.resolve("missing") + other,
            root.resolve("stale") + other,
            "optOptions option is same on process 0",
            ""
        };
        Assert.assertEquals(said.size(), expected.length, "" + said);
        for (int i = 0; i < expected.length; i++) {
            Assert.assertTrue(said.get(i).contains(expected[i]), said.get(i));
            Assert.assertTrue(said.get(i).contains(reasons[i]), said.get(i));
        }
    }

    /** Returns what became of each job, which is the same in both processes. */
    private List<String> run(Path root) throws Exception {
        List<List<String>> said = new ArrayList<>();
        for (List<String> lines :
                JobProcess.runTwo(OneFolderProcess.class, root, SECONDS, arguments)) {
            said.add(lines.stream().filter(line -> line.startsWith("JOB")).toList());
        }
        Assert.assertEquals(said.get(1), said.get(0));
        return said.get(0);
    }
}

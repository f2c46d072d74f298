package io.djltp.checkpoint;

import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.training.JobProcess;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The processes of a job have one folder of checkpoints and the same settings, or all of them say
 * whose is another before the folder is touched; and what only one of them cannot do, all say with
 * its words.
 */
public class ListenersOfProcessesTest {

    private static final int SECONDS = 120;

    private final List<String> arguments = new ArrayList<>();
    private final List<String[]> expected = new ArrayList<>();

    private void add(boolean resume, String setting, Path zero, Path one, String... said) {
        arguments.addAll(List.of("" + resume, setting, "" + zero, "" + one));
        expected.add(said);
    }

    @Test(timeOut = 180_000)
    public void allProcessesSayTheSame() throws Exception {
        Path root = TestFolder.create();
        arguments.addAll(JobProcess.ports(1));
        addFolders(root);
        addSettings(root);
        List<List<String>> said = new ArrayList<>();
        for (List<String> lines : JobProcess.run(ListenerProcess.class, SECONDS, arguments, 0, 0)) {
            said.add(lines.stream().filter(line -> line.startsWith("JOB")).toList());
        }
        Assert.assertEquals(said.get(1), said.get(0));
        Assert.assertEquals(said.get(0).size(), expected.size(), "" + said.get(0));
        for (int i = 0; i < expected.size(); i++) {
            Refusals.assertContains(said.get(0).get(i), expected.get(i));
        }
        Assert.assertFalse(Files.exists(root.resolve("missing")));
        Assert.assertFalse(Files.exists(root.resolve("untouched")));
    }

    private void addFolders(Path root) throws Exception {
        Path shared = root.resolve("shared");
        Path link = Files.createSymbolicLink(root.resolve("link"), shared);
        Path stale = Files.createDirectory(root.resolve("stale"));
        Files.writeString(stale.resolve(".lock"), "0123abcd, process 1 on a host\n");
        Path file = Files.writeString(root.resolve("file"), "no folder");
        Path missing = root.resolve("missing");
        String other = " is not the folder that the process of rank 0 has opened: give all";
        String begun = "JOB IllegalStateException No checkpoints can be written: ";
        String one = "process 1 (rank 1, pid ";
        add(false, "same", shared, shared, "JOB 1 true");
        add(false, "same", root.resolve("new"), file, begun + one, file + other);
        add(false, "same", root.resolve("new"), missing, begun + one, missing + other);
        add(
                true,
                "same",
                file,
                shared,
                "JOB CheckpointException process 0 (rank 0, pid ",
                "could not use the folder of the checkpoints: Checkpoints cannot be written to ");
        add(true, "same", shared, missing, "JOB CheckpointException " + one, missing + other);
        add(true, "same", shared, stale, "JOB CheckpointException " + one, stale + other);
        // nothing of those that threw is left; the folder may have another path
        add(true, "same", shared, link, "JOB 2 true");
    }

    private void addSettings(Path root) {
        Path shared = root.resolve("shared");
        String[][] settings = {
            {"optEverySteps", "1", "2"},
            {"optEveryMinutes", "not set", "1.5"},
            {"optEveryEpoch", "false", "true"},
            {"optKeep", "3", "5"},
            {"optResumeFrom", "not set", "1"},
            {"optSignals", "[]", "[USR1]"},
            {"optOptions seed", "1", "2"},
            {"the names of optState", "[]", "[more]"}
        };
        Assert.assertEquals(settings.length + 1, ListenerProcess.SETTINGS.size());
        for (String[] each : settings) {
            String[] said = {
                "JOB JobFailedException the settings of the CheckpointListeners differ between the"
                        + " processes: "
                        + each[0]
                        + " is "
                        + each[1]
                        + " on process 0 (",
                " and " + each[2] + " on process 1 (",
                ": build them with the same settings on all processes"
            };
            add(true, each[0], shared, shared, said);
            add(false, each[0], root.resolve("untouched"), root.resolve("untouched"), said);
        }
        add(true, "same", shared, shared, "JOB 3 true");
    }
}

package io.djltp.examples;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Output that cannot be written is told, and makes the exit status that of a failure. */
public class FullOutputTest {

    private static final String ERROR =
            "tp: not all of the output could be written: is the disk full, or has the program that"
                    + " reads it ended?\n";

    /** What prints by picocli, and by itself. */
    @DataProvider
    public Object[][] commands() {
        return new Object[][] {
            {"--version"}, {"train --help"}, {"generate-completion"}, {"plan lemmatiser"},
        };
    }

    @Test(dataProvider = "commands", timeOut = 120_000)
    public void theDiskIsFull(String command) throws Exception {
        if (!Files.exists(Path.of("/dev/full"))) {
            throw new SkipException("There is no /dev/full");
        }
        ForkedTp.Result result = run("exec \"$@\" > /dev/full", command);
        Assert.assertEquals(result.err(), ERROR);
        Assert.assertEquals(result.status(), 1);
    }

    @Test(timeOut = 120_000)
    public void theReaderHasEnded() throws Exception {
        ForkedTp.Result result =
                run(
                        "d=$(mktemp -d) && mkfifo $d/pipe && exec 3<>$d/pipe && exec 4>$d/pipe"
                                + " && rm -r $d && exec 3<&- && exec \"$@\" >&4",
                        "train --help");
        Assert.assertEquals(result.err(), ERROR);
        Assert.assertEquals(result.status(), 1);
    }

    /** A wrong option stays one. */
    @Test(timeOut = 120_000)
    public void aWrongOptionPrintsNothing() throws Exception {
        ForkedTp.Result result = run("exec \"$@\" > /dev/full", "plan --no-such-option");
        Assert.assertEquals(result.status(), 2);
        Assert.assertFalse(result.err().contains(ERROR), result.err());
    }

    private static ForkedTp.Result run(String shell, String command) throws Exception {
        List<String> words = new ArrayList<>(List.of("sh", "-c", shell, "sh"));
        words.addAll(ForkedTp.command());
        words.addAll(List.of(command.split(" ")));
        try (ForkedTp tp = ForkedTp.script(words, Map.of())) {
            return tp.await();
        }
    }
}

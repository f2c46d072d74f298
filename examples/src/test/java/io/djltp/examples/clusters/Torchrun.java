package io.djltp.examples.clusters;

import org.testng.SkipException;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The torchrun of the system. */
public final class Torchrun {

    /** The Python that has it. */
    public static final String PYTHON = "/usr/bin/python3";

    /** What starts it. */
    public static final String COMMAND = PYTHON + " -m torch.distributed.run";

    private Torchrun() {}

    /**
     * Returns what a user calls, or {@link #COMMAND} where only the module is installed.
     *
     * @return the command
     */
    static String script() {
        String script = "/usr/bin/torchrun";
        return Files.isExecutable(Path.of(script)) ? script : COMMAND;
    }

    /**
     * Skips the test where there is none.
     *
     * @throws IOException if Python cannot be started
     * @throws InterruptedException if the time of the test is over
     */
    public static void skipWithout() throws IOException, InterruptedException {
        String remedy = "There is no PyTorch for Python: apt-get install python3-torch (650 MB)";
        if (!Files.isExecutable(Path.of(PYTHON))) {
            throw new SkipException(remedy);
        }
        ProcessBuilder search =
                new ProcessBuilder(
                        PYTHON,
                        "-c",
                        "from importlib.util import find_spec; import sys;"
                                + " sys.exit(find_spec('torch') is None)");
        search.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD);
        if (search.start().waitFor() != 0) {
            throw new SkipException(remedy);
        }
    }
}

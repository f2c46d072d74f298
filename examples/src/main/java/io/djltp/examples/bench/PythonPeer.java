package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;

import java.io.IOException;
import java.net.URISyntaxException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/**
 * A script of {@code examples/peers} and the Python that runs it.
 *
 * @param python the command
 * @param version of its PyTorch
 * @param script the file
 */
record PythonPeer(String python, String version, Path script) {

    private static final int SECONDS = 60; // a first import reads some hundred MB

    /**
     * Finds a Python with PyTorch.
     *
     * @param wanted the command, or {@code null} for the first that has it
     * @param script the name of the script
     * @return the two, or nothing without PyTorch
     */
    static Optional<PythonPeer> find(String wanted, String script) {
        Stream<String> commands =
                wanted != null ? Stream.of(wanted) : Stream.of("python3", "/usr/bin/python3");
        return commands.map(each -> ask(each, script)).filter(Objects::nonNull).findFirst();
    }

    private static PythonPeer ask(String python, String script) {
        try {
            Process process =
                    new ProcessBuilder(python, "-c", "import torch; print(torch.__version__)")
                            .redirectError(ProcessBuilder.Redirect.DISCARD)
                            .start();
            process.getOutputStream().close();
            if (!process.waitFor(SECONDS, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                return null;
            }
            String version =
                    new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            return process.exitValue() == 0 && !version.isBlank()
                    ? new PythonPeer(python, version.trim(), file(script))
                    : null;
        } catch (IOException e) {
            return null; // there is no such command
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new WorkerFailedException("The command was interrupted");
        }
    }

    private static Path file(String script) {
        URL url = PythonPeer.class.getResource("/peers/" + script);
        try {
            if (url != null && url.getProtocol().equals("file")) {
                return Path.of(url.toURI());
            }
        } catch (URISyntaxException e) {
            throw new IllegalStateException(e);
        }
        throw new BadInputException(
                "examples/peers/" + script + " is no file here: run ./tp of a clone");
    }

    /** Returns what starts it; without files of its own beside the script. */
    List<String> command() {
        return List.of(python, "-B", script.toString());
    }
}

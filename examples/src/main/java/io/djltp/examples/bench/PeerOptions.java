package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.OptimizerName;

import picocli.CommandLine.Option;

import java.io.IOException;
import java.io.PrintStream;
import java.net.URISyntaxException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** Which peers take their turns. */
final class PeerOptions {

    @Option(
            names = "--peers",
            split = ",",
            description =
                    "What takes turns with this library, any of ${COMPLETION-CANDIDATES} (djl; of"
                            + " operations between ranks, none).")
    private List<Peer> peers = List.of(Peer.DJL);

    @Option(
            names = "--python",
            description =
                    "Python with PyTorch, for its peers (the first of python3 and /usr/bin/python3"
                            + " that has it).")
    private String python;

    /** Returns whether stock DJL takes turns. */
    boolean hasDjl() {
        return peers.contains(Peer.DJL) || peers.contains(Peer.ALL);
    }

    /**
     * Finds PyTorch, if it is to take turns.
     *
     * @param bench what is measured
     * @param script the script of ours that measures it, or {@code null} if there is none
     * @param out where it is said that there is none, if it was not asked for by name
     * @return PyTorch, or nothing if it is left out
     */
    Optional<PythonPeer> findPyTorch(String bench, String script, PrintStream out) {
        boolean named = peers.contains(Peer.PYTORCH);
        if (!named && !peers.contains(Peer.ALL)) {
            return Optional.empty();
        }
        Optional<PythonPeer> found = Optional.empty();
        String problem = "tp bench " + bench + " has no PyTorch side: head, layer, collective have";
        if (script != null) {
            found = PythonPeer.find(python, script);
            problem =
                    (python == null
                                    ? "neither python3 nor /usr/bin/python3 has"
                                    : python + " does not have")
                            + " PyTorch: apt-get install python3-torch libopenblas0-pthread, or"
                            + " name another with --python";
        }
        if (found.isEmpty()) {
            if (named) {
                throw new BadInputException("--peers pytorch: " + problem);
            }
            out.println("PyTorch is left out: " + problem);
        }
        return found;
    }

    /** Returns whether PyTorch has an optimizer: it has Adagrad, but none with a sum for a row. */
    static boolean isOfPyTorch(OptimizerName optimizer) {
        return optimizer != OptimizerName.ADAGRAD;
    }

    /**
     * Refuses what PyTorch, named as a peer, has no optimizer for.
     *
     * @param optimizers what is measured
     * @param out where it is said what it is left out of, if it was not asked for by name
     */
    void checkOptimizers(List<OptimizerName> optimizers, PrintStream out) {
        if (optimizers.stream().allMatch(PeerOptions::isOfPyTorch)) {
            return;
        }
        String problem = "PyTorch has no row-wise Adagrad, which --optimizer adagrad is";
        if (peers.contains(Peer.PYTORCH)) {
            throw new BadInputException(
                    "--peers pytorch: " + problem + "; measure adagrad with --peers djl");
        }
        out.println("PyTorch is left out of adagrad: " + problem);
    }

    /** What this library is measured beside. */
    enum Peer {
        /** DJL's own layers, loss and trainer. */
        DJL,
        /** PyTorch, as {@code python3} has it. */
        PYTORCH,
        /** Every one that this machine has. */
        ALL
    }

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
}

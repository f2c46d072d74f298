package io.djltp.examples.bench;

import io.djltp.examples.BadInputException;
import io.djltp.examples.OptimizerName;

import picocli.CommandLine.Option;

import java.io.PrintStream;
import java.util.List;
import java.util.Optional;

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
                    (python == null ? "neither python3 nor /usr/bin/python3" : python + " does not")
                            + (python == null ? " has" : " have")
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
}

package io.djltp.training;

import java.util.ArrayList;
import java.util.List;

/**
 * Terms that a loop of the caller's own has computed from predictions, and from losses of
 * evaluations. To the caller both are values: where DJL's trainer has a graph of them, which is
 * while a gradient collector is open, they are leaves that show in what is to be differentiated.
 */
final class TermsOfPredictions {

    private final List<ParallelOutput> evaluated = new ArrayList<>();

    /** Ends the recording of evaluations, as their collector was closed. */
    void end() {
        evaluated.forEach(output -> output.setShown(false));
        evaluated.clear();
    }

    /** Adds an evaluation within a gradient collector. */
    void add(ParallelOutput output) {
        evaluated.removeIf(before -> !before.isPending());
        evaluated.add(output);
        output.setShown(true);
    }

    /**
     * Checks what is to be differentiated.
     *
     * @param graph its graph
     * @param trained the forward passes that are trained on
     * @throws IllegalArgumentException if the graph has something whose gradient would be lost
     */
    void check(CallersGraph graph, List<ParallelOutput> trained) {
        for (ParallelOutput output : trained) {
            output.getPredictions().stream()
                    .filter(graph::has)
                    .forEach(
                            array -> {
                                throw new IllegalArgumentException(
                                        "A term of what is differentiated was computed from the"
                                                + " predictions "
                                                + array.getShape()
                                                + " outside of the loss: they are values, whose"
                                                + " graph the ranks have. Let the loss of the"
                                                + " training configuration compute the term, such"
                                                + " as one of a SimpleCompositeLoss");
                            });
        }
        for (ParallelOutput output : evaluated) {
            boolean ofLoss = output.find(loss -> graph.has(loss.handle()));
            if (ofLoss || output.getPredictions().stream().anyMatch(graph::has)) {
                throw new IllegalArgumentException(
                        "A term of what is differentiated was computed from predictions of"
                                + " trainer.evaluate(...), or a loss of them, of which ranks have no"
                                + " graph. Let trainer.forward(...) compute the predictions, and"
                                + " trainer.getLoss() the term; or take its stopGradient(), if it"
                                + " needs no gradient");
            }
        }
    }
}

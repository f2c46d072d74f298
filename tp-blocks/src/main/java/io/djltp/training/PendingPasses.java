package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import io.djltp.gradient.PartialAxes;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;

/** The forward passes of a step that were not differentiated yet, and what of them is to be. */
final class PendingPasses {

    private final TermsOfParameters ofParameters;
    private final TermsOfPredictions ofPredictions = new TermsOfPredictions();
    private final List<ParallelOutput> pending = new ArrayList<>();
    private boolean collecting;

    PendingPasses(TermsOfParameters ofParameters) {
        this.ofParameters = ofParameters;
    }

    /** Adds a forward pass that may be differentiated, or an evaluation. */
    void add(ParallelOutput output, boolean training) {
        if (training) {
            forget(false);
            pending.add(output);
        } else if (collecting) {
            ofPredictions.add(output);
        }
    }

    /** Forgets all passes, or those for which no backward pass can come any more. */
    void forget(boolean all) {
        for (Iterator<ParallelOutput> it = pending.iterator(); it.hasNext(); ) {
            ParallelOutput output = it.next();
            if (all || !output.isPending()) {
                output.forget();
                it.remove();
            }
        }
    }

    /** Returns whether a backward pass may come. */
    boolean isOpen() {
        return pending.stream().anyMatch(ParallelOutput::isPending);
    }

    /**
     * Notes that a gradient collector was opened or closed.
     *
     * @throws IllegalStateException if one is opened while another one is open
     */
    void setCollecting(boolean now) {
        if (now && collecting) {
            throw new IllegalStateException(
                    "A gradient collector of this trainer is open, and as under DJL's own trainer"
                            + " only one can be at a time: close it before the next one is made,"
                            + " with try (GradientCollector collector ="
                            + " trainer.newGradientCollector()) { ... }");
        }
        collecting = now;
        if (!now) {
            ofPredictions.end();
        }
    }

    /**
     * Finds the outputs whose losses are to be differentiated, before anything is.
     *
     * @param target what is to be differentiated
     * @return the outputs; none if it has no graph at all
     * @throws IllegalArgumentException if its graph has no loss, or one whose graph is not complete
     *     any more, or something else whose gradient would be lost; no rank has begun then
     * @throws IllegalStateException if its graph has a loss that was closed; no rank has begun then
     */
    List<ParallelOutput> find(NDArray target) {
        List<ParallelOutput> reached = reached(loss -> loss.leaf() == target);
        if (!reached.isEmpty()) {
            return reached; // the loss itself, as in nearly all loops
        }
        try (CallersGraph graph = new CallersGraph(target)) {
            reached = reached(loss -> graph.has(loss.handle()));
            Map<Parameter, PartialAxes> uses = new HashMap<>();
            int losses = 0;
            for (ParallelOutput output : reached) {
                output.getReached().forEach(loss -> uses.putAll(loss.uses()));
                losses += output.getReached().size();
            }
            if (graph.size() > losses) {
                ofPredictions.check(graph, pending);
                checkLosses(losses);
                ofParameters.check(graph, uses);
            }
        }
        return reached;
    }

    private static void checkLosses(int number) {
        if (number == 0) {
            throw new IllegalArgumentException(
                    "backward() needs a loss that trainer.getLoss().evaluate(labels, predictions)"
                            + " has computed from predictions of trainer.forward(...), and that was"
                            + " not differentiated before");
        }
    }

    private List<ParallelOutput> reached(Predicate<LossOfPass> isReached) {
        List<ParallelOutput> reached =
                pending.stream().filter(output -> output.find(isReached)).toList();
        try {
            reached.forEach(ParallelOutput::checkBeforeBackward);
        } catch (IllegalArgumentException | IllegalStateException e) {
            reached.forEach(ParallelOutput::drop);
            throw e;
        }
        return reached;
    }
}

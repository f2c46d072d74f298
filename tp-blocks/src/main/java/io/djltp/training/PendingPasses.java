package io.djltp.training;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** The forward passes of a step that were not differentiated yet, and what of them is to be. */
final class PendingPasses {

    private final List<ParallelOutput> pending = new ArrayList<>();
    private boolean collecting;

    /** Adds a forward pass that may be differentiated. */
    void add(ParallelOutput output) {
        forget(false);
        pending.add(output);
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
    }

    /**
     * Finds the outputs with a loss that the caller's backward pass has reached.
     *
     * @return the outputs
     * @throws IllegalArgumentException if there are none, or one whose graph is not complete any
     *     more, or a gradient of predictions that would be lost; no rank has begun then
     * @throws IllegalStateException if the manager of such a pass was closed; no rank has begun
     *     then
     */
    List<ParallelOutput> findReached() {
        List<ParallelOutput> reached = pending.stream().filter(ParallelOutput::isReached).toList();
        try {
            pending.forEach(ParallelOutput::checkTerms);
            reached.forEach(ParallelOutput::checkBeforeBackward);
        } catch (IllegalArgumentException | IllegalStateException e) {
            reached.forEach(ParallelOutput::drop);
            throw e;
        }
        if (reached.isEmpty()) {
            throw new IllegalArgumentException(
                    "backward() needs a loss that trainer.getLoss().evaluate(labels, predictions)"
                            + " has computed from predictions of trainer.forward(...), and that was"
                            + " not differentiated before");
        }
        return reached;
    }
}

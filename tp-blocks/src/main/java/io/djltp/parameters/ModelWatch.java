package io.djltp.parameters;

import ai.djl.nn.Parameter;

import io.djltp.rank.RankPool;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * Sees what others than the ranks do to the arrays of the model that the ranks train. Libtorch
 * counts how often a tensor was changed: what is not the count after the ranks' own last pass or
 * step is the user's.
 *
 * <p>What was written into a parameter that is not cut comes to all ranks, as under DJL's own
 * trainer. What no rank would see is refused: values in a placeholder, and another array than the
 * ranks have.
 */
public final class ModelWatch {

    private final RankPool ranks;
    private final ParameterReplicas replicas;
    private final PlaceholderWatch placeholders;
    private final Function<Parameter, String> nameOf;
    private final Map<Parameter, WatchedArray> marks = new LinkedHashMap<>(); // of replicas
    private boolean shown; // whether the model has what the ranks have on another device

    ModelWatch(
            RankPool ranks,
            ParameterReplicas replicas,
            PlaceholderWatch placeholders,
            Function<Parameter, String> nameOf) {
        this.ranks = ranks;
        this.replicas = replicas;
        this.placeholders = placeholders;
        this.nameOf = nameOf;
    }

    /** Begins to watch a parameter that was handed out, unless it is watched already. */
    synchronized void begin(Parameter parameter, boolean cut) {
        if (cut) {
            placeholders.begin(parameter);
        } else {
            marks.computeIfAbsent(parameter, WatchedArray::of);
        }
    }

    /** Takes the arrays as they are: the ranks have changed them. No rank is computing. */
    public synchronized void settle() {
        mark();
        shown = false;
    }

    private void mark() {
        marks.replaceAll((parameter, mark) -> mark.now());
    }

    /** Ends the watch: the model has its arrays for itself. */
    synchronized void end() {
        marks.clear();
        placeholders.end();
    }

    /**
     * Gives all ranks what was written into the model since they were done with it. No rank is
     * computing; all processes call it, and have written alike.
     *
     * @throws IllegalStateException if no rank would see what was done to the model
     */
    public synchronized void check() {
        refuse();
        for (Parameter parameter : written()) {
            replicas.spread(parameter, nameOf.apply(parameter));
        }
        mark();
    }

    /**
     * Does so for one process alone, before it saves the model, which then has the ranks' values of
     * what is on another device.
     *
     * @throws IllegalStateException if no rank would see what was done to the model, or ranks of
     *     other processes would have to
     */
    public synchronized void checkAlone() {
        if (ranks.isDistributed()) {
            refuse();
            refuseWritten();
        } else {
            check();
        }
        if (!shown) {
            showAll();
        }
    }

    private void showAll() {
        for (Parameter parameter : marks.keySet()) {
            if (!replicas.isModels(parameter)) {
                replicas.copyBack(parameter);
            }
        }
        mark();
        shown = true;
    }

    private void refuseWritten() {
        List<Parameter> written = written();
        if (!written.isEmpty()) {
            throw new IllegalStateException(
                    "Values were written into the model's array of the parameter "
                            + describe(written, nameOf)
                            + ", which the ranks of other processes get with the next"
                            + " forward(...), evaluate(...) or step(): save the model after that");
        }
    }

    private List<Parameter> written() {
        List<Parameter> written = new ArrayList<>(0);
        marks.forEach(
                (parameter, mark) -> {
                    if (mark.isWrittenTo()) {
                        written.add(parameter);
                    }
                });
        return written;
    }

    private void refuse() {
        refuseReplaced();
        placeholders.check(nameOf);
        List<Parameter> unseen = new ArrayList<>(0);
        for (Parameter parameter : written()) {
            if (!replicas.isModels(parameter)) {
                unseen.add(parameter);
            }
        }
        if (!unseen.isEmpty()) {
            unseen.forEach(replicas::copyBack);
            mark();
            throw new IllegalStateException(
                    "Values were written into the model's array of the parameter "
                            + describe(unseen, nameOf)
                            + " while a ParallelTrainer is open. It is on another device than rank"
                            + " 0, so that the ranks train copies: the values are"
                            + " discarded. Set them before trainer.initialize(...), or close the"
                            + " trainer, set them, and open another");
        }
    }

    private void refuseReplaced() {
        Map<Parameter, String> replaced = new LinkedHashMap<>(0);
        marks.forEach((parameter, mark) -> note(parameter, mark, replaced));
        placeholders.forEach((parameter, mark) -> note(parameter, mark, replaced));
        if (!replaced.isEmpty()) {
            throw new IllegalStateException(
                    "The model's array of the parameter "
                            + describe(List.copyOf(replaced.keySet()), nameOf)
                            + " "
                            + replaced.values().iterator().next()
                            + ", while a ParallelTrainer is open, whose ranks have the values that"
                            + " they train and would not see others. Close the trainer, which puts"
                            + " the trained values into what the model then has; and load or clear"
                            + " the model before the trainer is made, or after it is closed");
        }
    }

    private static void note(
            Parameter parameter, WatchedArray mark, Map<Parameter, String> replaced) {
        String replacement = mark.replacement(parameter);
        if (replacement != null) {
            replaced.put(parameter, replacement);
        }
    }

    /** Names the first of some parameters, and how many others there are. */
    static String describe(List<Parameter> parameters, Function<Parameter, String> nameOf) {
        Parameter first = parameters.get(0);
        String others =
                parameters.size() == 1 ? "" : " and of " + (parameters.size() - 1) + " others";
        return nameOf.apply(first) + " " + first.getShape() + others;
    }
}

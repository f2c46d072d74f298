package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.function.Function;

/**
 * The placeholders that a model holds while ranks train it, and whether somebody has written into
 * one: values that no rank would ever see. They require a gradient, to be seen in graphs.
 */
final class PlaceholderWatch {

    private final NDManager modelManager;
    private final Map<Parameter, WatchedArray> marks = new LinkedHashMap<>();

    PlaceholderWatch(NDManager modelManager) {
        this.modelManager = modelManager;
    }

    /** Begins to watch a placeholder that is there, unless it is watched already. */
    synchronized void begin(Parameter parameter) {
        if (parameter.isInitialized()) {
            marks.computeIfAbsent(parameter, WatchedArray::of).showInGraphs();
        }
    }

    /** Puts a placeholder in the place of what the model holds. */
    synchronized void put(Parameter parameter) {
        NDArray array = parameter.getArray();
        Placeholder.replace(
                parameter, Placeholder.of(modelManager, array.getShape(), array.getDataType()));
        WatchedArray mark = WatchedArray.of(parameter);
        mark.showInGraphs();
        marks.put(parameter, mark);
    }

    /** Puts values in the place of a placeholder. */
    synchronized void replace(Parameter parameter, NDArray values) {
        marks.remove(parameter);
        Placeholder.replace(parameter, values);
    }

    /** Lets somebody look at all that are watched. */
    synchronized void forEach(BiConsumer<Parameter, WatchedArray> looking) {
        marks.forEach(looking);
    }

    /** Ends the watch. */
    synchronized void end() {
        marks.clear();
    }

    /**
     * Refuses what was written into placeholders, which are then as they were.
     *
     * @param nameOf the name of a parameter in the model
     * @throws IllegalStateException if something was
     */
    synchronized void check(Function<Parameter, String> nameOf) {
        marks.values().forEach(WatchedArray::showInGraphs); // it may have been frozen meanwhile
        List<Parameter> written =
                marks.entrySet().stream()
                        .filter(mark -> mark.getValue().isWrittenTo())
                        .map(Map.Entry::getKey)
                        .toList();
        if (written.isEmpty()) {
            return;
        }
        String names = ModelWatch.describe(written, nameOf);
        written.forEach(this::put);
        throw new IllegalStateException(
                "Values were written into the model's array of the parameter "
                        + names
                        + " while a ParallelTrainer is open. Its ranks hold a part each, and the"
                        + " array is a placeholder: the values are discarded, and the ranks keep"
                        + " their own. Set them before trainer.initialize(...), after"
                        + " block.initialize(...) or model.load(...), which the trainer takes over;"
                        + " or close the trainer, set them, and open another; or resume from a"
                        + " checkpoint");
    }
}

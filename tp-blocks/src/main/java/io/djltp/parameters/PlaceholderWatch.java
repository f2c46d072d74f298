package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.torch.Autograd;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * The placeholders that a model holds while ranks train it, and whether somebody has written into
 * one: values that no rank would ever see. They require a gradient, to be seen in graphs.
 */
final class PlaceholderWatch {

    private final NDManager modelManager;
    private final Map<Parameter, Mark> marks = new LinkedHashMap<>();

    PlaceholderWatch(NDManager modelManager) {
        this.modelManager = modelManager;
    }

    /** A placeholder, and how often it had been changed when it was put there. */
    private record Mark(NDArray array, long version) {

        static Mark of(Parameter parameter) {
            Mark mark = new Mark(parameter.getArray(), Autograd.version(parameter.getArray()));
            mark.showInGraphs();
            return mark;
        }

        /** What is computed from a placeholder is NaN, that of a frozen parameter, too. */
        void showInGraphs() {
            boolean open = !((NativeResource<?>) array).isReleased();
            if (open && array.getDataType().isFloating() && !array.hasGradient()) {
                array.setRequiresGradient(true);
            }
        }

        boolean isWrittenTo(Parameter parameter) {
            return parameter.isInitialized()
                    && parameter.getArray() == array // a file may have been loaded meanwhile
                    && !((NativeResource<?>) array).isReleased()
                    && Autograd.version(array) != version;
        }
    }

    /** Begins to watch a placeholder that is there, unless it is watched already. */
    synchronized void begin(Parameter parameter) {
        if (parameter.isInitialized()) {
            marks.computeIfAbsent(parameter, Mark::of);
        }
    }

    /** Puts a placeholder in the place of what the model holds. */
    synchronized void put(Parameter parameter) {
        NDArray array = parameter.getArray();
        Placeholder.replace(
                parameter, Placeholder.of(modelManager, array.getShape(), array.getDataType()));
        marks.put(parameter, Mark.of(parameter));
    }

    /** Puts values in the place of a placeholder. */
    synchronized void replace(Parameter parameter, NDArray values) {
        marks.remove(parameter);
        Placeholder.replace(parameter, values);
    }

    /**
     * Refuses what was written into placeholders, which are then as they were.
     *
     * @param nameOf the name of a parameter in the model
     * @throws IllegalStateException if something was
     */
    synchronized void check(Function<Parameter, String> nameOf) {
        List<Parameter> written = new ArrayList<>(0);
        marks.forEach(
                (parameter, mark) -> {
                    if (mark.isWrittenTo(parameter)) {
                        written.add(parameter);
                    }
                    mark.showInGraphs(); // it may have been frozen meanwhile
                });
        if (written.isEmpty()) {
            return;
        }
        Parameter first = written.get(0);
        String others = written.size() == 1 ? "" : " and of " + (written.size() - 1) + " others";
        String name = nameOf.apply(first) + " " + first.getArray().getShape() + others;
        written.forEach(this::put);
        throw new IllegalStateException(
                "Values were written into the model's array of the parameter "
                        + name
                        + " while a ParallelTrainer is open. Its ranks hold a part each, and the"
                        + " array is a placeholder: the values are discarded, and the ranks keep"
                        + " their own. Set them before trainer.initialize(...), after"
                        + " block.initialize(...) or model.load(...), which the trainer takes over;"
                        + " or close the trainer, set them, and open another; or resume from a"
                        + " checkpoint");
    }
}

package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.Parameter;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;

/**
 * The arrays of a model while ranks train it, and whether somebody has given it others, such as
 * {@code model.load} does: values that no rank would ever see.
 */
final class HeldArrays {

    private final ParameterShards shards;
    private final PlaceholderWatch placeholders;
    private final ParameterReplicas replicas;
    private final Map<Parameter, NDArray> arrays = new LinkedHashMap<>();

    HeldArrays(ParameterShards shards, PlaceholderWatch placeholders, ParameterReplicas replicas) {
        this.shards = shards;
        this.placeholders = placeholders;
        this.replicas = replicas;
    }

    /** Notes the arrays of parameters whose parts the ranks have. */
    void begin(Collection<Parameter> parameters) {
        shards.parameters().forEach(placeholders::begin);
        parameters.forEach(this::begin);
    }

    private void begin(Parameter parameter) {
        if (parameter.isInitialized()) {
            arrays.put(parameter, parameter.getArray());
        }
    }

    /**
     * Refuses other arrays, and what was written into placeholders. The model then is as it was.
     *
     * @param nameOf the name of a parameter in the model
     * @throws IllegalStateException if there is something
     */
    void check(Function<Parameter, String> nameOf) {
        checkSame(nameOf);
        placeholders.check(nameOf);
    }

    private void checkSame(Function<Parameter, String> nameOf) {
        List<Parameter> others = new ArrayList<>(0);
        arrays.forEach(
                (parameter, array) -> {
                    if (parameter.isInitialized() && parameter.getArray() != array) {
                        others.add(parameter);
                    }
                });
        if (others.isEmpty()) {
            return;
        }
        others.forEach(this::restore);
        others.forEach(this::begin);
        Parameter first = others.get(0);
        String more = others.size() == 1 ? "" : " and of " + (others.size() - 1) + " others";
        throw new IllegalStateException(
                "The model was given another array of the parameter "
                        + nameOf.apply(first)
                        + " "
                        + first.getArray().getShape()
                        + more
                        + " while a ParallelTrainer is open, as model.load(...) does. Its ranks"
                        + " hold the values that they train: what was given is discarded, and the"
                        + " ranks keep their own. Load a file before trainer.initialize(...), which"
                        + " takes it over; or close the trainer, load it, and open another; or"
                        + " resume from a checkpoint");
    }

    private void restore(Parameter parameter) {
        if (shards.contains(parameter)) {
            placeholders.put(parameter);
        } else {
            replicas.show(parameter);
        }
    }
}

package io.djltp.optimizer;

import ai.djl.nn.Parameter;

import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Function;

/**
 * Asks the tracker of an optimizer for the learning rates of a step, as DJL's trainer does: once
 * for each parameter, with DJL's id, so that trackers that count calls or know parameters by their
 * ids work. The coordinator asks, and hands the rates to the ranks.
 *
 * <p>DJL counts the updates of each parameter, and numbers an update by the largest count of all so
 * far: a parameter that is thawed late has the number of the others.
 */
public final class LearningRates {

    private final OptimizerSettings settings;
    private final Map<String, Integer> counts = new HashMap<>(); // by id
    private int largest;

    /**
     * Creates the rates of a training.
     *
     * @param settings the optimizer
     */
    public LearningRates(OptimizerSettings settings) {
        this.settings = settings;
    }

    /**
     * How a parameter is updated in a step.
     *
     * @param learningRate the learning rate
     * @param number the number of the update, by which Adam corrects its means
     */
    public record Update(float learningRate, int number) {}

    /**
     * Begins a step.
     *
     * @param updated the parameters that are updated
     * @param names returns the name of a parameter, for errors
     * @return what is done to each of them, in the same order
     * @throws IllegalArgumentException if a learning rate is not a number or infinite
     */
    public Map<Parameter, Update> next(
            Collection<Parameter> updated, Function<Parameter, String> names) {
        Map<Parameter, Update> updates = new LinkedHashMap<>();
        for (Parameter parameter : updated) {
            int count =
                    counts.merge(
                            parameter.getId(),
                            settings.getFirstUpdate(),
                            (before, first) -> before + 1);
            largest = Math.max(largest, count);
            float rate = settings.getLearningRates().getNewValue(parameter.getId(), largest);
            if (!Float.isFinite(rate)) {
                throw new IllegalArgumentException(
                        "The learning rate of "
                                + names.apply(parameter)
                                + " in step "
                                + largest
                                + " is "
                                + rate
                                + "; no parameter has been changed in this step");
            }
            updates.put(parameter, new Update(rate, largest));
        }
        return updates;
    }
}

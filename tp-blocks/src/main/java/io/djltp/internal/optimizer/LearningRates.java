package io.djltp.internal.optimizer;

import ai.djl.nn.Parameter;

import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.Predicate;

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
    private final Predicate<String> known;
    private Map<String, Integer> counts = new HashMap<>(); // by name
    private int largest;

    /**
     * Creates the rates of a training.
     *
     * @param settings the optimizer
     * @param known says whether there is a parameter of a name
     */
    public LearningRates(OptimizerSettings settings, Predicate<String> known) {
        this.settings = settings;
        this.known = known;
    }

    /**
     * How a parameter is updated in a step.
     *
     * @param learningRate the learning rate
     * @param number the number of the update, by which Adam corrects its means
     */
    public record Update(float learningRate, int number) {}

    /**
     * Returns the number of the last update of each parameter that has been updated.
     *
     * @return a copy of the numbers, by the names of the parameters
     */
    public Map<String, Integer> getCounts() {
        return new TreeMap<>(counts);
    }

    /**
     * Continues another training, whose counts take the place of these. Trackers of DJL are
     * functions of the number of the update, or catch up with it.
     *
     * @param values what {@link #getCounts()} has returned
     * @throws IllegalArgumentException if there is no parameter of a name, or a number is below 1
     */
    public void setCounts(Map<String, Integer> values) {
        values.forEach(
                (name, count) -> {
                    OptimizerState.checkKnown(name, known.test(name));
                    if (count < 1) {
                        throw new IllegalArgumentException(
                                "The number of the last update of parameter "
                                        + name
                                        + " must be 1 or more, not "
                                        + count);
                    }
                });
        counts.clear();
        counts.putAll(values);
        largest = counts.values().stream().mapToInt(Integer::intValue).max().orElse(0);
    }

    /**
     * Begins a step, which is counted unless this throws.
     *
     * @param updated the parameters that are updated
     * @param names returns the name of a parameter
     * @return what is done to each of them, in the same order
     * @throws IllegalArgumentException if a learning rate is not a number or infinite
     */
    public Map<Parameter, Update> next(
            Collection<Parameter> updated, Function<Parameter, String> names) {
        Map<Parameter, Update> updates = new LinkedHashMap<>();
        Map<String, Integer> raised = new HashMap<>(counts);
        int number = largest;
        for (Parameter parameter : updated) {
            int count =
                    raised.merge(
                            names.apply(parameter),
                            settings.getFirstUpdate(),
                            (before, first) -> before + 1);
            number = Math.max(number, count);
            float rate = settings.getLearningRates().getNewValue(parameter.getId(), number);
            if (!Float.isFinite(rate)) {
                throw new IllegalArgumentException(
                        "The learning rate of "
                                + names.apply(parameter)
                                + " in step "
                                + number
                                + " is "
                                + rate
                                + "; no parameter has been changed in this step");
            }
            updates.put(parameter, new Update(rate, number));
        }
        counts = raised;
        largest = number;
        return updates;
    }
}

package io.djltp.optimizer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.update.WeightUpdate;

import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.Consumer;

/**
 * What an optimizer keeps of each parameter of a rank, such as momentum: of the rank's shard or
 * replica, by the name that the parameter has in the whole model.
 */
public final class OptimizerState implements AutoCloseable {

    private final OptimizerSettings settings;
    private final Map<String, WeightUpdate> updates = new TreeMap<>();

    /**
     * Creates the state of a rank, which is empty.
     *
     * @param settings the optimizer
     */
    public OptimizerState(OptimizerSettings settings) {
        this.settings = settings;
    }

    /**
     * Returns the update of a parameter with its state.
     *
     * @param name the name of the parameter
     * @param initialization gets the update when it is made, at the first call
     * @return the update
     */
    public WeightUpdate getUpdate(String name, Consumer<WeightUpdate> initialization) {
        return updates.computeIfAbsent(
                name,
                key -> {
                    WeightUpdate update = settings.newUpdate();
                    initialization.accept(update);
                    return update;
                });
    }

    /**
     * Returns the parameters that have been updated.
     *
     * @return their names
     */
    public Set<String> getNames() {
        return Collections.unmodifiableSet(updates.keySet());
    }

    /**
     * Returns the state of a parameter.
     *
     * @param name the name of the parameter
     * @param manager the manager that the arrays are attached to
     * @return views of the state, [rows, elements of a row] or [rows], by what they are: {@code
     *     momentum} of SGD, {@code mean} and {@code variance} of Adam, {@code sums} of row-wise
     *     Adagrad; none if there is no state
     */
    public Map<String, NDArray> get(String name, NDManager manager) {
        WeightUpdate update = updates.get(name);
        return update == null ? Map.of() : update.getState(manager);
    }

    /**
     * Frees the state of a parameter: the next update begins with none.
     *
     * @param name the name of the parameter
     */
    public void free(String name) {
        WeightUpdate update = updates.remove(name);
        if (update != null) {
            update.close();
        }
    }

    /** Frees all state. */
    @Override
    public void close() {
        updates.values().forEach(WeightUpdate::close);
        updates.clear();
    }
}

package io.djltp.internal.optimizer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.internal.update.WeightUpdate;

import org.jspecify.annotations.Nullable;

import java.util.Collections;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;

/**
 * What an optimizer keeps of each parameter of a rank, such as momentum: of the rank's shard or
 * replica, by the name that the parameter has in the whole model.
 */
public final class OptimizerState implements AutoCloseable {

    private final OptimizerSettings settings;
    private final Weights weights;
    private final Map<String, WeightUpdate> updates = new TreeMap<>();

    /**
     * Creates the state of a rank, which is empty.
     *
     * @param settings the optimizer
     * @param weights the rank's shards and replicas
     */
    public OptimizerState(OptimizerSettings settings, Weights weights) {
        this.settings = settings;
        this.weights = weights;
    }

    /** The weights of a rank. */
    public interface Weights {

        /**
         * Returns the rank's shard or replica of a parameter.
         *
         * @param name the name of the parameter in the whole model
         * @return the shard or replica, or {@code null} if there is no parameter of the name
         */
        @Nullable NDArray get(String name);

        /**
         * Tells a new update how its weight is cut.
         *
         * @param name the name of the parameter
         * @param update the update
         */
        void prepare(String name, WeightUpdate update);
    }

    /**
     * Returns the update of a parameter with its state.
     *
     * @param name the name of the parameter
     * @return the update
     */
    public WeightUpdate getUpdate(String name) {
        return updates.computeIfAbsent(name, this::create);
    }

    private WeightUpdate create(String name) {
        WeightUpdate update = settings.newUpdate();
        weights.prepare(name, update);
        return update;
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
     *     momentum} of SGD, {@code mean} and {@code variance} of Adam, {@code sums} of both kinds
     *     of Adagrad; none if there is no state
     * @throws IllegalArgumentException if there is no parameter of the name
     */
    public Map<String, NDArray> get(String name, NDManager manager) {
        checkKnown(name, weights.get(name) != null);
        WeightUpdate update = updates.get(name);
        return update == null ? Map.of() : update.getState(manager);
    }

    /**
     * Replaces the state of a parameter: the next update goes on from it, bit for bit.
     *
     * @param name the name of the parameter
     * @param state what {@link #get} has returned for the same shard or replica, on any device;
     *     copied. Empty for none, as before the first update
     * @throws IllegalArgumentException if there is no parameter of the name, or these are not the
     *     arrays that the optimizer keeps of it, or one of them has another shape or type; the
     *     state stays as it is then
     */
    public void set(String name, Map<String, NDArray> state) {
        NDArray weight = weight(name);
        if (state.values().stream().anyMatch(Objects::isNull)) {
            throw new IllegalArgumentException(
                    "The state of " + name + " has no array for some of " + state.keySet());
        }
        WeightUpdate update = create(name);
        try {
            update.setState(name, state, weight);
        } catch (RuntimeException e) {
            update.close();
            throw e;
        }
        free(name);
        updates.put(name, update);
    }

    /**
     * Makes the state of a parameter, of zeros, if there is none: as it is before the first update,
     * which it does not change.
     *
     * @param name the name of the parameter
     * @param type the type of the state: float64, or float32 for any other
     * @throws IllegalArgumentException if there is no parameter of the name
     */
    public void prepare(String name, DataType type) {
        NDArray weight = weight(name);
        getUpdate(name).prepare(weight, type);
    }

    private NDArray weight(String name) {
        NDArray weight = weights.get(name);
        checkKnown(name, weight != null);
        return Objects.requireNonNull(weight);
    }

    static void checkKnown(String name, boolean known) {
        if (!known) {
            throw new IllegalArgumentException(
                    "The ranks have no parameter "
                            + name
                            + ": the names are those of block.getParameters(), after"
                            + " trainer.initialize(...)");
        }
    }

    /**
     * Frees the state of a parameter: the next update begins with none.
     *
     * @param name the name of the parameter
     * @throws IllegalArgumentException if there is no parameter of the name
     */
    public void free(String name) {
        checkKnown(name, weights.get(name) != null);
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

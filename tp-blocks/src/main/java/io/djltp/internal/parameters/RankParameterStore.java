package io.djltp.internal.parameters;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;

import io.djltp.internal.rank.ParallelContext;

import org.jspecify.annotations.Nullable;

import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The parameters of one rank: its shard of a parameter that is cut, its replica of any other.
 *
 * <p>All ranks run the same block tree, each with a store of its own.
 */
public final class RankParameterStore extends ParameterStore {

    private final ParallelContext context;
    private final Map<String, NDArray> values = new LinkedHashMap<>();
    private final Map<String, Parameter> parameters = new LinkedHashMap<>(); // of the values

    /**
     * Creates an empty store.
     *
     * @param manager the manager of the rank's values
     * @param context the rank
     */
    public RankParameterStore(NDManager manager, ParallelContext context) {
        super(manager, false);
        this.context = context;
    }

    /** {@return the rank} */
    public ParallelContext getContext() {
        return context;
    }

    /**
     * Returns what a rank holds of a parameter, for a block that knows what to do with a shard and
     * answers for what it computes of it.
     *
     * @param store the store of a block
     * @param parameter the parameter
     * @param device the device, where the store is not of a rank
     * @param training whether it is trained
     * @return the value, with the shape that it has on the rank
     */
    public static NDArray shardOf(
            ParameterStore store, Parameter parameter, Device device, boolean training) {
        return store instanceof RankParameterStore own
                ? own.value(parameter, false)
                : store.getValue(parameter, device, training);
    }

    /**
     * Returns the same of a parameter that may be missing.
     *
     * @param store the store of a block
     * @param parameter the parameter, or {@code null}
     * @param device the device, where the store is not of a rank
     * @param training whether it is trained
     * @return the value, or {@code null} if there is no parameter
     */
    public static @Nullable NDArray optionalShardOf(
            ParameterStore store, @Nullable Parameter parameter, Device device, boolean training) {
        return parameter == null ? null : shardOf(store, parameter, device, training);
    }

    /**
     * Returns the rank that a store belongs to.
     *
     * @param store the store that a block was given
     * @return the rank, or {@code null} for an ordinary store, with which a block is unsharded
     */
    public static @Nullable ParallelContext contextOf(ParameterStore store) {
        return store instanceof RankParameterStore ? ((RankParameterStore) store).context : null;
    }

    /**
     * Sets the rank's value of a parameter.
     *
     * @param parameter the parameter
     * @param value the rank's shard or replica
     */
    public void setValue(Parameter parameter, NDArray value) {
        if (parameter.requiresGradient()) {
            value.setRequiresGradient(true);
        }
        values.put(parameter.getId(), value);
        parameters.put(parameter.getId(), parameter);
    }

    /**
     * Returns the rank's value of a parameter.
     *
     * @param parameter the parameter, or {@code null} for an optional one that is not there
     * @param device not used: the rank has one device
     * @param training not used: the values are the same
     * @return the rank's shard or replica
     * @throws IllegalStateException if the trainer has not been initialized with the parameter
     */
    @Override
    public @Nullable NDArray getValue(
            @Nullable Parameter parameter, Device device, boolean training) {
        if (parameter == null) {
            return null;
        }
        return value(parameter, true);
    }

    private NDArray value(Parameter parameter, boolean followed) {
        NDArray value = getHeld(parameter);
        Parameter.Type type = parameter.getType();
        if (type == Parameter.Type.RUNNING_MEAN || type == Parameter.Type.RUNNING_VAR) {
            String name = parameter.getName() + " " + parameter.getShape();
            context.getPass().checkKeeps("A batch norm with the running statistics " + name);
        }
        return context.isForwarding() ? context.getPass().place(parameter, value, followed) : value;
    }

    /**
     * Returns the rank's value of a parameter to who looks at it, and is no block that uses it.
     *
     * @param parameter the parameter
     * @return the rank's shard or replica
     * @throws IllegalStateException if the trainer has not been initialized with the parameter
     */
    public NDArray getHeld(Parameter parameter) {
        NDArray value = values.get(parameter.getId());
        if (value == null) {
            throw new IllegalStateException(
                    "The ranks have no parameter "
                            + parameter.getName()
                            + ": call trainer.initialize(...) after the block is complete");
        }
        follow(parameter, value);
        return value;
    }

    /**
     * Lets the rank's values follow what was frozen and thawed meanwhile: a backward pass gives a
     * gradient to those that are trained when it begins. (A graph has those that were trained in
     * the forward pass.)
     */
    public void followFrozen() {
        parameters.values().forEach(this::getHeld);
    }

    private static void follow(Parameter parameter, NDArray value) {
        if (value.hasGradient() != parameter.requiresGradient()) {
            value.setRequiresGradient(parameter.requiresGradient());
        }
    }

    /**
     * Returns whether the rank has a value of a parameter.
     *
     * @param parameter the parameter
     * @return whether {@link #setValue} was called
     */
    public boolean contains(Parameter parameter) {
        return values.containsKey(parameter.getId());
    }

    /**
     * Frees the rank's value of a parameter.
     *
     * @param parameter the parameter
     */
    public void remove(Parameter parameter) {
        parameters.remove(parameter.getId());
        NDArray value = values.remove(parameter.getId());
        if (value != null) {
            value.close();
        }
    }
}

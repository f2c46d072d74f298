package io.djltp.internal.optimizer;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.update.FlatGradients;
import io.djltp.internal.update.WeightUpdate;

import org.jspecify.annotations.Nullable;

import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;

/**
 * What an optimizer keeps of each parameter of a rank, such as momentum: of the rank's shard or
 * replica, by the name that the parameter has in the whole model. Where ranks that hold the same
 * share it out, each keeps that of a range of the elements.
 */
public final class OptimizerState implements AutoCloseable {

    private final OptimizerSettings settings;
    private final Weights weights;
    private final Map<String, WeightUpdate> updates = new TreeMap<>();
    private final Map<String, @Nullable Share> shares = new HashMap<>(); // of what is shared out

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

    /**
     * How ranks share out what is kept of a shard or replica that they have alike.
     *
     * @param group the ranks
     * @param cut the range of each
     */
    public record Share(Communicator group, Cut cut) {

        /**
         * Returns the elements of which this rank keeps state.
         *
         * @return the range
         */
        public ShardRange range() {
            return cut.getRange(group.getRank());
        }
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
         * Returns the group whose ranks share out what is kept of a parameter, by how it is used.
         *
         * @param name the name of the parameter
         * @return the group, or {@code null}: the rank keeps all
         */
        @Nullable Communicator getSharers(String name);

        /**
         * Tells a new update how its weight is cut.
         *
         * @param name the name of the parameter
         * @param update the update
         */
        void prepare(String name, WeightUpdate update);
    }

    /**
     * Returns the update of a parameter with its state. If ranks share the state out otherwise than
     * before, those of the group before meet.
     *
     * @param name the name of the parameter
     * @param share how they share it out now, or {@code null}: the rank keeps all
     * @return the update of the rank's shard or replica, or of its share
     */
    public WeightUpdate getUpdate(String name, @Nullable Share share) {
        if (!Objects.equals(share, shares.get(name))) {
            try (NDManager manager = weight(name).getManager().newSubManager()) {
                Map<String, NDArray> whole = getWhole(name, manager);
                shares.put(name, share);
                if (share != null) {
                    whole.replaceAll((kind, all) -> range(all, share.range()));
                }
                set(name, whole);
            }
        }
        return updates.computeIfAbsent(name, this::create);
    }

    /**
     * Returns the elements of a rank's shard or replica of which it keeps state.
     *
     * @param name the name of the parameter
     * @return the range, or {@code null}: all
     */
    public @Nullable ShardRange getRange(String name) {
        Share share = shares.get(name);
        return share == null ? null : share.range();
    }

    /**
     * Returns the state of a rank's shard or replica, all of it: where ranks share it out, they
     * gather it. These call it alike.
     *
     * @param name the name of the parameter
     * @param manager the manager that the arrays are attached to
     * @return as {@link #get}
     */
    public Map<String, NDArray> getWhole(String name, NDManager manager) {
        Share share = shares.get(name);
        if (share == null) {
            return new TreeMap<>(get(name, manager));
        }
        DataType type = weight(name).getDataType();
        prepare(updates.computeIfAbsent(name, this::create), name, type); // a rank may have none
        Map<String, NDArray> own = get(name, manager);
        long[] lengths = share.cut().getShardLengths();
        Map<String, NDArray> whole = new TreeMap<>();
        own.forEach(
                (kind, part) -> {
                    DataType kept = part.getDataType();
                    NDArray all = manager.zeros(shapeOf(name), kept, part.getDevice());
                    share.group().setIssuer("the state of the optimizer");
                    share.group()
                            .allGather(TensorView.of(part), TensorView.of(all), lengths)
                            .await();
                    part.close();
                    whole.put(kind, all);
                });
        return whole;
    }

    /** Returns the shape of what is kept of each element: [rows, elements of a row]. */
    private Shape shapeOf(String name) {
        Shape shape = weight(name).getShape();
        long rows = shape.dimension() == 0 ? 1 : shape.get(0);
        return new Shape(rows, rows == 0 ? shape.slice(1).size() : shape.size() / rows);
    }

    private static NDArray range(NDArray array, ShardRange range) {
        return array.reshape(-1, 1).get("{}:{}", range.start(), range.end());
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
        try (NDManager scope = weight.getManager().newSubManager()) {
            update.setState(name, state, partOf(name, scope));
        } catch (RuntimeException e) {
            update.close();
            throw e;
        }
        close(updates.put(name, update));
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
        WeightUpdate known = updates.get(name); // and its ranks, which move it in a step only
        prepare(known == null ? getUpdate(name, firstShare(name)) : known, name, type);
    }

    /** Returns how ranks share out what the next step may share out otherwise. */
    private @Nullable Share firstShare(String name) {
        Communicator group = weights.getSharers(name);
        List<Long> elements = List.of(weight(name).size());
        return group == null
                ? null
                : new Share(group, FlatGradients.cut(elements, group.getSize()).get(0));
    }

    private void prepare(WeightUpdate update, String name, DataType type) {
        try (NDManager scope = weight(name).getManager().newSubManager()) {
            update.prepare(partOf(name, scope), type);
        }
    }

    /** Returns the elements whose state the rank keeps, as if they were the weight. */
    private NDArray partOf(String name, NDManager scope) {
        NDArray whole = Autograd.detach(weight(name), scope);
        ShardRange range = getRange(name);
        return range == null ? whole : range(whole, range);
    }

    private NDArray weight(String name) {
        NDArray weight = weights.get(name);
        checkKnown(name, weight != null);
        return Objects.requireNonNull(weight);
    }

    static void checkKnown(String name, boolean known) {
        Errors.check(
                known,
                "The ranks have no parameter %s: the names are those of "
                        + "block.getParameters(), after trainer.initialize(...)",
                name);
    }

    /**
     * Frees the state of a parameter: the next update begins with none.
     *
     * @param name the name of the parameter
     * @throws IllegalArgumentException if there is no parameter of the name
     */
    public void free(String name) {
        checkKnown(name, weights.get(name) != null);
        close(updates.remove(name));
        shares.remove(name);
    }

    private static void close(@Nullable WeightUpdate update) {
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

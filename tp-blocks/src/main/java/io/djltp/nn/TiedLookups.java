package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.collective.Communicator;
import io.djltp.head.AddedGradient;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.update.GradientScale;
import io.djltp.internal.update.TableShard;
import io.djltp.loss.OtherUse;
import io.djltp.rank.ParticipantStep;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.IntStream;

/**
 * The lookups of an embedding on a rank whose weight is that of a fused head too. The weight is no
 * part of the graph: the rows that were looked up are leaves, whose gradients the head adds to its
 * own when it updates the weight. So there is never a gradient of the whole weight.
 */
final class TiedLookups implements OtherUse {

    private final Parameter weight;
    private final List<Lookup> pending = new ArrayList<>();

    TiedLookups(Parameter weight) {
        this.weight = weight;
    }

    /**
     * What one lookup has left.
     *
     * @param places the places of the rows among those of the rank, -1 for what has no gradient
     * @param rows the rows, a leaf of the graph, [x1, ..., xn, features]
     * @param output what the pass has of them, which is closed with it
     */
    private record Lookup(long[] places, NDArray rows, NDArray output) {

        /** Returns whether the pass was closed without a backward pass. */
        boolean isOver() {
            return ((NativeResource<?>) output).isReleased() && !hasGradient();
        }

        boolean hasGradient() {
            try (NDArray gradient = Autograd.gradient(rows)) {
                return gradient != null;
            }
        }
    }

    /**
     * Looks rows up.
     *
     * @param context the rank
     * @param shard the rows of the rank
     * @param values their values
     * @param ids the ids
     * @return the rows, zeros where the rank does not hold them
     */
    NDArray lookUp(TableShard shard, NDArray values, NDArray ids) {
        // not of the pass: the gradient is wanted when it is over
        NDArray rows = Autograd.detach(shard.rows(values, ids), values.getManager());
        rows.setRequiresGradient(true);
        NDArray output = TableShard.copy(rows, ids);
        forget(Lookup::isOver);
        pending.add(new Lookup(shard.trainedPlaces(ids), rows, output));
        return output;
    }

    /** {@inheritDoc} */
    @Override
    public boolean unscale(float factor) {
        boolean finite = true;
        for (Lookup lookup : pending) {
            try (NDArray gradient = Autograd.gradient(lookup.rows)) {
                finite &= gradient == null || GradientScale.takeFrom(gradient, factor);
            }
        }
        return finite;
    }

    /** {@inheritDoc} */
    @Override
    public AddedGradient take(ParticipantStep step, NDManager scope) {
        TableGradient gradient = own(step.getValue(weight), scope);
        Communicator group = step.getGradientGroup(weight);
        if (group != null) {
            group.setIssuer("the gradient of the embedding " + step.nameOf(weight));
            gradient = gradient.ofAllRanks(group, scope);
        }
        long[] places = IntStream.of(gradient.ids()).asLongStream().map(id -> id - 1).toArray();
        close();
        return new AddedGradient(null, places, gradient.ofSums());
    }

    /** Returns the gradients of the rows that the rank holds: each is a bag of one row. */
    private TableGradient own(NDArray values, NDManager scope) {
        NDList gradients = new NDList();
        int[] ids = {}; // from 1, 0 is no row
        for (Lookup lookup : pending) {
            long[] positions =
                    IntStream.range(0, lookup.places.length)
                            .filter(i -> lookup.places[i] >= 0)
                            .asLongStream()
                            .toArray();
            try (NDArray gradient = Autograd.gradient(lookup.rows)) {
                if (gradient == null || positions.length == 0) {
                    continue; // a forward pass without a backward pass
                }
                gradients.add(TableShard.pick(gradient, positions, scope));
            }
            int before = ids.length;
            ids = Arrays.copyOf(ids, before + positions.length);
            for (int i = 0; i < positions.length; i++) {
                ids[before + i] = (int) lookup.places[(int) positions[i]] + 1;
            }
        }
        if (gradients.isEmpty()) {
            Shape none = new Shape(0, values.getShape().get(1));
            return new TableGradient(ids, 0, scope.create(none, values.getDataType()));
        }
        return new TableGradient(
                ids, 1, gradients.size() == 1 ? gradients.head() : NDArrays.concat(gradients));
    }

    /** {@inheritDoc} */
    @Override
    public void setTrained(boolean trained) {
        pending.forEach(lookup -> lookup.rows.setRequiresGradient(trained));
    }

    /** {@inheritDoc} */
    @Override
    public void zeroGradient() {
        forget(Lookup::hasGradient);
    }

    private void forget(Predicate<Lookup> which) {
        pending.removeIf(
                lookup -> {
                    boolean forgotten = which.test(lookup);
                    if (forgotten) {
                        lookup.rows.close();
                    }
                    return forgotten;
                });
    }

    /** Forgets the lookups. */
    @Override
    public void close() {
        pending.forEach(lookup -> lookup.rows.close());
        pending.clear();
    }
}

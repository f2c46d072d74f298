package io.djltp.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.util.NativeResource;

import io.djltp.collective.Collective;
import io.djltp.collective.Communicator;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.head.AddedGradient;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.rank.ParticipantStep;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.internal.update.EmbeddingBags;
import io.djltp.internal.update.SquareSum;
import io.djltp.internal.update.TableShard;
import io.djltp.internal.update.WeightUpdate;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Predicate;
import java.util.stream.IntStream;

/**
 * The gradient of a rank's table of which a step uses few rows. The table is no part of the graph:
 * what forward passes have made of its rows are leaves, whose gradients are put together in the
 * step. So there is never a gradient of the whole table.
 */
final class RowGradients implements AutoCloseable {

    private final Parameter parameter;
    private final List<Leaf> pending = new ArrayList<>();

    RowGradients(Parameter parameter) {
        this.parameter = parameter;
    }

    /**
     * What a forward pass has made of the table.
     *
     * @param bags which rows
     * @param sums the sum of the rows of each bag: a leaf of the graph
     * @param output what the pass has of them, which is closed with it
     */
    private record Leaf(EmbeddingBags bags, NDArray sums, NDArray output) {

        /** Returns whether the pass was closed without a backward pass. */
        boolean isOver() {
            return ((NativeResource<?>) output).isReleased() && !hasGradient();
        }

        boolean hasGradient() {
            try (NDArray gradient = Autograd.gradient(sums)) {
                return gradient != null;
            }
        }
    }

    /**
     * Bags of row numbers, and the gradient of the sum of each.
     *
     * @param bags which rows
     * @param ofSums the gradient of the sums, [bags, features]
     */
    record Sums(EmbeddingBags bags, NDArray ofSums) {}

    /** Notes a leaf, until the step, or until the pass is closed without a backward pass. */
    void add(EmbeddingBags bags, NDArray sums, NDArray output) {
        forget(Leaf::isOver);
        pending.add(new Leaf(bags, sums, output));
    }

    /** Sets whether backward passes to come leave a gradient. */
    void setTrained(boolean trained) {
        pending.forEach(leaf -> leaf.sums().setRequiresGradient(trained));
    }

    /** Multiplies the gradients, and returns whether they are finite. */
    boolean unscale(float factor) {
        boolean finite = true;
        for (Leaf leaf : pending) {
            try (NDArray gradient = Autograd.gradient(leaf.sums())) {
                finite &= gradient == null || SquareSum.unscale(gradient, factor);
            }
        }
        return finite;
    }

    /** Forgets what has a gradient, or what has none. */
    void forget(boolean withGradient) {
        forget(leaf -> leaf.hasGradient() == withGradient);
    }

    private void forget(Predicate<Leaf> which) {
        pending.removeIf(
                leaf -> {
                    boolean forgotten = which.test(leaf);
                    if (forgotten) {
                        leaf.sums().close();
                    }
                    return forgotten;
                });
    }

    /** Forgets everything. */
    @Override
    public void close() {
        pending.forEach(leaf -> leaf.sums().close());
        pending.clear();
    }

    /**
     * Takes the gradient of the backward passes since the last step, of all rows of the batch. All
     * ranks call it in every step.
     *
     * @param step the step
     * @param what what the table is, for the counts of collective operations
     * @param filled whether bags of one place without a row are left out
     * @param scope the manager of the result
     */
    Sums take(ParticipantStep step, String what, boolean filled, NDManager scope) {
        try {
            Sums own = own(step.getValue(parameter), filled, scope);
            Communicator group = step.getGradientGroup(parameter);
            if (group == null) {
                return own;
            }
            group.setIssuer(what + step.nameOf(parameter));
            return ofAllRanks(own, group, scope);
        } finally {
            close();
        }
    }

    /** Returns what this rank's backward passes have left, one after the other, maybe nothing. */
    private Sums own(NDArray values, boolean filled, NDManager scope) {
        NDList gradients = new NDList();
        List<EmbeddingBags> bags = new ArrayList<>();
        for (Leaf leaf : pending) {
            NDArray gradient = Autograd.gradient(leaf.sums());
            if (gradient == null) {
                continue; // a forward pass without a backward pass
            }
            gradient.attach(scope);
            EmbeddingBags own = leaf.bags();
            if (filled) {
                int[] lengths = own.toInts(false); // and the rows
                long[] places =
                        IntStream.range(0, own.offsets().length)
                                .filter(i -> lengths[i] > 0)
                                .asLongStream()
                                .toArray();
                int[] present = Arrays.copyOfRange(lengths, own.offsets().length, lengths.length);
                own = EmbeddingBags.padded(present, 1, false);
                NDArray whole = gradient;
                gradient = present.length == 0 ? null : TableShard.pick(whole, places, scope);
                whole.close();
                if (gradient == null) {
                    continue;
                }
            }
            gradients.add(gradient);
            bags.add(own);
        }
        if (gradients.isEmpty()) { // other ranks may have something
            Shape none = new Shape(0, values.getShape().get(1));
            return new Sums(EmbeddingBags.join(bags), scope.create(none, values.getDataType()));
        }
        NDArray all = TorchOperations.concat(gradients, 0);
        return new Sums(bags.size() == 1 ? bags.get(0) : EmbeddingBags.join(bags), all);
    }

    /** Puts the bags of all ranks together, in the order of the ranks. */
    private static Sums ofAllRanks(Sums own, Communicator group, NDManager scope) {
        EmbeddingBags bags = own.bags();
        int[] sizes = {bags.offsets().length, bags.rows().length, bags.weights() != null ? 1 : 0};
        long[] each = new long[group.getSize()];
        Arrays.fill(each, sizes.length);
        int[] all = HostReads.ints(gather(group, scope.create(sizes), each, scope));
        boolean weighted = IntStream.range(0, each.length).anyMatch(rank -> all[3 * rank + 2] > 0);
        long[] counts = new long[each.length];
        for (int rank = 0; rank < each.length; rank++) {
            counts[rank] = all[3 * rank];
            each[rank] = counts[rank] + (weighted ? 2L : 1) * all[3 * rank + 1];
        }
        if (Arrays.stream(counts).sum() == 0) {
            return own; // no rank has anything
        }
        int[] ints =
                HostReads.ints(gather(group, scope.create(bags.toInts(weighted)), each, scope));
        List<EmbeddingBags> parts = new ArrayList<>();
        int from = 0;
        for (int rank = 0; rank < each.length; rank++) {
            parts.add(EmbeddingBags.of(ints, from, (int) counts[rank], weighted));
            from += (int) each[rank];
        }
        long features = own.ofSums().getShape().get(1);
        NDArray sums = own.ofSums();
        sums = TensorView.of(sums).isContiguous() ? sums : sums.duplicate();
        NDArray allSums = gather(group, sums, times(counts, features), scope);
        return new Sums(EmbeddingBags.join(parts), allSums.reshape(-1, features));
    }

    private static NDArray gather(Communicator group, NDArray own, long[] counts, NDManager scope) {
        DataType type = own.getDataType();
        NDArray all = scope.create(new Shape(Arrays.stream(counts).sum()), type);
        group.allGather(TensorView.of(own), TensorView.of(all), counts).await();
        return all;
    }

    private static long[] times(long[] counts, long length) {
        return Arrays.stream(counts).map(count -> count * length).toArray();
    }

    /**
     * Notes what the step exchanges: sizes, row numbers with their weights, and gradients of the
     * bags, of which no place is filled up.
     */
    static void forecast(
            PassForecast pass, String issuer, Shape ids, boolean weighted, Shape sums) {
        int size = pass.getDataSize();
        long[] all = {
            3L * size * Integer.BYTES,
            (sums.get(0) + ids.size() * (weighted ? 2 : 1)) * Integer.BYTES,
            pass.bytes(sums),
        };
        for (long bytes : all) {
            pass.add(issuer, Direction.STEP, Collective.ALL_GATHER, size, bytes);
        }
    }

    /**
     * The table of an {@link EmbeddingBag}. All ranks update their replicas alike: from the
     * gradients of the sums of the whole batch, which are far smaller than the table. Where the
     * table is frozen when a step comes, gradients wait until it is thawed.
     */
    static final class Table implements StepParticipant {

        static final String ISSUER = "the gradient of ";

        private final Parameter parameter;
        private final RowGradients gradients;

        Table(Parameter parameter) {
            this.parameter = parameter;
            gradients = new RowGradients(parameter);
        }

        void add(EmbeddingBags bags, NDArray sums, NDArray output) {
            gradients.add(bags, sums, output);
        }

        /** {@inheritDoc} */
        @Override
        public List<Parameter> getParameters() {
            return List.of(parameter);
        }

        /** {@inheritDoc} */
        @Override
        public void beginBackward() {
            gradients.setTrained(parameter.requiresGradient());
        }

        /**
         * {@inheritDoc}
         *
         * <p>Gradients of backward passes to come will count.
         */
        @Override
        public void zeroGradient() {
            if (parameter.requiresGradient()) {
                gradients.forget(true);
            }
        }

        /** {@inheritDoc} */
        @Override
        public boolean unscale(float factor) {
            return gradients.unscale(factor);
        }

        /** {@inheritDoc} */
        @Override
        public void step(ParticipantStep step) {
            WeightUpdate update = step.getUpdate(parameter);
            NDArray values = step.getValue(parameter);
            if (update == null) {
                gradients.forget(false);
                return;
            }
            try (NDManager scope = values.getManager().newSubManager()) {
                Sums sums = gradients.take(step, ISSUER, false, scope);
                sums.bags().update(values, sums.ofSums(), update);
            }
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            gradients.close();
        }
    }

    /**
     * The lookups of an embedding on a rank whose weight is that of a fused head too, which adds
     * their gradient to its own when it updates the weight.
     */
    static final class Lookups implements FusedHead.OtherUse {

        static final String ISSUER = "the gradient of the embedding ";

        private final RowGradients gradients;

        Lookups(Parameter weight) {
            gradients = new RowGradients(weight);
        }

        /**
         * Looks rows up.
         *
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
            long[] places = shard.trainedPlaces(ids); // -1 for what has no gradient
            int[] fromOne = Arrays.stream(places).mapToInt(place -> (int) place + 1).toArray();
            gradients.add(EmbeddingBags.padded(fromOne, 1, false), rows, output);
            return output;
        }

        /** {@inheritDoc} */
        @Override
        public AddedGradient take(ParticipantStep step, NDManager scope) {
            Sums sums = gradients.take(step, ISSUER, true, scope);
            long[] places = Arrays.stream(sums.bags().rows()).map(row -> row - 1).toArray();
            return new AddedGradient(null, places, sums.ofSums());
        }

        /** {@inheritDoc} */
        @Override
        public boolean unscale(float factor) {
            return gradients.unscale(factor);
        }

        /** {@inheritDoc} */
        @Override
        public void setTrained(boolean trained) {
            gradients.setTrained(trained);
        }

        /** {@inheritDoc} */
        @Override
        public void zeroGradient() {
            gradients.forget(true);
        }

        /** {@inheritDoc} */
        @Override
        public void close() {
            gradients.close();
        }
    }
}

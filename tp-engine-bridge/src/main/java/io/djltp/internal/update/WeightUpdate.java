package io.djltp.internal.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Consumer;

/**
 * How a weight of a rank is updated: what DJL's optimizers do to it, with the same result. Holds
 * the state of one weight, in float32, or in float64 for a weight in float64.
 *
 * <p>The gradient is there as a whole ({@link #run}), or is that of some rows at a time, and not
 * kept.
 *
 * <p>Of a step that computes with a part of the classes, the rows of the others and their state are
 * neither read nor written: they do not decay, and their momentum waits. The number of the step, by
 * which Adam corrects its means, is that of all steps.
 */
@SuppressWarnings("try") // a scope is used by being open
public abstract class WeightUpdate implements AutoCloseable {

    /**
     * What all updates have in common.
     *
     * @param weightDecay the weight decay
     * @param rescale what gradients are multiplied with
     * @param clip the largest value of a gradient after that, not limited if below 0. As in DJL,
     *     gradients are not limited from below
     */
    public record Settings(float weightDecay, float rescale, float clip) {

        /** No weight decay, and gradients as they are. */
        public static final Settings DEFAULT = new Settings(0, 1, -1);

        /** Returns whether gradients are limited. */
        boolean isClipped() {
            return clip >= 0;
        }
    }

    /** What the names of state begin with that is there for the computation alone. */
    static final String SCRATCH = "scratch ";

    final Settings settings;
    private final Map<String, Tensor> tensors = new TreeMap<>(); // the state
    float learningRate;
    ListedUpdates.@Nullable Kept kept; // with others that one call updates
    private long @Nullable []
            rowGroups; // lengths of groups of rows that are updated together; null: all are

    /**
     * Creates an update without state.
     *
     * @param settings what all updates have in common
     */
    protected WeightUpdate(Settings settings) {
        LibTorch.load(); // may be the first call of all
        this.settings = settings;
    }

    /**
     * Returns the update of stochastic gradient descent. Without momentum it has no state and needs
     * no memory for a gradient.
     *
     * @param settings what all updates have in common
     * @param momentum the momentum, or 0
     * @return the update
     */
    public static WeightUpdate sgd(Settings settings, float momentum) {
        return new SgdUpdate(settings, momentum);
    }

    /**
     * Returns the update of Adam.
     *
     * @param settings what all updates have in common
     * @param beta1 the decay of the mean
     * @param beta2 the decay of the variance
     * @param epsilon what is added to the root of the variance
     * @param decoupled whether weights decay apart from the gradient: AdamW
     * @return the update
     */
    public static WeightUpdate adam(
            Settings settings, float beta1, float beta2, float epsilon, boolean decoupled) {
        return new AdamUpdate(settings, beta1, beta2, epsilon, decoupled);
    }

    /**
     * Returns the update of Adagrad.
     *
     * @param settings what all updates have in common
     * @param epsilon what is added to the root of the sum of the squared gradients
     * @return the update
     */
    public static WeightUpdate adagrad(Settings settings, float epsilon) {
        return new AdagradUpdate(settings, epsilon);
    }

    /**
     * Returns the update of Adagrad with one number of state for each row: the sum of the means of
     * its squared gradients.
     *
     * @param settings what all updates have in common
     * @param epsilon what is added to the root of the sum
     * @return the update
     */
    public static WeightUpdate rowwiseAdagrad(Settings settings, float epsilon) {
        return new RowwiseAdagradUpdate(settings, epsilon);
    }

    /**
     * Begins a step.
     *
     * @param rate the learning rate
     * @param step the number of the step, from 1
     */
    public void begin(float rate, int step) {
        learningRate = rate;
    }

    /**
     * Tells that the rank has a part of each row, so that what is known of a row is the sum over
     * the ranks. The ranks then meet in each {@link #run}.
     *
     * @param ranks the group over which the rows are cut
     * @param whole the shape of the weight over all ranks, [rows, x1, ..., xn]
     * @param axis the axis that is cut, 1 or more
     * @param cut how it is cut; of what several ranks have, the first is asked
     */
    public void setRowsCut(Communicator ranks, Shape whole, int axis, Cut cut) {
        // elements are updated each by itself
    }

    /**
     * Tells that some rows are on other ranks too, where they lie elsewhere in the shard. How an
     * operation rounds an element depends on where it lies (in a vector register, or in what is
     * left at the end); so that replicas stay equal bit for bit, such rows are updated by
     * themselves.
     *
     * @param rows the lengths of the groups of rows that the same ranks hold, in their order
     */
    public final void setRowGroups(long... rows) {
        rowGroups = rows.clone();
    }

    /** Returns whether some rows are updated by themselves. */
    final boolean isInGroups() {
        return rowGroups != null;
    }

    /** Returns the lengths of the groups of all rows. */
    final long[] rowGroups(long rows) {
        return rowGroups == null ? new long[] {rows} : rowGroups;
    }

    /**
     * Updates a weight by its gradient. {@link ListedUpdates} updates many.
     *
     * @param weight the weight, [rows, x1, ..., xn], contiguous, changed in place
     * @param gradient its gradient, of the same shape, whose elements may be others afterwards, or
     *     {@code null} if it is zero everywhere
     */
    public final void run(NDArray weight, @Nullable NDArray gradient) {
        ListedUpdates one = new ListedUpdates();
        one.add(this, weight, gradient == null ? null : TensorView.of(gradient), null);
        one.run();
    }

    /**
     * Returns the state.
     *
     * @param manager the manager that the arrays are attached to
     * @return views of the state by its names, [rows, x1 * ... * xn] or [rows]; none before the
     *     first update, or if the rule has none
     */
    public final Map<String, NDArray> getState(NDManager manager) {
        Map<String, NDArray> views = new TreeMap<>();
        state().forEach((name, tensor) -> views.put(name, TensorView.toArray(tensor, manager)));
        return views;
    }

    /**
     * Continues another update of the same rule: the next {@link #run} does what the next one of
     * that update would have done. To be called before the first.
     *
     * @param name the name of the weight, for errors
     * @param values the state of the other update, as {@link #getState} has returned it; copied
     * @param weight the weight
     * @throws IllegalArgumentException if these are not the arrays that the rule keeps, or one of
     *     them has not the shape or the type that it has for this weight
     */
    public final void setState(String name, Map<String, NDArray> values, NDArray weight) {
        if (values.isEmpty()) {
            return; // as before the first update
        }
        DataType type = values.values().iterator().next().getDataType();
        values.forEach(
                (kind, value) -> {
                    DataType each = value.getDataType();
                    boolean wide = each == DataType.FLOAT64 && weight.getDataType() == each;
                    if (each != type || each != DataType.FLOAT32 && !wide) {
                        throw Errors.argument(
                                "The state of parameter %s is kept in float32, or in float64 if the"
                                        + " parameter is in float64, but %s is in %s and the"
                                        + " parameter in %s",
                                name, kind, each, weight.getDataType());
                    }
                });
        try (TorchScope scope = TorchScope.withoutGraph()) {
            prepare(weight, type);
            copy(name, values, state());
        }
    }

    /**
     * Makes the state, if there is none.
     *
     * @param weight the weight
     * @param type the type of the state: float64, or float32 for any other
     */
    public final void prepare(NDArray weight, DataType type) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor like = TensorView.of(weight).tensor();
            ScalarType computed = type == DataType.FLOAT64 ? ScalarType.Double : ScalarType.Float;
            TensorOptions options = like.options().dtype(new ScalarTypeOptional(computed));
            Shape shape = weight.getShape();
            boolean scalar = shape.dimension() == 0;
            prepare(scalar ? 1 : shape.get(0), scalar ? 1 : shape.slice(1).size(), options);
        }
    }

    /** Returns the state by its names, without what is there for the computation alone. */
    private Map<String, Tensor> state() {
        Map<String, Tensor> named = new TreeMap<>(tensors);
        named.keySet().removeIf(name -> name.startsWith(SCRATCH));
        return named;
    }

    /**
     * Returns a piece of the state, zeros at first, which lives until the update is closed.
     *
     * @param name its name; what begins with {@link #SCRATCH} is there for the computation alone
     * @param options where it lies, and its type
     * @param shape its shape
     */
    final Tensor state(String name, TensorOptions options, long... shape) {
        return tensors.computeIfAbsent(name, key -> zeros(options, shape));
    }

    /** Returns a piece of the state that {@link #prepare} has made. */
    final Tensor state(String name) {
        return Errors.present(tensors.get(name), "There is no state %s: call prepare first", name);
    }

    /** Returns whether a gradient of zero changes nothing. */
    boolean ignoresZeroGradient() {
        return settings.weightDecay() == 0 && state().isEmpty();
    }

    /**
     * The operator of PyTorch that is a rule, in one step. Weights for which these are equal are
     * updated by one call.
     *
     * @param operator the operator
     * @param step the number of the step
     * @param numbers the numbers that it takes
     * @param states the names of the state that it changes
     */
    record Fused(FusedOperator operator, int step, List<Double> numbers, List<String> states) {}

    /** Returns the elements of a range, [length], or the weight. */
    static Tensor elements(Tensor weight, @Nullable ShardRange range) {
        Tensor all = weight.detach();
        return range == null ? all : all.view(-1).narrow(0, range.start(), range.length());
    }

    /** Makes the state of some elements, if there is none, in the type that is computed in. */
    final TensorOptions prepare(Tensor values) {
        boolean wide = values.scalar_type().intern() == ScalarType.Double;
        ScalarType type = wide ? ScalarType.Double : ScalarType.Float;
        TensorOptions options = values.options().dtype(new ScalarTypeOptional(type));
        long rows = values.dim() == 0 ? 1 : values.size(0);
        prepare(rows, values.numel() / rows, options);
        return options;
    }

    /** Returns the operator that is the rule in this step, or null if it is several. */
    @Nullable Fused fused(boolean onGpu) {
        return null;
    }

    /**
     * Returns the operator that is all of the update of a gradient that is there, or null if it
     * takes more.
     *
     * @param type the type of the weight
     */
    final @Nullable Fused onlyFused(DataType type, boolean onGpu) {
        boolean wide = type == DataType.FLOAT32 || type == DataType.FLOAT64;
        return wide && settings.rescale() == 1 && !settings.isClipped() ? fused(onGpu) : null;
    }

    /** Returns whether a row's elements are updated together, and not each by itself. */
    boolean isOfRows() {
        return false;
    }

    /** Updates some rows by the operator that is the rule. */
    final void apply(Fused rule, RowGradient chunk) {
        try (PointerScope scope = new PointerScope()) {
            FusedOperator.Lists lists = new FusedOperator.Lists(rule.operator());
            lists.add(0, chunk.weight);
            lists.add(1, chunk.whole(settings));
            List<Tensor> states = new ArrayList<>();
            for (String name : rule.states()) {
                Tensor state = chunk.rowsOf(state(name), states.size());
                states.add(state);
                lists.add(1 + states.size(), state);
            }
            rule.operator().call(rule.step(), rule.numbers(), lists);
            for (int i = 0; i < states.size(); i++) {
                chunk.setRows(state(rule.states().get(i)), states.get(i));
            }
        }
    }

    /**
     * Sees all rows before the first is updated, if the rule wants to.
     *
     * @param rows lets a rule see all rows, a few at a time
     */
    void measure(Consumer<Consumer<RowGradient>> rows) {
        // most rules need not
    }

    /** Adds the decay of a weight to its gradient. */
    final void decay(Tensor gradient, Tensor weight) {
        if (settings.weightDecay() != 0) {
            gradient.add_(weight, new Scalar(settings.weightDecay()));
        }
    }

    /**
     * Makes the state, if there is none.
     *
     * @param classes the rows of the weight
     * @param features the length of a row
     * @param options where the state lies, and its type
     */
    public abstract void prepare(long classes, long features, TensorOptions options);

    /**
     * Updates some rows; other rows may be updated by other threads at the same time.
     *
     * @param chunk the rows and their gradient
     */
    public abstract void apply(RowGradient chunk);

    /** Returns zeros that live until they are closed. */
    static Tensor zeros(TensorOptions options, long... shape) {
        try (PointerScope scope = new PointerScope()) {
            return torch.zeros(shape, options).retainReference();
        }
    }

    /** Frees the state. */
    @Override
    public void close() {
        if (kept != null) {
            kept.close();
        }
        tensors.values().forEach(Tensor::close);
        tensors.clear();
    }

    /**
     * Adagrad: {@code sum += gradient^2}, {@code weight -= rate * gradient / (sqrt(sum) +
     * epsilon)}. PyTorch's operator computes the same, which exists for processors only.
     */
    private static final class AdagradUpdate extends WeightUpdate {

        private final float epsilon;

        AdagradUpdate(Settings settings, float epsilon) {
            super(settings);
            this.epsilon = epsilon;
        }

        /** {@inheritDoc} */
        @Override
        boolean ignoresZeroGradient() {
            return settings.weightDecay() == 0;
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(long classes, long features, TensorOptions options) {
            state("sums", options, classes, features); // of the squared gradients so far
        }

        /** {@inheritDoc} */
        @Override
        @Nullable Fused fused(boolean onGpu) {
            double decay = settings.weightDecay();
            List<Double> numbers = List.of((double) learningRate, 0., decay, (double) epsilon);
            return onGpu ? null : new Fused(FusedOperator.ADAGRAD, 1, numbers, List.of("sums"));
        }

        /** {@inheritDoc} */
        @Override
        public void apply(RowGradient chunk) {
            Tensor weight = chunk.weight;
            Fused fused = fused(weight.is_cuda());
            if (fused != null) {
                apply(fused, chunk);
                return;
            }
            Tensor gradient = chunk.whole(settings);
            Tensor sums = state("sums");
            Tensor state = chunk.rowsOf(sums, 0);
            decay(gradient, weight);
            state.addcmul_(gradient, gradient);
            Tensor divisor = state.sqrt().add_(new Scalar(epsilon));
            weight.addcdiv_(gradient, divisor, new Scalar(-learningRate));
            chunk.setRows(sums, state);
        }
    }

    /** Adam, and AdamW with weight decay apart from the gradient. */
    private static final class AdamUpdate extends WeightUpdate {

        private final float beta1;
        private final float beta2;
        private final float epsilon;
        private final boolean decoupled;
        private int step;

        AdamUpdate(Settings settings, float beta1, float beta2, float epsilon, boolean decoupled) {
            super(settings);
            this.beta1 = beta1;
            this.beta2 = beta2;
            this.epsilon = epsilon;
            this.decoupled = decoupled;
        }

        /** {@inheritDoc} */
        @Override
        public void begin(float rate, int step) {
            super.begin(rate, step);
            this.step = step;
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(long classes, long features, TensorOptions options) {
            state("mean", options, classes, features);
            state("variance", options, classes, features);
        }

        /** {@inheritDoc} */
        @Override
        Fused fused(boolean onGpu) {
            // DJL adds epsilon to the root as it is, PyTorch to the corrected one
            double corrected = epsilon / Math.sqrt(1 - Math.pow(beta2, step));
            double decay = settings.weightDecay();
            double rate = learningRate;
            List<Double> numbers = List.of(rate, (double) beta1, (double) beta2, decay, corrected);
            FusedOperator operator = decoupled ? FusedOperator.ADAM_W : FusedOperator.ADAM;
            return new Fused(operator, step, numbers, List.of("mean", "variance"));
        }

        /** {@inheritDoc} */
        @Override
        public void apply(RowGradient chunk) {
            apply(fused(false), chunk);
        }
    }

    /**
     * Copies a state.
     *
     * @param name the name of the weight, for errors
     * @param values the state
     * @param targets where it goes, by its names
     * @throws IllegalArgumentException if the names or the shapes differ
     */
    private static void copy(
            String name, Map<String, NDArray> values, Map<String, Tensor> targets) {
        if (!values.keySet().equals(targets.keySet())) {
            throw Errors.argument(
                    "The optimizer keeps %s of parameter %s, but %s is to be set: it is the state"
                            + " of another optimizer",
                    targets.isEmpty() ? "no state" : new TreeSet<>(targets.keySet()),
                    name,
                    new TreeSet<>(values.keySet()));
        }
        values.forEach(
                (kind, value) -> {
                    TensorView target = TensorView.of(known(targets, kind));
                    if (!value.getShape().equals(target.getShape())) {
                        throw Errors.argument(
                                "The state %s of parameter %s has the shape %s on this rank, but %s"
                                        + " is to be set: give each rank the state of its shard",
                                kind, name, target.getShape(), value.getShape());
                    }
                });
        values.forEach((kind, value) -> known(targets, kind).copy_(TensorView.of(value).tensor()));
    }

    private static Tensor known(Map<String, Tensor> targets, String kind) {
        return Objects.requireNonNull(targets.get(kind), kind);
    }

    /**
     * Adagrad with one number of state for each row.
     *
     * <p>Of rows that are cut over ranks, the squares of a whole row are summed over these before
     * the first of its elements moves: one all-reduce of [rows].
     */
    private static final class RowwiseAdagradUpdate extends WeightUpdate {

        private static final String ISSUER = "row-wise Adagrad";
        private static final String SQUARES = SCRATCH + "squares";

        private final float epsilon;
        private @Nullable Communicator group; // over which rows are cut
        private long rowLength;
        private long shardLength; // of the axis that is cut, on this rank
        private long inner; // elements of one index of that axis, in a row
        private List<ShardRange> elsewhere = List.of(); // of the shard: counted by another rank

        RowwiseAdagradUpdate(Settings settings, float epsilon) {
            super(settings);
            this.epsilon = epsilon;
        }

        /** {@inheritDoc} */
        @Override
        public void setRowsCut(Communicator ranks, Shape whole, int axis, Cut cut) {
            group = ranks.getSize() > 1 ? ranks : null;
            rowLength = whole.size() / whole.get(0);
            shardLength = cut.getShardLength(ranks.getRank());
            inner = whole.slice(axis + 1).size();
            elsewhere =
                    cut.getSegments().stream()
                            .filter(segment -> segment.getPlace(ranks.getRank()) >= 0)
                            .filter(segment -> segment.getFirstRank() != ranks.getRank())
                            .map(
                                    s ->
                                            new ShardRange(
                                                    s.getPlace(ranks.getRank()),
                                                    s.range().length()))
                            .toList();
        }

        /** {@inheritDoc} */
        @Override
        boolean ignoresZeroGradient() {
            // ranks that share a row meet, whether they have a gradient or not
            return settings.weightDecay() == 0 && group == null;
        }

        /** {@inheritDoc} */
        @Override
        boolean isOfRows() {
            return true;
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(long classes, long features, TensorOptions options) {
            state("sums", options, classes); // of the means of the squared gradients so far
            if (group != null) {
                state(SQUARES, options, classes); // the sums of this step's
            }
        }

        /** {@inheritDoc} */
        @Override
        void measure(Consumer<Consumer<RowGradient>> rows) {
            if (group != null) {
                rows.accept(this::sumSquares);
                group.setIssuer(ISSUER);
                group.allReduce(TensorView.of(state(SQUARES)), ReduceOp.SUM).await();
            }
        }

        private void sumSquares(RowGradient chunk) {
            Tensor place = chunk.spare();
            torch.mul_out(place, chunk.gradient(1), new Scalar(settings.rescale()));
            if (settings.isClipped()) {
                place.clamp_max_(new Scalar(settings.clip()));
            }
            decay(place, chunk.weight);
            place.mul_(place);
            for (ShardRange range : elsewhere) {
                place.view(place.size(0), -1, shardLength, inner)
                        .narrow(2, range.start(), range.length())
                        .zero_();
            }
            chunk.rowsOf(state(SQUARES), 0).copy_(sum(place));
        }

        /** {@inheritDoc} */
        @Override
        public void apply(RowGradient chunk) {
            Tensor gradient = chunk.whole(settings);
            decay(gradient, chunk.weight);
            Tensor sums = state("sums");
            Tensor state = chunk.rowsOf(sums, 0);
            state.add_(means(chunk, gradient));
            Tensor divisor = state.sqrt().add_(new Scalar(epsilon));
            chunk.weight.addcdiv_(gradient, divisor.unsqueeze(1), new Scalar(-learningRate));
            chunk.setRows(sums, state);
        }

        /** Returns the means of the squared gradients of whole rows, [length]. */
        private Tensor means(RowGradient chunk, Tensor gradient) {
            if (group != null) {
                return chunk.rowsOf(state(SQUARES), 0).div(new Scalar((double) rowLength));
            }
            Tensor ofElements = chunk.spare();
            torch.mul_out(ofElements, gradient, gradient);
            return sum(ofElements).div_(new Scalar((double) gradient.size(1)));
        }

        private static Tensor sum(Tensor ofElements) {
            return ofElements.size(1) == 1
                    ? ofElements.squeeze(1) // of a bias: the sum of one number each takes its time
                    : ofElements.sum(new long[] {1}, false, new ScalarTypeOptional());
        }
    }

    /**
     * Stochastic gradient descent. As in DJL, the state of the momentum includes the learning rate:
     * {@code state = momentum * state + rate * (gradient + decay * weight)}, {@code weight -=
     * state}. PyTorch's state has no rate: here its rate is 1, and the rate of the step its
     * dampening.
     */
    private static final class SgdUpdate extends WeightUpdate {

        private final float momentum;

        SgdUpdate(Settings settings, float momentum) {
            super(settings);
            this.momentum = momentum;
        }

        /** {@inheritDoc} */
        @Override
        public void prepare(long classes, long features, TensorOptions options) {
            if (momentum != 0) {
                state("momentum", options, classes, features);
            }
        }

        /** {@inheritDoc} */
        @Override
        Fused fused(boolean onGpu) {
            boolean kept = momentum != 0;
            double rate = kept ? 1 : learningRate;
            double dampening = kept ? 1 - (double) learningRate : 0;
            double decay = settings.weightDecay();
            List<Double> numbers = List.of(decay, (double) momentum, rate, dampening);
            List<String> states = kept ? List.of("momentum") : List.of();
            return new Fused(FusedOperator.SGD, 0, numbers, states);
        }

        /** {@inheritDoc} */
        @Override
        public void apply(RowGradient chunk) {
            if (chunk.isMade() && momentum == 0 && settings.weightDecay() == 0) {
                // the bits of the fused operator, whose list of arguments takes longer than the sum
                chunk.weight.add_(chunk.whole(settings), new Scalar(-learningRate));
            } else if (settings.isClipped() || chunk.isMade()) {
                apply(fused(false), chunk);
            } else {
                addProduct(chunk);
            }
        }

        /** The same with a gradient that is only computed into what it is added to. */
        private void addProduct(RowGradient chunk) {
            Tensor weight = chunk.weight;
            float decay = learningRate * settings.weightDecay();
            float factor = learningRate * settings.rescale();
            if (momentum == 0) {
                chunk.accumulateInto(weight, 1 - decay, -factor);
                return;
            }
            Tensor state = state("momentum");
            Tensor moved = chunk.rowsOf(state, 0);
            chunk.accumulateInto(moved, momentum, factor);
            if (decay != 0) {
                moved.add_(weight, new Scalar(decay));
            }
            weight.sub_(moved);
            chunk.setRows(state, moved);
        }
    }
}

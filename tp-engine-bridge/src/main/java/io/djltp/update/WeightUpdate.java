package io.djltp.update;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Map;
import java.util.TreeMap;

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

    final Settings settings;
    float learningRate;
    long[] stretches; // of rows that are updated together, or null: all are

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
     * @param rows the lengths of the stretches of rows that the same ranks hold, in their order
     */
    public final void setStretches(long... rows) {
        stretches = rows.clone();
    }

    /**
     * Updates a weight by its gradient.
     *
     * @param weight the weight, [rows, x1, ..., xn], contiguous, changed in place
     * @param gradient its gradient, of the same shape, whose elements may be others afterwards, or
     *     {@code null} if it is zero everywhere
     */
    public final void run(NDArray weight, NDArray gradient) {
        DenseUpdate.run(weight, gradient, this);
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
        try (TorchScope scope = TorchScope.withoutGraph()) {
            prepare(weight, RestoredState.typeOf(name, values, weight.getDataType()));
            RestoredState.copy(name, values, state());
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

    /**
     * Returns the state by its names, without what is there for the computation alone.
     *
     * @return the state by its names, without what is there for the computation alone
     */
    protected abstract Map<String, Tensor> state();

    /** Returns whether a gradient of zero changes nothing. */
    boolean isStill() {
        return settings.weightDecay() == 0 && state().isEmpty();
    }

    /** Returns whether the update of a gradient that is there is one operation. */
    boolean isOneOperation(boolean onGpu) {
        return settings.rescale() == 1 && !settings.isClipped();
    }

    /** Returns whether {@link #measure} has to see all rows before the first is updated. */
    boolean isMeasured() {
        return false;
    }

    /** Looks at the gradient of some rows, which stays as it is. */
    void measure(GradientRows chunk) {
        throw new IllegalStateException("nothing is measured");
    }

    /** All rows of this rank have been measured. */
    void endMeasure() {}

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
    public abstract void apply(GradientRows chunk);

    /** Returns zeros that live until they are closed. */
    static Tensor zeros(TensorOptions options, long... shape) {
        try (PointerScope scope = new PointerScope()) {
            return torch.zeros(shape, options).retainReference();
        }
    }

    /** Returns the options of numbers that PyTorch's operators want in float32. */
    static TensorOptions float32(TensorOptions options) {
        return options.dtype(new ScalarTypeOptional(ScalarType.Float));
    }

    static void free(Tensor state) {
        if (state != null) {
            state.close();
        }
    }

    /** Frees the state. */
    @Override
    public abstract void close();
}

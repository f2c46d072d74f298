package io.djltp.internal.head;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.internal.Errors;
import io.djltp.internal.torch.DropoutMask;
import io.djltp.internal.torch.Float16Product;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;
import io.djltp.internal.update.RowGradient;
import io.djltp.internal.update.WeightUpdate;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.function.BiFunction;
import java.util.function.Consumer;
import java.util.stream.LongStream;

/**
 * A linear layer, the softmax cross entropy or a one-vs-all loss of its output and the update of
 * its weight in one, for layers whose logits are too large to materialise: they exist a chunk of
 * classes at a time, and the gradient of the weight not at all.
 *
 * <ul>
 *   <li>features X: [rows, features], the same on all ranks
 *   <li>weight W: [classes of the rank, features], by any cut that has each class on one rank
 *   <li>bias b: [classes of the rank], or none
 *   <li>labels: [rows], class numbers over all ranks, the same on all ranks; or several of a row,
 *       [rows, width], filled up with {@value ClassLabels#FILL}
 * </ul>
 *
 * <p>{@link #evaluate} passes over the weights once. Of each chunk it computes the logits Z, their
 * exponentials E, the sums of these, and the product EᵀW, which is the gradient of the features up
 * to one factor for each row. {@link #update} passes over them a second time and adds the product
 * EX, which is the gradient of the weights, to what the optimizer wants it in. In between, the
 * exponentials of as many chunks are kept as the memory budget allows; those of the others are
 * computed again.
 *
 * <p>Collectives: an all-reduce of the largest logit of each row, and one of the sum of the
 * exponentials, the logit of the label and, for label smoothing, the sum of the logits together.
 * The gradient of the features is this rank's summand.
 *
 * <p>By its {@link HeadOptions} a step is over a part of the classes, softmax and update alike, or
 * the logits are cosines with a margin.
 *
 * <p>Everything is computed in float32, and what is one number for each row in float64; with a
 * {@link io.djltp.torch.Precision} of 16 bits the factors of products are rounded, and the
 * exponentials that are kept. A weight in 16 bits is updated in float32 and rounded by {@link
 * StochasticRounding}. An instance belongs to one rank and one weight.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ChunkedHead implements AutoCloseable {

    private final ClassShard shard;
    private final HeadOptions head;
    private final @Nullable ClassSampler sampler;
    private final ChunkedEvaluation evaluation;
    private final HeadMemory memory;
    private @Nullable HeadPass pass; // whose update is to come
    private boolean guarded; // once logits have been too large, they are expected to be
    private long steps;

    /**
     * Creates the function of one rank.
     *
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param cut the cut of the classes
     * @param budget the bytes that logits may take on this rank
     * @param chunk the classes of a chunk, or 0 for what suits the device
     * @param head what the logits are, and of which classes
     * @throws IllegalArgumentException if a class is on several ranks, or the share of the classes
     *     leaves no negatives
     */
    public ChunkedHead(
            @Nullable Communicator group, Cut cut, long budget, long chunk, HeadOptions head) {
        this.head = head;
        shard = new ClassShard(cut, group);
        sampler =
                head.isSampled()
                        ? new ClassSampler(shard, head.sampleShare(), head.sampleSeed())
                        : null;
        evaluation = new ChunkedEvaluation(group, cut, budget, chunk, head.margin());
        memory = new HeadMemory(budget, chunk, head.precision(), !head.isInLoss());
    }

    /**
     * A loss and its gradient.
     *
     * @param value the loss, a scalar in float32, the same on all ranks
     * @param gradient this rank's summand of the gradient of the features, in their shape and type
     */
    public record Result(NDArray value, NDArray gradient) {}

    /**
     * What the next pass depends on beside its inputs, in the last bits too.
     *
     * @param steps the number of updates, by which classes are drawn
     * @param guarded whether logits of this rank have been too large for exponentials of them as
     *     they are, and are expected to be
     * @param rows the rows that the chunks of training steps are planned for, those of the largest
     *     batch so far, or 0: sums are rounded as chunks are long
     * @param evaluationRows the same of evaluations
     */
    public record State(long steps, boolean guarded, long rows, long evaluationRows) {}

    /**
     * Computes the loss and the gradient of the features, and prepares the update. It takes the
     * place of an update that was prepared before.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn] or [x1, ..., xn, width], of any numeric type
     * @param options the options of the loss
     * @return the loss and the gradient, attached to the manager of the features
     * @throws IllegalArgumentException if a label is not a class, labels do not fit the features,
     *     the memory budget is too small, or device or weight cannot have the precision
     * @throws ArithmeticException if the features or the logits hold NaN or infinite values; the
     *     weights are as they were
     */
    public Result evaluate(
            NDArray features,
            NDArray weight,
            @Nullable NDArray bias,
            NDArray labels,
            LossOptions options) {
        pass = null;
        SoftmaxLoss.check(options, shard.total(), true);
        Errors.check(
                !head.isInLoss(),
                "A softmax needs two passes over the weight, and a head with optUpdateInLoss makes"
                        + " one: leave the option out, or train it with a OneVsAllLoss");
        return evaluate(
                features,
                weight,
                labels,
                options,
                false,
                (x, rows) -> softmax(x, corrected(weight, bias, rows), rows));
    }

    /**
     * Computes a loss of features, [rows, features], and its gradient.
     *
     * @param finite whether the features are to be looked through first: a one-vs-all loss may
     *     update the weight before it knows anything
     */
    private Result evaluate(
            NDArray features,
            NDArray weight,
            NDArray labels,
            LossOptions options,
            boolean finite,
            BiFunction<Tensor, ClassLabels, HeadPass.Found> loss) {
        ClassLabels.Given given = ClassLabels.Given.of(features, labels, shard, options);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor x = ClassLabels.rows(features);
            Tensor bits = given.bits();
            if (finite) {
                Tensor zero = HeadPass.zeroIfFinite(x).to(ScalarType.Double);
                bits = torch.cat(new TensorVector(bits, zero.view(1)));
            }
            double[] read = HostReads.doubles(bits);
            ClassLabels all = given.checked(read);
            if (finite && read[read.length - 1] != 0) {
                throw notFinite("features", shard.rank());
            }
            ClassLabels rows = sampler == null ? all : sampled(all, sampler);
            checkPrecision(weight);
            prepareMemory(x, rows, options);
            HeadPass.Found found = loss.apply(x, rows);
            Tensor gradient =
                    found.gradient()
                            .to(TensorView.of(features).tensor().scalar_type())
                            .view(features.getShape().getShape());
            return new Result(
                    TensorView.toArray(found.value(), features.getManager()),
                    TensorView.toArray(gradient, features.getManager()));
        }
    }

    private HeadPass.Found softmax(Tensor features, ChunkedLinear linear, ClassLabels rows) {
        MarginLabels margin =
                head.margin() == null
                        ? null
                        : new MarginLabels(head.margin(), memory.shared(), rows, features, linear);
        HeadPass first = run(margin == null ? features : margin.features(), linear, rows, margin);
        SoftmaxLoss loss = first.loss();
        Tensor gradient = first.featureGradient(loss, linear);
        pass = first;
        return new HeadPass.Found(loss.value(memory.shared().options()), gradient);
    }

    /**
     * What is done to the weight while a loss is computed.
     *
     * @param update the update, or {@code null} if the weight is not to be changed
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     */
    public record InLoss(@Nullable WeightUpdate update, @Nullable NDArray biasGradient) {}

    /**
     * Computes a one-vs-all loss and the gradient of the features, and prepares the update, or
     * makes it in the same pass. One all-reduce, of the loss.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn] or [x1, ..., xn, width], of any numeric type
     * @param loss the loss
     * @param now the update that is made, or {@code null} if {@link #update} makes it
     * @return the loss and the gradient, attached to the manager of the features
     * @throws IllegalArgumentException as {@link #evaluate}, or if the head has a margin
     * @throws ArithmeticException if the features or the logits hold NaN or infinite values
     */
    public Result evaluateOneVsAll(
            NDArray features,
            NDArray weight,
            @Nullable NDArray bias,
            NDArray labels,
            OneVsAll loss,
            @Nullable InLoss now) {
        pass = null;
        loss.check(shard.total());
        if (head.margin() != null || head.precision() == Precision.FLOAT16) {
            throw new IllegalArgumentException(
                    "A head with a margin, or in float16, has a softmax, and no one-vs-all loss:"
                            + " leave out optMargin, and use float32 or bfloat16");
        }
        return evaluate(
                features,
                weight,
                labels,
                loss.options(),
                true,
                (x, rows) -> oneVsAll(x, weight, bias, rows, loss, now));
    }

    private HeadPass.Found oneVsAll(
            Tensor x,
            NDArray weight,
            @Nullable NDArray bias,
            ClassLabels rows,
            OneVsAll loss,
            @Nullable InLoss now) {
        ChunkedLinear linear = linear(weight, bias, rows);
        HeadPass run = new HeadPass(memory, rows, false, head.precision(), loss);
        WeightUpdate update = now == null ? null : now.update();
        NDArray ofBias = now == null ? null : now.biasGradient();
        Tensor target = ofBias == null ? null : TensorView.of(ofBias).tensor();
        Tensor biasGradient = target == null ? null : linear.biasGradient(memory.shared(), target);
        HeadPass.Found found =
                run.runOneVsAll(
                        x, linear, biasGradient, update == null ? null : rule(update, weight));
        int unusable = run.firstUnusable(true);
        if (unusable >= 0) {
            throw notFinite("logits", unusable);
        }
        if (target != null && biasGradient != null) {
            linear.setBiasGradient(target, biasGradient);
        }
        if (now == null) {
            pass = run;
        } else {
            steps++;
        }
        return found;
    }

    private Consumer<RowGradient> rule(WeightUpdate update, NDArray weight) {
        long[] shape = weight.getShape().getShape();
        update.prepare(shape[0], shape[1], memory.shared().options());
        return update::apply;
    }

    private void checkFinite(Tensor x) {
        if (!HeadPass.isFinite(x)) {
            throw notFinite("features", shard.rank());
        }
    }

    /** Checks that the precision can be had for a weight. */
    private void checkPrecision(NDArray weight) {
        Precision precision = head.precision();
        Device device = weight.getDevice();
        if (precision == Precision.FLOAT32) {
            return;
        }
        Errors.check(
                precision != Precision.BFLOAT16 || !device.isGpu(),
                "A fused head computes in bfloat16 on processors only, and this rank's is on %s:"
                        + " use float16 or float32 there",
                device);
        Tensor stored = TensorView.of(weight).tensor();
        boolean isSmall = precision == Precision.BFLOAT16 && StochasticRounding.isFor(stored);
        if (!isSmall && stored.scalar_type().intern() != ScalarType.Float) {
            throw Errors.argument(
                    "A fused head that computes in %s has its weight in float32%s, and this weight"
                            + " is not: initialize the network in float32, or leave optPrecision"
                            + " out",
                    precision, precision == Precision.BFLOAT16 ? " or 16 bits" : "");
        }
        precision.check(device);
        Errors.check(
                precision != Precision.FLOAT16 || Float16Product.isThere(device.isGpu()),
                "A fused head computes in float16 by cublasGemmEx on the stream of libtorch, which"
                        + " is not found in the libtorch here for %s: use float32",
                device);
    }

    /** Returns the layer, reduced to the sample of the classes if there is one. */
    private ChunkedLinear linear(NDArray weight, @Nullable NDArray bias, ClassLabels rows) {
        long[] sample = rows.sample;
        Tensor columns = sample == null ? null : memory.shared().index(sample);
        Tensor stored = TensorView.of(weight).tensor();
        StochasticRounding rounding =
                StochasticRounding.isFor(stored)
                        ? new StochasticRounding(
                                DropoutMask.key(head.sampleSeed(), steps),
                                i -> shard.classOf(sample == null ? i : sample[(int) i]),
                                stored)
                        : null;
        return new ChunkedLinear(weight, bias, columns, head.margin() != null, rounding);
    }

    /** The same, with logits that are corrected for how classes were drawn, if the head does so. */
    private ChunkedLinear corrected(NDArray weight, @Nullable NDArray bias, ClassLabels rows) {
        ChunkedLinear linear = linear(weight, bias, rows);
        if (rows.sample == null || !head.isCorrected()) {
            return linear;
        }
        float[] added = new float[rows.sample.length];
        Arrays.fill(added, (float) Math.log(rows.weightOfOthers()));
        LongStream.of(rows.columnsOfBatch()).forEach(column -> added[(int) column] = 0);
        return linear.withAdded(HostReads.toDevice(memory.shared().options().device(), added));
    }

    /** Draws the classes of this step. */
    private ClassLabels sampled(ClassLabels all, ClassSampler drawn) {
        long classes = drawn.countClasses(steps, all.counted());
        return all.restrictedTo(drawn.draw(steps, all.columns), classes);
    }

    private void prepareMemory(Tensor x, ClassLabels rows, LossOptions options) {
        long computed = HeadPass.rows(x.size(0), options, head.precision());
        long classes = rows.sample == null ? shard.length() : rows.sample.length;
        memory.prepare(x, computed, head.keptBytes(options), this::mostClasses, classes);
        memory.setClasses(classes);
    }

    private long mostClasses(long rows) {
        return sampler == null ? shard.length() : sampler.most(rows);
    }

    /**
     * Multiplies the gradient of the last loss.
     *
     * @param factor one element: what the backward pass multiplies the loss with
     */
    @SuppressWarnings("try") // a scope is used by being open
    public void scale(TensorView factor) {
        if (pass != null && HostReads.known(factor.tensor()) != 1) {
            try (TorchScope scope = TorchScope.withoutGraph()) {
                pass.scale(factor.tensor());
            }
        }
    }

    /** {@return whether the gradient of the last loss, if there is one, is finite} */
    public boolean hasFiniteGradient() {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return pass == null || pass.hasFiniteFactors();
        }
    }

    /**
     * Updates the weight by the gradient of the last loss, which is used up. If an exception is
     * thrown in the middle, a part of the weight may be updated, and the gradient is used up too.
     *
     * @param weight the rank's shard of the weight, changed in place
     * @param bias the rank's shard of the bias, or {@code null}; not changed
     * @param biasGradient where the gradient of the bias goes, [classes/p], or {@code null} if it
     *     is not wanted
     * @param update the update, or {@code null} if the weight is not to be changed
     * @param scale what the gradient of the loss is multiplied with
     * @param added what else the gradient of the weight has, or {@code null}
     * @throws IllegalStateException if there is no loss whose gradient is not used up
     */
    public void update(
            NDArray weight,
            @Nullable NDArray bias,
            @Nullable NDArray biasGradient,
            @Nullable WeightUpdate update,
            float scale,
            @Nullable AddedGradient added) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            // without a pass the second one throws
            Consumer<RowGradient> rule =
                    update == null || pass == null ? null : rule(update, weight);
            AddedGradient.Chunks others = AddedGradient.Chunks.of(added);
            secondPass(weight, bias, biasGradient, rule, scale, others);
        }
        steps++;
    }

    /**
     * Adds the gradient of the last loss, which is used up, to a sum and leaves the weight as it
     * is: for several batches in one step. After an exception the gradient is used up too, and a
     * part of it may be in the sum.
     *
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param sum what the gradient of the weight is added to, float32 [classes/p, features], or
     *     {@code null}
     * @param first whether what is in the sum does not count
     * @param scale what the gradient of the loss is multiplied with
     */
    public void accumulate(
            NDArray weight,
            @Nullable NDArray bias,
            @Nullable NDArray biasGradient,
            @Nullable NDArray sum,
            boolean first,
            float scale) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor target = sum == null ? null : TensorView.of(sum).tensor();
            Consumer<RowGradient> rule =
                    target == null ? null : chunk -> accumulate(chunk, target, first);
            secondPass(weight, bias, biasGradient, rule, scale, null);
        }
    }

    private static void accumulate(RowGradient chunk, Tensor target, boolean first) {
        Tensor rows = chunk.rowsOf(target, 0);
        chunk.accumulateInto(first ? rows.zero_() : rows, 1, 1);
    }

    private void secondPass(
            NDArray weight,
            @Nullable NDArray bias,
            @Nullable NDArray biasGradient,
            @Nullable Consumer<RowGradient> update,
            float scale,
            AddedGradient.@Nullable Chunks added) {
        HeadPass second = Errors.present(pass, "There is no loss whose gradient could be used");
        pass = null;
        ChunkedLinear linear =
                second.isOneVsAll()
                        ? linear(weight, bias, second.labels)
                        : corrected(weight, bias, second.labels);
        Tensor target = biasGradient == null ? null : TensorView.of(biasGradient).tensor();
        if (target != null) {
            Tensor gradient = linear.biasGradient(memory.shared(), target);
            second.update(linear, gradient, update, scale, added);
            linear.setBiasGradient(target, gradient);
        } else if (update != null) {
            second.update(linear, null, update, scale, added);
        }
    }

    /** {@return whether the weight is updated with a one-vs-all loss} */
    public boolean isInLoss() {
        return head.isInLoss();
    }

    /** {@return whether steps draw classes, and are over a part of them} */
    public boolean isSampled() {
        return sampler != null;
    }

    /**
     * Returns what the next pass depends on beside its inputs.
     *
     * @return the state
     */
    public State getState() {
        return new State(steps, guarded, memory.plannedRows(), evaluation.plannedRows());
    }

    /**
     * Goes on with the state of another run. To be called between two steps.
     *
     * @param state what {@link #getState()} has returned there
     */
    public void setState(State state) {
        pass = null;
        steps = state.steps();
        guarded = state.guarded();
        memory.setLeastRows(state.rows());
        evaluation.setPlannedRows(state.evaluationRows());
    }

    /** {@return what is computed from the same logits without training, closed with this} */
    public ChunkedEvaluation evaluation() {
        return evaluation;
    }

    /** Returns the memory that steps share. */
    HeadMemory memory() {
        return memory;
    }

    /** Computes the loss of all chunks; all ranks again with a guard, if one has to. */
    private HeadPass run(
            Tensor x, ChunkedLinear linear, ClassLabels labels, @Nullable MarginLabels margin) {
        HeadPass first = new HeadPass(memory, labels, guarded, head.precision());
        first.run(x, linear, margin);
        if (first.firstUnusable(false) < 0) {
            return first;
        }
        checkFinite(x);
        guarded = true;
        HeadPass second = new HeadPass(memory, labels, true, head.precision());
        second.run(x, linear, margin);
        int unusable = second.firstUnusable(true);
        if (unusable >= 0) {
            throw notFinite(second.uncheckedName(), unusable);
        }
        return second;
    }

    private ArithmeticException notFinite(String what, int rank) {
        return new ArithmeticException(
                ("The %s hold NaN or infinite values on rank %d in step %d; the weights are as"
                                + " they were before")
                        .formatted(what, rank, steps + 1));
    }

    /** Frees the memory. */
    @Override
    public void close() {
        pass = null;
        memory.close();
        evaluation.close();
    }
}

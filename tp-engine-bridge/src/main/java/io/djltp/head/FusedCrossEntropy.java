package io.djltp.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.torch.Autograd;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;
import io.djltp.update.WeightUpdate;

import org.bytedeco.pytorch.Tensor;

/**
 * A linear layer, the softmax cross entropy of its output and the update of its weight in one, for
 * layers whose output is too large to be had: the logits exist a chunk of classes at a time, and
 * the gradient of the weight not at all.
 *
 * <ul>
 *   <li>features X: [rows, features], the same on all ranks
 *   <li>weight W: [classes/p, features] on each of the p ranks
 *   <li>bias b: [classes/p], or none
 *   <li>labels: [rows], class numbers over all ranks, the same on all ranks
 * </ul>
 *
 * <p>{@link #evaluate} passes over the weights once. Of each chunk it computes the logits, their
 * exponentials, the sums of these, and their product with the weights, which is the gradient of the
 * features up to one factor for each row. {@link #update} passes over them a second time and adds
 * the product of exponentials and features, which is the gradient of the weights, to what the
 * optimizer wants it in. In between, the exponentials of as many chunks are kept as the memory
 * budget allows; those of the others are computed again.
 *
 * <p>Collectives: an all-reduce of the largest logit of each row, and one of the sum of the
 * exponentials, the logit of the label and, for label smoothing, the sum of the logits together.
 * The gradient of the features is this rank's summand.
 *
 * <p>By its {@link HeadOptions} a step is over a part of the classes, softmax and update alike, or
 * the logits are cosines with a margin.
 *
 * <p>Everything is computed in float32, and what is one number for each row in float64. An instance
 * belongs to one rank and one weight.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class FusedCrossEntropy implements AutoCloseable {

    private final Communicator group;
    private final ShardRange range;
    private final long total;
    private final long budget;
    private final long chunk;
    private final HeadOptions head;
    private final ClassSampler sampler; // or null
    private final ChunkedEvaluation evaluation;
    private Lanes lanes;
    private FusedMemory memory;
    private FusedPass pass; // whose update is to come
    private boolean guarded; // once logits have been too large, they are expected to be
    private long steps;

    /**
     * Creates the function of one rank.
     *
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param range the classes of this rank
     * @param total the number of classes of all ranks
     * @param budget the bytes that logits may take on this rank
     * @param chunk the classes of a chunk, or 0 for what suits the device
     */
    public FusedCrossEntropy(
            Communicator group, ShardRange range, long total, long budget, long chunk) {
        this(group, range, total, budget, chunk, HeadOptions.DEFAULT);
    }

    /**
     * Creates the function of one rank, of a part of the classes or with a margin.
     *
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param range the classes of this rank; of a part of the classes, those of a balanced cut
     * @param total the number of classes of all ranks
     * @param budget the bytes that logits may take on this rank
     * @param chunk the classes of a chunk, or 0 for what suits the device
     * @param head what the logits are, and of which classes
     * @throws IllegalArgumentException if the share of the classes leaves no negatives
     */
    public FusedCrossEntropy(
            Communicator group,
            ShardRange range,
            long total,
            long budget,
            long chunk,
            HeadOptions head) {
        this.group = group;
        this.range = range;
        this.total = total;
        this.budget = budget;
        this.chunk = chunk;
        this.head = head;
        sampler = head.isSampled() ? newSampler() : null;
        evaluation = new ChunkedEvaluation(group, range, total, budget, chunk, head.margin());
    }

    private ClassSampler newSampler() {
        int rank = group == null ? 0 : group.getRank();
        int ranks = group == null ? 1 : group.getSize();
        if (!range.equals(Cut.balanced(total, ranks).getRange(rank))) {
            throw new IllegalArgumentException(
                    "Classes are drawn of balanced ranges, not " + range);
        }
        return new ClassSampler(total, rank, ranks, head.sampleShare(), head.sampleSeed());
    }

    /**
     * A loss and its gradient.
     *
     * @param value the loss, a scalar in float32, the same on all ranks
     * @param gradient this rank's summand of the gradient of the features, in their shape and type
     */
    public record Result(NDArray value, NDArray gradient) {}

    /**
     * Computes the loss and the gradient of the features, and prepares the update. It takes the
     * place of an update that was prepared before.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @param options the options of the loss
     * @return the loss and the gradient, attached to the manager of the features
     * @throws IllegalArgumentException if a label is not a class, the labels do not fit the
     *     features, or the memory budget is too small
     * @throws ArithmeticException if the features or the logits hold NaN or infinite values; the
     *     weights are as they were
     */
    public Result evaluate(
            NDArray features, NDArray weight, NDArray bias, NDArray labels, LossOptions options) {
        pass = null;
        LabelRows rows = LabelRows.of(features, labels, range, total, options.ignoreIndex());
        long used = total;
        if (sampler != null) {
            used = sampler.countClasses(rows.counted());
            rows = rows.in(sampler.draw(steps, rows.classes));
        }
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor x = rows(features);
            prepare(x, options);
            memory.setClasses(rows.sample == null ? range.length() : rows.sample.length);
            ChunkedLinear linear = linear(memory.shared(), weight, bias, rows.sample);
            checkFinite(x, "features");
            MarginLabels margin = margin(rows, linear);
            if (margin != null) {
                margin.evaluate(x, linear);
                x = margin.features();
            }
            FusedPass begun = run(x, linear, rows, options, used);
            checkFinite(begun.batch(memory.shared().wideColumn("sum")), "logits");
            FusedStatistics statistics = new FusedStatistics(begun, linear, margin);
            allReduce(statistics.largest(), ReduceOp.MAX);
            allReduce(statistics.sums(), ReduceOp.SUM);
            Tensor gradient = statistics.featureGradient();
            gradient = gradient.to(TensorView.of(features).tensor().scalar_type());
            Result result =
                    new Result(
                            TensorView.toArray(statistics.value(), features.getManager()),
                            TensorView.toArray(
                                    gradient.view(features.getShape().getShape()),
                                    features.getManager()));
            pass = begun;
            return result;
        }
    }

    /**
     * Updates the weight by the gradient of the last loss, which is used up.
     *
     * @param weight the rank's shard of the weight, changed in place
     * @param bias the rank's shard of the bias, or {@code null}; not changed
     * @param biasGradient where the gradient of the bias goes, [classes/p] in float32, or {@code
     *     null} if it is not wanted
     * @param update the update, or {@code null} if the weight is not to be changed
     * @param scale what the loss was multiplied with before it was differentiated
     */
    public void update(
            NDArray weight, NDArray bias, NDArray biasGradient, WeightUpdate update, float scale) {
        if (pass == null) {
            throw new IllegalStateException("There is no loss whose gradient could be used");
        }
        try (TorchScope scope = TorchScope.withoutGraph()) {
            if (update != null) {
                long classes = weight.getShape().get(0);
                long length = weight.getShape().get(1);
                update.prepare(classes, length, memory.shared().options());
            }
            ChunkedLinear linear = linear(memory.shared(), weight, bias, pass.labels.sample);
            margin(pass.labels, linear);
            Tensor target = biasGradient == null ? null : TensorView.of(biasGradient).tensor();
            Tensor gradient = linear.biasGradient(target);
            pass.update(linear, gradient, update, scale);
            linear.setBiasGradient(target, gradient);
        }
        pass = null;
        steps++;
    }

    /**
     * Returns whether a step is over a part of the classes.
     *
     * @return whether classes are drawn
     */
    public boolean isSampled() {
        return sampler != null;
    }

    /**
     * Returns the number of steps, by which classes are drawn.
     *
     * @return the number of updates
     */
    public long getSteps() {
        return steps;
    }

    /**
     * Sets the number of steps, to draw the classes of a run that is continued.
     *
     * @param number the number of updates
     */
    public void setSteps(long number) {
        steps = number;
    }

    /** Gives up the update that was prepared. */
    public void discard() {
        pass = null;
    }

    /**
     * Returns what is computed from the same logits without training.
     *
     * @return the evaluation, which is closed with this
     */
    public ChunkedEvaluation evaluation() {
        return evaluation;
    }

    private ChunkedLinear linear(ChunkBuffers own, NDArray weight, NDArray bias, long[] sample) {
        return new ChunkedLinear(
                own,
                TensorView.of(weight).tensor().detach(),
                bias == null ? null : TensorView.of(bias).tensor().detach(),
                sample == null ? null : own.index(sample),
                head.margin() != null);
    }

    /** Lets the margin take the place of the logits of labels, if there is one. */
    private MarginLabels margin(LabelRows rows, ChunkedLinear linear) {
        if (head.margin() == null) {
            return null;
        }
        MarginLabels margin = new MarginLabels(head.margin(), memory.shared(), rows);
        linear.setMargin(margin);
        return margin;
    }

    static Tensor rows(NDArray features) {
        Tensor tensor = TensorView.of(features).tensor().detach();
        return tensor.reshape(-1, tensor.size(-1));
    }

    /** Returns the memory that steps share. */
    FusedMemory memory() {
        return memory;
    }

    private FusedPass run(
            Tensor x, ChunkedLinear linear, LabelRows rows, LossOptions options, long used) {
        FusedPass begun = new FusedPass(memory, lanes, rows, options, used, guarded);
        begun.run(x, linear);
        if (begun.isUsable()) {
            return begun;
        }
        guarded = true;
        return run(x, linear, rows, options, used);
    }

    private void prepare(Tensor x, LossOptions options) {
        long rows = x.size(0) + (options.labelSmoothing() > 0 ? 1 : 0);
        if (lanes == null) {
            lanes = new Lanes(x.is_cuda() ? 1 : Autograd.getThreads());
        }
        if (memory == null || !memory.shared().fits(rows, x.size(1))) {
            long classes = sampler == null ? range.length() : sampler.most(rows);
            ChunkPlan[] plans = plans(rows, x, classes, lanes.count());
            FusedMemory larger = new FusedMemory(plans, x.size(1), x);
            if (memory != null) {
                memory.close();
            }
            memory = larger;
        }
        memory.setRows(rows);
    }

    private ChunkPlan[] plans(long rows, Tensor x, long classes, int count) {
        return ChunkPlan.of(rows, x.size(1), classes, chunk, budget, count, x.is_cuda());
    }

    private void checkFinite(Tensor tensor, String what) {
        if (!tensor.isfinite().all().item_bool()) {
            int rank = group == null ? 0 : group.getRank();
            throw new ArithmeticException(
                    "The "
                            + what
                            + " hold NaN or infinite values on rank "
                            + rank
                            + " in step "
                            + (steps + 1)
                            + "; the weights are as they were before");
        }
    }

    private void allReduce(Tensor tensor, ReduceOp op) {
        if (group != null && group.getSize() > 1) {
            group.allReduce(TensorView.of(tensor), op).await();
        }
    }

    /** Frees the memory. */
    @Override
    public void close() {
        pass = null;
        if (lanes != null) {
            lanes.close();
            lanes = null;
        }
        if (memory != null) {
            memory.close();
            memory = null;
        }
        evaluation.close();
    }
}

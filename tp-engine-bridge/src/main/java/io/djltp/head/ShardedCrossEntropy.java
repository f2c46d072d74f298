package io.djltp.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.AbstractTensor;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Arrays;
import java.util.stream.LongStream;

/**
 * The softmax cross entropy of logits that are there, each rank having a shard of the classes, by
 * the {@link SoftmaxLoss}. The logits are computed with in float32.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ShardedCrossEntropy {

    /** Reductions of libtorch: what {@code at::Reduction} calls None and Sum. */
    private static final long ROWS = 0;

    private static final long SUM = 2;

    private final LossOptions options;

    /**
     * Creates the function.
     *
     * @param options the options of the loss
     */
    public ShardedCrossEntropy(LossOptions options) {
        LibTorch.load(); // before anything else of the preset
        this.options = options;
    }

    /**
     * A loss and its gradient.
     *
     * @param value the loss, a scalar in float32, the same on all ranks
     * @param gradient the gradient of the rank's logits, in their shape and type, or {@code null}
     *     if it was not asked for
     */
    public record Result(NDArray value, NDArray gradient) {}

    /**
     * Computes the loss. Two all-reduces: of the largest logits, and of the sums of the formula.
     *
     * @param logits the rank's shard of the logits, [x1, ..., xn, classes of the rank]
     * @param labels the labels over all ranks, [x1, ..., xn], of any numeric type
     * @param cut the cut of the classes
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param withGradient whether the gradient is wanted
     * @return the loss and the gradient, attached to the manager of the logits; without a reduction
     *     the losses of the rows, [x1, ..., xn], and the gradient of their sum
     * @throws IllegalArgumentException if a label is not a class, the labels do not fit the logits,
     *     or a class is on several ranks
     */
    public Result evaluate(
            NDArray logits, NDArray labels, Cut cut, Communicator group, boolean withGradient) {
        ClassShard shard = new ClassShard(cut, group);
        options.checkClasses(shard.total());
        ShardLabels ofShard = ShardLabels.of(logits, labels, shard, options.ignoreIndex());
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor given = ShardLabels.rows(logits);
            Tensor z = given.to(ScalarType.Float);
            Batch batch = new Batch(z, ofShard, shard);
            NDArray value = shaped(batch.loss.value(z.options()), options, logits);
            if (!withGradient) {
                return new Result(value, null);
            }
            Tensor gradient = batch.gradient().to(given.scalar_type());
            return new Result(
                    value,
                    TensorView.toArray(
                            gradient.view(logits.getShape().getShape()), logits.getManager()));
        }
    }

    /** One batch on one rank. */
    private final class Batch {

        private final Tensor z; // the logits, [rows, classes of the rank]
        private final Tensor labelRows; // int64 [labels]
        private final Tensor places; // of the labels' logits among all of the rank, [labels]
        private final Tensor softmax; // of this rank's classes among themselves
        private final Tensor forbidden; // the rows with minus infinity for all of these, [rows]
        private final boolean isForbidden; // any of them
        private final Tensor classWeights; // of this rank's classes, float32, or null
        private final Tensor localNormaliser; // of this rank's classes, with the largest of all
        private final long[] rows; // of the labels
        private final SoftmaxLoss loss;

        Batch(Tensor logits, ShardLabels labels, ClassShard shard) {
            z = logits;
            rows = labels.rows;
            classWeights = classWeights(shard, logits);
            long columns = logits.size(1);
            labelRows = index(logits, rows);
            places = index(logits, labels.places(0, rows.length, 0, 1, columns));
            Tensor localLargest = largestOfRows(logits);
            softmax = z.softmax(1);
            Tensor largest = localLargest.clone();
            shard.allReduce(largest, ReduceOp.MAX);
            Tensor m = largest.to(ScalarType.Double);
            // exp(z - m) of this rank's largest logit is its part of the softmax, which is never
            // tiny, of the normaliser: so the exponentials are not computed a second time
            localNormaliser = localLargest.to(ScalarType.Double).sub_(m).exp_();
            if (columns > 0) {
                localNormaliser.div_(softmax.amax(new long[] {1}, false));
            }
            forbidden = localLargest.isneginf();
            localNormaliser.masked_fill_(forbidden, new Scalar(0));
            Tensor sums = SoftmaxLoss.newSums(options, largest);
            sums.select(0, SoftmaxLoss.NORMALISER).copy_(localNormaliser);
            Tensor labelLogits = z.reshape(-1).index_select(0, places).to(ScalarType.Double);
            sums.select(0, SoftmaxLoss.LABEL)
                    .index_add_(0, labelRows, labelLogits.sub_(m.index_select(0, labelRows)));
            if (options.labelSmoothing() > 0) {
                Tensor weighted = classWeights == null ? z : z.mul(classWeights);
                ScalarTypeOptional wide = new ScalarTypeOptional(ScalarType.Double);
                sums.select(0, SoftmaxLoss.LOGITS).copy_(weighted.sum(new long[] {1}, false, wide));
            }
            shard.allReduce(sums, ReduceOp.SUM);
            double[] numbers = SoftmaxLoss.read(sums, largest, forbidden);
            loss = new SoftmaxLoss(options, labels, numbers);
            isForbidden =
                    Arrays.stream(numbers, numbers.length - labels.counts.length, numbers.length)
                            .anyMatch(each -> each == 1);
        }

        /** Returns the gradient of the logits, in the memory of the softmax. */
        Tensor gradient() {
            if (isForbidden) { // a softmax of minus infinities alone is NaN
                softmax.masked_fill_(forbidden.unsqueeze(1), new Scalar(0));
            }
            Tensor factor = tensor(loss.softmaxFactors()).mul_(localNormaliser);
            softmax.mul_(factor.to(ScalarType.Float).unsqueeze(1));
            if (options.labelSmoothing() > 0) {
                Tensor share = tensor(loss.smoothedShares()).to(ScalarType.Float).unsqueeze(1);
                softmax.sub_(classWeights == null ? share : share.mul(classWeights));
            }
            double[] parts =
                    LongStream.of(rows).mapToDouble(i -> loss.labelPart((int) i)).toArray();
            softmax.view(-1).index_add_(0, places, tensor(parts).to(ScalarType.Float));
            return softmax;
        }

        private Tensor tensor(double... numbers) {
            return SoftmaxLoss.tensor(z.options(), numbers);
        }
    }

    /**
     * Computes the loss of logits that are not cut, in operations that autograd records. Logits in
     * float64 are computed with in float64.
     *
     * @param logits the logits, [x1, ..., xn, classes]
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @return the loss, a scalar in float32, attached to the manager of the logits
     * @throws IllegalArgumentException if a label is not a class, or the labels do not fit the
     *     logits
     */
    public NDArray record(NDArray logits, NDArray labels) {
        int last = logits.getShape().dimension() - 1;
        long classes = logits.getShape().get(last);
        ClassShard shard = new ClassShard(Cut.ofLengths(classes), null);
        options.checkClasses(classes);
        ShardLabels rows = ShardLabels.of(logits, labels, shard, options.ignoreIndex());
        try (TorchScope scope = TorchScope.open()) {
            Tensor z = TensorView.of(logits).tensor().reshape(-1, classes);
            boolean isDouble = z.scalar_type().intern() == ScalarType.Double;
            z = isDouble ? z : z.to(ScalarType.Float);
            boolean none = options.reduction() == Reduction.NONE;
            Tensor weights = classWeights(shard, z);
            Tensor loss =
                    torch.cross_entropy_loss(
                            z,
                            index(z, rows.all()),
                            weights == null
                                    ? new TensorOptional()
                                    : new TensorOptional(weights.to(z.scalar_type())),
                            none ? ROWS : SUM,
                            options.ignoreIndex(),
                            options.labelSmoothing());
            if (options.zLoss() > 0) {
                double[] ofRows =
                        LongStream.of(rows.all())
                                .mapToDouble(label -> options.zLoss() * options.weightOf(label))
                                .toArray();
                Tensor squares =
                        z.logsumexp(1).square().mul(SoftmaxLoss.tensor(z.options(), ofRows));
                loss = loss.add(none ? squares : squares.sum());
            }
            Scalar share = new Scalar(SoftmaxLoss.share(options, rows));
            return shaped(loss.mul(share).to(ScalarType.Float), options, logits);
        }
    }

    static NDArray shaped(Tensor loss, LossOptions options, NDArray rows) {
        Tensor value =
                options.reduction() == Reduction.NONE
                        ? loss.view(ShardLabels.leading(rows).getShape())
                        : loss;
        return TensorView.toArray(value, rows.getManager());
    }

    /** Returns the weights of a rank's classes, float32 on the device, or {@code null}. */
    private Tensor classWeights(ClassShard shard, Tensor like) {
        return options.classWeights() == null
                ? null
                : AbstractTensor.create(shard.part(options.classWeights()))
                        .to(like.device(), ScalarType.Float);
    }

    private static Tensor largestOfRows(Tensor logits) {
        return logits.size(1) > 0
                ? logits.amax(new long[] {1}, false)
                : logits.new_full(new long[] {logits.size(0)}, new Scalar(-Float.MAX_VALUE));
    }

    private static Tensor index(Tensor like, long[] values) {
        return torch.tensor(values).to(like.device(), ScalarType.Long);
    }
}

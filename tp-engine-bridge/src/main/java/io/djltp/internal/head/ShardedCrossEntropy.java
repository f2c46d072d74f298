package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.stream.DoubleStream;
import java.util.stream.Stream;

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
    public record Result(NDArray value, @Nullable NDArray gradient) {}

    /**
     * Computes the loss. One all-gather of what the ranks have of the rows, which is read together
     * with the labels: the host waits once for the device.
     *
     * @param logits the rank's shard of the logits, [x1, ..., xn, classes of the rank]
     * @param labels the labels over all ranks, [x1, ..., xn] or [x1, ..., xn, width], of any
     *     numeric type
     * @param cut the cut of the classes
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param withGradient whether the gradient is wanted
     * @return the loss and the gradient, attached to the manager of the logits; without a reduction
     *     the losses of the rows, [x1, ..., xn], and the gradient of their sum
     * @throws IllegalArgumentException if a label is not a class, the labels do not fit the logits,
     *     or a class is on several ranks
     */
    public Result evaluate(
            NDArray logits,
            NDArray labels,
            Cut cut,
            @Nullable Communicator group,
            boolean withGradient) {
        ClassShard shard = new ClassShard(cut, group);
        SoftmaxLoss.check(options, shard.total(), false);
        ClassLabels.Given labelsGiven = ClassLabels.Given.of(logits, labels, shard, options);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor given = ClassLabels.rows(logits);
            Tensor z = given.to(ScalarType.Float);
            Tensor classWeights = classWeights(shard, z);
            boolean none = z.size(1) == 0; // no class is on this rank
            Tensor columns = labelsGiven.columns().view(z.size(0), labelsGiven.width());
            Tensor index = columns.clamp_min(new Scalar(0L));
            Tensor ofLabels =
                    none
                            ? z.new_zeros(columns.sizes())
                            : z.gather(1, index)
                                    .masked_fill_(columns.lt(new Scalar(0L)), new Scalar(0f));
            Tensor largest = largestOfRows(z);
            Tensor softmax = z.softmax(1); // of this rank's classes among themselves
            // one over the largest part of the softmax, which is never tiny, is the normaliser: so
            // the exponentials are not computed a second time
            Tensor normaliser = torch.zeros_like(largest).to(ScalarType.Double);
            if (!none) {
                normaliser.copy_(softmax.amax(new long[] {1}, false)).reciprocal_();
                normaliser.masked_fill_(largest.isneginf(), new Scalar(0)); // its softmax is NaN
            }
            Tensor sums =
                    options.labelSmoothing() > 0
                            ? sumOfRows(classWeights == null ? z : z.mul(classWeights))
                            : null;
            SoftmaxLoss.Statistics statistics =
                    SoftmaxLoss.Statistics.gather(
                            shard,
                            normaliser,
                            largest,
                            sums,
                            ofLabels.view(-1),
                            labelsGiven.bits());
            ClassLabels rows = labelsGiven.checked(statistics.more());
            double[] labelLogits = statistics.labelLogits(rows.all.length);
            SoftmaxLoss loss = new SoftmaxLoss(rows, statistics, labelLogits, true);
            NDArray value = shaped(loss.value(z.options()), options, logits);
            if (!withGradient) {
                return new Result(value, null);
            }
            int own = shard.isAlone() ? 0 : shard.rank();
            double[] normalisers = statistics.ofRows(own, 0);
            double[] factors = loss.softmaxFactors(statistics.ofRows(own, 1));
            Arrays.setAll(factors, i -> factors[i] * normalisers[i]);
            double[] parts = new double[rows.all.length];
            for (long place : rows.places) {
                int i = (int) place;
                parts[i] = loss.labelPart(i / rows.width) * rows.parts[i];
            }
            Tensor all = // in one copy to the device
                    floats(
                            z,
                            Stream.of(factors, loss.smoothedShares(), parts)
                                    .flatMapToDouble(DoubleStream::of)
                                    .toArray());
            if (DoubleStream.of(normalisers).anyMatch(each -> each == 0)) {
                softmax.masked_fill_(largest.isneginf().unsqueeze(1), new Scalar(0));
            }
            long count = z.size(0);
            softmax.mul_(all.narrow(0, 0, count).unsqueeze(1)); // the gradient from here on
            if (options.labelSmoothing() > 0) {
                Tensor share = all.narrow(0, count, count).unsqueeze(1);
                softmax.sub_(classWeights == null ? share : share.mul(classWeights));
            }
            if (!none) {
                Tensor ofPlaces = all.narrow(0, 2 * count, parts.length).view(columns.sizes());
                softmax.scatter_add_(1, index, ofPlaces); // 0 for labels of other ranks
            }
            Tensor gradient = softmax.to(given.scalar_type()).view(logits.getShape().getShape());
            return new Result(value, TensorView.toArray(gradient, logits.getManager()));
        }
    }

    private static Tensor sumOfRows(Tensor numbers) {
        return numbers.sum(new long[] {1}, false, new ScalarTypeOptional(ScalarType.Double));
    }

    private static Tensor floats(Tensor like, double... numbers) {
        return SoftmaxLoss.tensor(like.options(), numbers).to(ScalarType.Float);
    }

    /**
     * Computes the loss of logits that are not cut, in operations that autograd records: the
     * formula of {@link SoftmaxLoss} a second time. Logits in float64 are computed with in float64.
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
        SoftmaxLoss.check(options, classes, false);
        ClassLabels rows = ClassLabels.of(logits, labels, shard, options);
        try (TorchScope scope = TorchScope.open()) {
            Tensor z = TensorView.of(logits).tensor().reshape(-1, classes);
            boolean isDouble = z.scalar_type().intern() == ScalarType.Double;
            z = isDouble ? z : z.to(ScalarType.Float);
            boolean none = options.reduction() == Reduction.NONE;
            Tensor weights = classWeights(shard, z);
            Tensor ofRows = SoftmaxLoss.tensor(z.options(), rows.weights);
            Tensor loss =
                    rows.areMany() || options.focusing() > 0
                            ? ofSeveral(z, rows, weights, ofRows)
                            : torch.cross_entropy_loss(
                                    z,
                                    SoftmaxLoss.index(z, rows.all),
                                    weights == null
                                            ? new TensorOptional()
                                            : new TensorOptional(weights.to(z.scalar_type())),
                                    none ? ROWS : SUM,
                                    options.ignoreIndex(),
                                    options.labelSmoothing());
            if (options.zLoss() > 0) {
                Tensor squares =
                        z.logsumexp(1).square().mul(ofRows.mul(new Scalar(options.zLoss())));
                loss = loss.add(loss.dim() == 1 ? squares : squares.sum());
            }
            loss = none ? loss : loss.sum();
            Scalar share = new Scalar(SoftmaxLoss.share(rows));
            return shaped(loss.mul(share).to(ScalarType.Float), options, logits);
        }
    }

    /** Returns the losses of rows with several labels, or of a focal loss, [rows]. */
    private Tensor ofSeveral(
            Tensor z, ClassLabels rows, @Nullable Tensor classWeights, Tensor ofRows) {
        Tensor logSoftmax = z.log_softmax(1).neg();
        long[] places = rows.places(0, rows.rows.length, 0, Long.MAX_VALUE, 1, z.size(1));
        Tensor index = SoftmaxLoss.index(z, rows.rows);
        double[] parts = new double[rows.rows.length];
        Arrays.setAll(parts, i -> rows.parts[(int) rows.places[i]]);
        Tensor ofLabels =
                logSoftmax
                        .reshape(-1)
                        .index_select(0, SoftmaxLoss.index(z, places))
                        .mul(SoftmaxLoss.tensor(z.options(), parts).to(z.scalar_type()));
        Tensor plain = torch.zeros_like(ofRows).to(z.scalar_type()).index_add(0, index, ofLabels);
        if (options.focusing() > 0) {
            Tensor others = plain.neg().expm1().neg().clamp_min(new Scalar(Float.MIN_NORMAL));
            plain = plain.mul(others.pow(new Scalar(options.focusing())));
        }
        double alpha = options.labelSmoothing();
        Tensor loss = plain.mul(ofRows).mul(new Scalar(1 - alpha));
        if (alpha > 0) {
            double[] counts = new double[rows.counts.length];
            Arrays.setAll(counts, row -> rows.counts[row] ? alpha / z.size(1) : 0);
            Tensor all = classWeights == null ? logSoftmax : logSoftmax.mul(classWeights);
            loss = loss.add(all.sum(1).mul(SoftmaxLoss.tensor(z.options(), counts)));
        }
        return loss;
    }

    static NDArray shaped(Tensor loss, LossOptions options, NDArray rows) {
        Tensor value =
                options.reduction() == Reduction.NONE
                        ? loss.view(ClassLabels.leading(rows).getShape())
                        : loss;
        return TensorView.toArray(value, rows.getManager());
    }

    /** Returns the weights of a rank's classes, float32 on the device, or {@code null}. */
    private @Nullable Tensor classWeights(ClassShard shard, Tensor like) {
        return options.classWeights() == null
                ? null
                : HostReads.toDevice(like.device(), shard.part(options.classWeights()));
    }

    private static Tensor largestOfRows(Tensor logits) {
        return logits.size(1) > 0
                ? logits.amax(new long[] {1}, false)
                : logits.new_full(new long[] {logits.size(0)}, new Scalar(-Float.MAX_VALUE));
    }
}

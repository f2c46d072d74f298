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
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.stream.DoubleStream;
import java.util.stream.Stream;

/**
 * The softmax cross entropy of logits that are there, each rank having a shard of the classes, by
 * the {@link SoftmaxLoss}. The logits are computed with in float32, or in float64 if they are.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ShardedCrossEntropy {

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
            Tensor z = wide(given);
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
        return SoftmaxLoss.tensor(like.options(), numbers).to(like.scalar_type());
    }

    /** Returns logits in the type that is computed with: float64 if they are, or else float32. */
    static Tensor wide(Tensor logits) {
        boolean isDouble = logits.scalar_type().intern() == ScalarType.Double;
        return isDouble ? logits : logits.to(ScalarType.Float);
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

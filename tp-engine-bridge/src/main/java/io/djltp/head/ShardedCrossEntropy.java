package io.djltp.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.torch.HostReads;
import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;

import org.bytedeco.pytorch.AbstractTensor;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The softmax cross entropy of logits that are there, each rank having a shard of the classes, by
 * the {@link CrossEntropyFormula}. The logits are computed with in float32.
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
            Tensor given = HeadLayer.rows(logits);
            Tensor z = given.to(ScalarType.Float);
            Batch batch = new Batch(z, ofShard, shard);
            batch.reduce();
            NDArray value = toLoss(batch.formula, logits);
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
        private final ShardLabels labels;
        private final ClassShard shard;
        private final Tensor labelRows; // int64 [labels]
        private final Tensor places; // of the labels' logits among all of the rank, [labels]
        private final Tensor localLargest; // of this rank, float32 [rows]
        private final Tensor softmax; // of this rank's classes among themselves
        private final Tensor largest; // of all ranks, float32 [rows]
        private final Tensor classWeights; // of this rank's classes, float32, or null
        private Tensor localNormaliser; // of this rank's classes, with the largest of all
        private CrossEntropyFormula formula;

        Batch(Tensor logits, ShardLabels labels, ClassShard shard) {
            this.labels = labels;
            this.shard = shard;
            classWeights = classWeights(shard, logits);
            long columns = logits.size(1);
            labelRows = index(logits, labels.rows);
            places = index(logits, labels.places(0, labels.rows.length, 0, 1, columns));
            localLargest = largestOfRows(logits);
            // a softmax of minus infinities alone is NaN
            z = isForbidden() ? logits.clamp_min(new Scalar(-Float.MAX_VALUE)) : logits;
            softmax = z.softmax(1);
            largest = localLargest.clone();
        }

        private boolean isForbidden() {
            return localLargest.numel() > 0
                    && HostReads.number(localLargest.min()) == Float.NEGATIVE_INFINITY;
        }

        void reduce() {
            shard.allReduce(largest, ReduceOp.MAX);
            TensorOptions wide = wide(z);
            Tensor m = largest.to(ScalarType.Double);
            Tensor sums = CrossEntropyFormula.newSums(options, z.size(0), wide);
            // exp(z - m) of this rank's largest logit is its part of the softmax, which is never
            // tiny, of the normaliser: so the exponentials are not computed a second time
            localNormaliser = localLargest.to(ScalarType.Double).sub_(m).exp_();
            if (z.size(1) > 0) {
                localNormaliser.div_(softmax.amax(new long[] {1}, false));
            }
            sums.select(0, CrossEntropyFormula.NORMALISER).copy_(localNormaliser);
            Tensor labelLogits = z.reshape(-1).index_select(0, places).to(ScalarType.Double);
            sums.select(0, CrossEntropyFormula.LABEL)
                    .index_add_(0, labelRows, labelLogits.sub_(m.index_select(0, labelRows)));
            if (options.labelSmoothing() > 0) {
                Tensor weighted = classWeights == null ? z : z.mul(classWeights);
                sums.select(0, CrossEntropyFormula.LOGITS)
                        .copy_(
                                weighted.sum(
                                        new long[] {1},
                                        false,
                                        new ScalarTypeOptional(ScalarType.Double)));
            }
            shard.allReduce(sums, ReduceOp.SUM);
            Tensor weights = CrossEntropyFormula.rowWeights(labels, options, wide);
            formula = new CrossEntropyFormula(options, shard.total(), weights, m, sums);
        }

        /** Returns the gradient of the logits, in the memory of the softmax. */
        Tensor gradient() {
            Tensor factor = formula.softmaxFactor().mul_(localNormaliser);
            softmax.mul_(factor.to(ScalarType.Float).unsqueeze(1));
            if (options.labelSmoothing() > 0) {
                Tensor share = formula.smoothedShare().to(ScalarType.Float).unsqueeze(1);
                softmax.sub_(classWeights == null ? share : share.mul(classWeights));
            }
            Tensor parts = formula.labelPart(labelRows).to(ScalarType.Float);
            softmax.view(-1).index_add_(0, places, parts);
            return softmax;
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
            Tensor m = largestOfRows(z.detach());
            Tensor above = z.sub(m.unsqueeze(1)); // keeps the digits of z_y - m
            Tensor wide = m.to(ScalarType.Double);
            Tensor labelLogits = torch.zeros_like(wide);
            Tensor places = index(z, rows.places(0, rows.rows.length, 0, 1, classes));
            Tensor found = above.reshape(-1).index_select(0, places).to(ScalarType.Double);
            labelLogits = labelLogits.index_add(0, index(z, rows.rows), found);
            Tensor normaliser = above.exp().sum(1).to(ScalarType.Double);
            TensorVector parts = new TensorVector(normaliser, labelLogits);
            if (options.labelSmoothing() > 0) {
                Tensor c = classWeights(shard, z);
                Tensor weighted = c == null ? above : above.mul(c);
                Tensor sumAbove = weighted.sum(1).to(ScalarType.Double);
                Scalar all =
                        c == null
                                ? new Scalar((double) classes)
                                : new Scalar(HostReads.number(c.sum()));
                parts.push_back(sumAbove.add(wide, all));
            }
            Tensor sums = torch.stack(parts);
            Tensor weights = CrossEntropyFormula.rowWeights(rows, options, wide(z));
            return toLoss(new CrossEntropyFormula(options, classes, weights, wide, sums), logits);
        }
    }

    /** Returns the loss in float32: a scalar, or one for each row, [x1, ..., xn]. */
    private NDArray toLoss(CrossEntropyFormula formula, NDArray logits) {
        return shaped(formula.loss().to(ScalarType.Float), options, logits);
    }

    static NDArray shaped(Tensor loss, LossOptions options, NDArray rows) {
        Tensor value =
                options.reduction() == Reduction.NONE
                        ? loss.view(HeadLayer.leading(rows).getShape())
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

    private static TensorOptions wide(Tensor like) {
        return like.options().dtype(new ScalarTypeOptional(ScalarType.Double));
    }
}

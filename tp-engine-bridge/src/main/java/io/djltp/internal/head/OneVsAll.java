package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Reduction;
import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.stream.LongStream;

/**
 * The loss that tells each class from all others: with the logits \(z_k\) of a row, the labels Y,
 * the weights \(c_k\) of the classes and \(w_k\) of positives, and a rising convex function f,
 *
 * <pre>
 * loss       = r (Σ over k in Y of c_k w_k f(-z_k) + Σ over the others of c_k f(z_k))
 * dloss/dz_k = r c_k f'(z_k), and of a label - r c_k w_k f'(-z_k)
 * </pre>
 *
 * <p>where r is one over the number of rows, or one without a mean. Of a step over a part of the
 * classes, those that are no row's label stand for all of their kind, by a factor in \(c_k\).
 *
 * @param kind the function f
 * @param options the weights of the classes and the reduction; its label to ignore is {@link
 *     ClassLabels#FILL}
 * @param positives the weights of positives by class, or {@code null} for 1
 */
@SuppressWarnings("try") // a scope is used by being open
public record OneVsAll(Kind kind, LossOptions options, float @Nullable [] positives) {

    /** The function f of a loss. */
    public enum Kind {
        /** {@code log(1 + exp(z))}. */
        BINARY_CROSS_ENTROPY(1) {
            @Override
            double loss(double z) {
                return Math.max(z, 0) + Math.log1p(Math.exp(-Math.abs(z)));
            }

            @Override
            Tensor losses(Tensor z) {
                return torch.softplus(z);
            }

            @Override
            Tensor toSlopes(Tensor z) {
                return z.sigmoid_();
            }
        },
        /** {@code max(0, 1 + z)²}. */
        SQUARED_HINGE(2) {
            @Override
            double loss(double z) {
                return Math.pow(Math.max(0, 1 + z), 2);
            }

            @Override
            Tensor losses(Tensor z) {
                return z.add(new Scalar(1)).relu().square();
            }

            @Override
            Tensor toSlopes(Tensor z) {
                return z.add_(new Scalar(1)).relu_();
            }
        };

        /** By what {@link #toSlopes} is multiplied to be the derivative. */
        final double factor;

        Kind(double factor) {
            this.factor = factor;
        }

        abstract double loss(double z);

        /** Returns f of each number. */
        abstract Tensor losses(Tensor z);

        /** Makes numbers the derivative there, but for the {@link #factor}, in place. */
        abstract Tensor toSlopes(Tensor z);
    }

    /**
     * Checks that there is a weight for each class.
     *
     * @param classes the number of classes
     * @throws IllegalArgumentException if there is not
     */
    void check(long classes) {
        SoftmaxLoss.check(options, classes, true);
        if (positives != null && positives.length != classes) {
            throw Errors.argument(
                    "The loss has weights of the positives of %s classes, and the logits are those"
                            + " of %s",
                    positives.length, classes);
        }
    }

    /** Returns r. */
    double share(ClassLabels labels) {
        return options.reduction() == Reduction.MEAN ? 1.0 / Math.max(1, labels.counts.length) : 1;
    }

    /** Returns \(c_k w_k\) of the rank's labels. */
    double[] weightsOfLabels(ClassLabels labels) {
        return LongStream.of(labels.labels).mapToDouble(this::weightOf).toArray();
    }

    private double weightOf(long label) {
        return options.weightOf(label) * (positives == null ? 1 : positives[(int) label]);
    }

    /** Returns \(c_k\) of the classes that the rank computes with, or {@code null} for 1. */
    @Nullable Tensor classWeights(ClassLabels labels, TensorOptions device) {
        double ofOthers = labels.weightOfOthers();
        if (options.classWeights() == null && ofOthers == 1) {
            return null;
        }
        float[] weights = new float[(int) labels.shard.length()];
        Arrays.fill(weights, 1);
        if (options.classWeights() != null) {
            weights = labels.shard.part(options.classWeights());
        }
        long[] sample = labels.sample;
        if (sample != null) {
            float[] drawn = new float[sample.length];
            for (int i = 0; i < drawn.length; i++) {
                drawn[i] = weights[(int) sample[i]] * (float) ofOthers;
            }
            for (int column :
                    LongStream.of(labels.columnsOfBatch()).mapToInt(c -> (int) c).toArray()) {
                drawn[column] = weights[(int) sample[column]];
            }
            weights = drawn;
        }
        return HostReads.toDevice(device.device(), weights);
    }

    /** Returns the sum of the losses of the rank's labels, from logits by place. */
    double lossesOfLabels(ClassLabels labels, double... logits) {
        double sum = 0;
        for (int i = 0; i < labels.labels.length; i++) {
            sum += weightOf(labels.labels[i]) * kind.loss(-logits[(int) labels.places[i]]);
        }
        return sum;
    }

    /**
     * Computes the loss of logits that are there, each rank having a shard of the classes. One
     * all-reduce.
     *
     * @param logits the rank's shard of the logits, [x1, ..., xn, classes of the rank]
     * @param labels the labels, [x1, ..., xn] or [x1, ..., xn, width]
     * @param cut the cut of the classes
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param withGradient whether the gradient is wanted
     * @return as {@link ShardedCrossEntropy#evaluate}
     * @throws IllegalArgumentException as {@link ShardedCrossEntropy#evaluate}
     */
    public ShardedCrossEntropy.Result evaluate(
            NDArray logits,
            NDArray labels,
            Cut cut,
            @Nullable Communicator group,
            boolean withGradient) {
        LibTorch.load(); // before anything else of the preset
        ClassShard shard = new ClassShard(cut, group);
        check(shard.total());
        ClassLabels rows = ClassLabels.of(logits, labels, shard, options);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor given = ClassLabels.rows(logits);
            Tensor z = ShardedCrossEntropy.wide(given);
            Tensor places = places(rows, z);
            Tensor ofLabels = z.reshape(-1).index_select(0, places);
            z = others(z, places);
            Tensor sums = ofRows(rows, z, ofLabels);
            NDArray value = ShardedCrossEntropy.shaped(value(rows, sums), options, logits);
            if (!withGradient) {
                return new ShardedCrossEntropy.Result(value, null);
            }
            Tensor weights = classWeights(rows, z.options());
            Tensor slopes = kind.toSlopes(z);
            if (weights != null) {
                slopes.mul_(weights);
            }
            Tensor weightsOfLabels = SoftmaxLoss.tensor(z.options(), weightsOfLabels(rows));
            Tensor slopesOfLabels =
                    kind.toSlopes(ofLabels.neg()).mul_(weightsOfLabels.neg_()).to(z.scalar_type());
            slopes.view(-1).index_copy_(0, places, slopesOfLabels);
            slopes.mul_(new Scalar(share(rows) * kind.factor));
            Tensor gradient = slopes.to(given.scalar_type()).view(logits.getShape().getShape());
            return new ShardedCrossEntropy.Result(
                    value, TensorView.toArray(gradient, logits.getManager()));
        }
    }

    private static Tensor places(ClassLabels rows, Tensor z) {
        return SoftmaxLoss.index(
                z, rows.places(0, rows.rows.length, 0, Long.MAX_VALUE, 1, z.size(1)));
    }

    /** Returns logits with -infinity for those of the labels. */
    private static Tensor others(Tensor z, Tensor places) {
        Scalar none = new Scalar(Float.NEGATIVE_INFINITY);
        return z.reshape(-1).index_fill(0, places, none).view(z.shape());
    }

    /** Returns the losses of rows without r, float64 [rows]. */
    private Tensor ofRows(ClassLabels rows, Tensor others, Tensor ofLabels) {
        Tensor weights = classWeights(rows, others.options());
        Tensor losses = kind.losses(others);
        losses = weights == null ? losses : losses.mul(weights);
        Tensor sums = losses.sum(new long[] {1}, false, new ScalarTypeOptional(ScalarType.Double));
        return addLabels(rows, sums, ofLabels);
    }

    /** Returns the losses of rows with those of this rank's labels, whose logits are given. */
    Tensor addLabels(ClassLabels rows, Tensor sums, Tensor ofLabels) {
        Tensor weighted =
                kind.losses(ofLabels.neg())
                        .to(ScalarType.Double)
                        .mul(SoftmaxLoss.tensor(sums.options(), weightsOfLabels(rows)));
        return sums.index_add(0, SoftmaxLoss.index(sums, rows.rows), weighted);
    }

    /** Returns the loss of the batch, or of the rows, from a rank's sums without r. */
    Tensor value(ClassLabels rows, Tensor sums) {
        Tensor value = options.reduction() == Reduction.NONE ? sums : sums.sum();
        rows.shard.allReduce(value, ReduceOp.SUM);
        return value.mul(new Scalar(share(rows))).to(ScalarType.Float);
    }
}

package io.djltp.internal.head;

import io.djltp.head.Margin;
import io.djltp.internal.update.UnitRows;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.stream.DoubleStream;

/**
 * The cosines of a batch's labels, where the label is a class of this rank, and the logits that
 * they are under a {@link Margin}. The cosines are computed before the pass over the weights, in
 * float64. The pass leaves out the labels, and its {@link SoftmaxLoss} has their logits.
 *
 * <p>In the pass the features are {@code scale * x / |x|} and the rows of the weight {@code w /
 * |w|}, so that their products are the logits of all other classes.
 */
final class MarginLabels {

    /**
     * The least sine that is divided by. The derivative of an angle by its cosine is infinite at 0
     * and pi; so close to them it is taken smaller than it is.
     */
    private static final double LEAST_SINE = 1e-3;

    private final Margin margin;
    private final Tensor inverseLengths; // of the features, [rows], float64
    private final Tensor features; // [rows, features], float32
    private final Tensor cosines; // of the labels, [labels], float64

    /**
     * Computes the cosines of the labels. What is kept lives as long as the caller's scope.
     *
     * @param margin the margin
     * @param memory the memory of the rank
     * @param labels the labels
     * @param x the features, [rows, features]
     * @param linear the layer
     */
    MarginLabels(
            Margin margin, ChunkMemory memory, ClassLabels labels, Tensor x, ChunkedLinear linear) {
        this.margin = margin;
        Scalar scale = new Scalar((double) margin.scale());
        Tensor wide = x.to(ScalarType.Double);
        inverseLengths = UnitRows.inverseLengths(wide);
        Tensor directions = wide.mul(inverseLengths.unsqueeze(1));
        features = directions.mul(scale).to(ScalarType.Float);
        Tensor weights = linear.rows(memory.index(labels.columns)).to(ScalarType.Double);
        cosines =
                directions
                        .index_select(0, memory.index(labels.rows))
                        .mul_(weights)
                        .sum(1)
                        .mul_(UnitRows.inverseLengths(weights));
    }

    Tensor features() {
        return features;
    }

    Tensor cosines() {
        return cosines;
    }

    double scale() {
        return margin.scale();
    }

    /** Returns the logit of a label with this cosine. */
    double logit(double cosine) {
        return scale() * apply(margin, cosine);
    }

    double[] logits(double... ofLabels) {
        return DoubleStream.of(ofLabels).map(this::logit).toArray();
    }

    /** Returns by what the logit of a label changes with that without the margin. */
    double slope(double cosine) {
        return slope(margin, cosine);
    }

    /** Returns the gradient of the features from that of what the pass has in their place. */
    Tensor ofFeatures(Tensor gradient) {
        Tensor directions = features.div(new Scalar((double) margin.scale()));
        Tensor factors = inverseLengths.mul(new Scalar((double) margin.scale()));
        UnitRows.project(
                gradient, directions, factors.to(ScalarType.Float), torch.empty_like(gradient));
        return gradient;
    }

    /**
     * Returns the label's cosine with the margin.
     *
     * @param margin the margin
     * @param cosine the cosine, which rounding may have put just outside of -1 to 1
     * @return the cosine that takes its place
     */
    static double apply(Margin margin, double cosine) {
        if (isAngleAsItIs(margin)) {
            return cosine - margin.m3();
        }
        double angle = angle(margin, cosine);
        double turns = Math.floor(angle / Math.PI);
        double sign = turns % 2 == 0 ? 1 : -1;
        return sign * Math.cos(angle) - 2 * turns - margin.m3();
    }

    /** Returns the derivative of {@link #apply}. */
    static double slope(Margin margin, double cosine) {
        if (isAngleAsItIs(margin)) {
            return 1;
        }
        double sine = Math.sqrt(Math.max(0, 1 - cosine * cosine));
        return margin.m1() * Math.abs(Math.sin(angle(margin, cosine))) / Math.max(LEAST_SINE, sine);
    }

    private static boolean isAngleAsItIs(Margin margin) {
        return margin.m1() == 1 && margin.m2() == 0;
    }

    private static double angle(Margin margin, double cosine) {
        return margin.m1() * Math.acos(Math.max(-1, Math.min(1, cosine))) + margin.m2();
    }
}

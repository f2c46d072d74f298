package io.djltp.internal.head;

import io.djltp.head.Margin;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.update.UnitRows;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.stream.DoubleStream;

/**
 * The logits of a batch's labels under a {@link Margin}, where the label is a class of this rank.
 * They are computed before the pass over the weights, in float64, and the pass has them instead of
 * the cosines that it computes.
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
    private final double[] slopes; // by what the logit of a label changes with the cosine's
    private final Tensor raised; // the logits less those without the margin, [labels], float64

    /**
     * Computes the logits of the labels. What is kept lives as long as the caller's scope.
     *
     * @param margin the margin
     * @param memory where the logits go
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
        Tensor cosines =
                directions
                        .index_select(0, memory.index(labels.rows))
                        .mul_(weights)
                        .sum(1)
                        .mul_(UnitRows.inverseLengths(weights));
        double[] values = HostReads.doubles(cosines);
        slopes = DoubleStream.of(values).map(cosine -> slope(margin, cosine)).toArray();
        double[] applied = DoubleStream.of(values).map(cosine -> apply(margin, cosine)).toArray();
        Tensor logits = SoftmaxLoss.tensor(memory.options(), applied).mul_(scale);
        raised = logits.sub(cosines.mul_(scale));
        memory.ofLabels(ChunkMemory.Place.LABEL_LOGITS, values.length).copy_(logits);
    }

    Tensor features() {
        return features;
    }

    double slope(int label) {
        return slopes[label];
    }

    Tensor raised() {
        return raised;
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

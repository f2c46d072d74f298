package io.djltp.head;

import io.djltp.collective.ReduceOp;
import io.djltp.head.ChunkBuffers.Column;
import io.djltp.head.ChunkBuffers.Matrix;
import io.djltp.torch.Precision;
import io.djltp.update.UnitRows;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * What follows from the pass over the weights once it is known of all ranks: the loss and the
 * gradient of the features, by the {@link CrossEntropyFormula}. All of it has one number, or one
 * row of features, for each row.
 */
class FusedStatistics {

    final FusedPass pass;
    final ChunkBuffers buffers;
    private final Tensor labelRows; // the rows with a label of this rank, int64 [labels]
    private final Tensor labelWeights; // the weights of these labels, [labels, features]
    private final ChunkedLinear linear;
    private final MarginLabels margin; // or null
    private final boolean plain; // whether all offsets of all ranks are 0

    private Tensor largest; // [rows], the offset of all ranks
    private Tensor sums; // [2 or 3, rows]
    private CrossEntropyFormula formula;
    private Tensor others; // the normalisers without the labels, [rows]; null with label smoothing

    FusedStatistics(FusedPass pass, ChunkedLinear linear, MarginLabels margin, boolean whole) {
        plain = whole && !pass.isGuarded();
        this.pass = pass;
        this.linear = linear;
        this.margin = margin;
        buffers = pass.buffers;
        labelRows = buffers.index(pass.labels.rows);
        Tensor weights = linear.rows(buffers.index(pass.labels.columns));
        if (linear.isUnit()) {
            weights.mul_(UnitRows.inverseLengths(weights).unsqueeze(1));
        }
        labelWeights = weights;
    }

    /**
     * Returns the statistics of a pass, summed over the ranks.
     *
     * @param pass the pass
     * @param linear the layer
     * @param margin the margin, or {@code null}
     * @param shard the classes of the rank
     */
    static FusedStatistics of(
            FusedPass pass, ChunkedLinear linear, MarginLabels margin, ClassShard shard) {
        if (shard.isAlone() && margin == null && PlainStatistics.fits(pass)) {
            return new PlainStatistics(pass, linear);
        }
        boolean whole = shard.length() == shard.total();
        FusedStatistics statistics = new FusedStatistics(pass, linear, margin, whole);
        shard.allReduce(statistics.largest(), ReduceOp.MAX);
        shard.allReduce(statistics.sums(), ReduceOp.SUM);
        statistics.summed();
        return statistics;
    }

    /**
     * Returns the offset of this rank's exponentials, in float32, of which the largest of all ranks
     * is to be put into its place.
     */
    private Tensor largest() {
        largest = pass.offset().clone();
        if (pass.isIn(Precision.FLOAT16) && !pass.isSmooth()) { // there it is that of all others
            Tensor others = largest.index_select(0, labelRows);
            largest.index_copy_(0, labelRows, torch.maximum(others, pass.labelLogits()));
        }
        return largest;
    }

    /**
     * Returns the sums of the {@link CrossEntropyFormula}, to be summed over the ranks in place.
     */
    private Tensor sums() {
        sums = CrossEntropyFormula.newSums(pass.options, pass.rows, buffers.wide());
        Tensor wide = largest.to(ScalarType.Double);
        Tensor weights = CrossEntropyFormula.rowWeights(pass.labels, pass.options, buffers.wide());
        formula = new CrossEntropyFormula(pass.options, pass.labels.classes, weights, wide, sums);
        Tensor normaliser = sums.select(0, CrossEntropyFormula.NORMALISER);
        if (plain) {
            normaliser.copy_(pass.batch(buffers.sums()));
        } else {
            torch.mul_out(normaliser, pass.batch(buffers.sums()), toLargest());
        }
        sums.select(0, CrossEntropyFormula.LABEL).index_add_(0, labelRows, labelLogits());
        if (pass.isSmooth()) {
            sums.select(0, CrossEntropyFormula.LOGITS).copy_(sumsOfLogits());
        }
        return sums;
    }

    /** Returns the sums of this rank's logits: \(x \sum_k w_k + \sum_k b_k\), [rows]. */
    private Tensor sumsOfLogits() {
        Tensor allWeights = buffers.rows(Matrix.PRODUCTS).select(0, pass.rows);
        Tensor x = pass.batch(buffers.rows(Matrix.FEATURES)).to(ScalarType.Double);
        Tensor logits = x.mv(allWeights.to(ScalarType.Double));
        if (linear.bias() != null) {
            logits.add_(linear.bias().sum(new ScalarTypeOptional(ScalarType.Double)));
        }
        if (margin != null) {
            logits.index_add_(0, labelRows, margin.raised());
        }
        return logits;
    }

    /**
     * Returns the factor that brings exponentials with this rank's offset to that of all, [rows].
     */
    private Tensor toLargest() {
        return pass.offset().to(ScalarType.Double).sub_(largest.to(ScalarType.Double)).exp_();
    }

    /** Returns the logits of the labels less the largest logits, [labels]. */
    private Tensor labelLogits() {
        Tensor logits = pass.labelLogits().to(ScalarType.Double);
        return plain
                ? logits
                : logits.sub_(largest.to(ScalarType.Double).index_select(0, labelRows));
    }

    /** Takes the sums over all ranks. Follows the sum of {@link #sums} over them. */
    private void summed() {
        others = pass.isSmooth() ? null : formula.addLabels();
    }

    /** Returns the loss, a scalar in float32. */
    Tensor loss() {
        return formula.loss().to(ScalarType.Float);
    }

    /**
     * Returns this rank's summand of the gradient of the features, [rows, features], and leaves in
     * the buffers what the update needs.
     */
    Tensor featureGradient() {
        Tensor factor = formula.softmaxFactor();
        Tensor parts = labelParts(factor);
        Tensor softmax = pass.batch(buffers.column(Column.SOFTMAX_FACTOR));
        softmax.copy_(plain ? factor : factor.mul_(toLargest()));
        Tensor products = buffers.rows(Matrix.PRODUCTS);
        Tensor gradient = pass.batch(products).mul(softmax.unsqueeze(1));
        addLabels(gradient, parts);
        if (pass.isSmooth()) {
            Tensor share = formula.smoothedShare();
            torch.neg_out(
                    pass.batch(buffers.column(Column.SMOOTHED_PART)), share.to(ScalarType.Float));
            // what the shift has not subtracted already
            Tensor rest = softmax.to(ScalarType.Double).mul_(pass.shift()).sub_(share);
            Tensor weights = products.select(0, pass.rows);
            LabelSmoothing.add(gradient, rest.to(ScalarType.Float), weights);
        }
        return margin == null ? gradient : margin.ofFeatures(gradient);
    }

    /**
     * Returns what the passes do not add to the gradient of each label's logit, in float32,
     * [labels]: with label smoothing all but its part of the softmax; else all of it, times the
     * slope where the logit has a margin.
     *
     * @param factor the factor of exponentials of logits less the largest, [rows]
     */
    private Tensor labelParts(Tensor factor) {
        if (!pass.isSmooth()) {
            Tensor gradient = formula.labelGradient(labelRows, others);
            return (margin == null ? gradient : gradient.mul_(margin.slopes()))
                    .to(ScalarType.Float);
        }
        Tensor parts = formula.labelPart(labelRows);
        if (margin == null) {
            return parts.to(ScalarType.Float);
        }
        // the passes add the part of the softmax once, as for any class
        Tensor slopes = margin.slopes();
        Tensor shared = factor.index_select(0, labelRows).mul_(labelLogits().exp_());
        shared.sub_(formula.smoothedShare().index_select(0, labelRows));
        parts.mul_(slopes);
        return parts.addcmul_(shared, slopes.sub(new Scalar(1.0))).to(ScalarType.Float);
    }

    /** Adds what the labels have in the gradient of the features. */
    final void addLabels(Tensor gradient, Tensor parts) {
        long count = pass.labels.rows.length;
        pass.labelParts().narrow(0, 0, count).copy_(parts);
        Tensor column = parts.unsqueeze(1);
        if (!pass.isSmooth()) { // else the parts go into the gradient of the logits
            Tensor x = pass.batch(buffers.rows(Matrix.FEATURES)).index_select(0, labelRows);
            torch.mul_out(pass.labelGradients().narrow(0, 0, count), x, column);
        }
        gradient.index_add_(0, labelRows, labelWeights.mul(column));
    }
}

package io.djltp.head;

import io.djltp.collective.ReduceOp;
import io.djltp.head.ChunkMemory.Column;
import io.djltp.head.ChunkMemory.Matrix;
import io.djltp.internal.update.UnitRows;

import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * What follows from the pass over the weights once it is known of all ranks: the loss and the
 * gradient of the features, by the {@link SoftmaxLoss}. All of it has one number, or one row of
 * features, for each row.
 */
final class HeadStatistics {

    private final HeadPass pass;
    private final ChunkMemory memory;
    private final ChunkedLinear linear;
    private final MarginLabels margin; // or null
    private final Tensor labelRows; // the rows with a label of this rank, int64 [labels]
    private final boolean plain; // whether all offsets of all ranks are 0
    private final SoftmaxLoss loss;

    /**
     * Brings together what the ranks have. Two all-reduces.
     *
     * @param pass the pass
     * @param linear the layer
     * @param margin the margin, or {@code null}
     * @param shard the classes of the rank
     */
    HeadStatistics(HeadPass pass, ChunkedLinear linear, MarginLabels margin, ClassShard shard) {
        this.pass = pass;
        this.linear = linear;
        this.margin = margin;
        memory = pass.memory;
        labelRows = memory.index(pass.labels.rows);
        plain = !pass.isGuarded() && shard.length() == shard.total();
        boolean known = shard.isAlone() && !pass.isSmooth();
        loss = new SoftmaxLoss(pass.options, pass.labels, known ? ofRank() : reduced(shard));
        if (!pass.isSmooth()) {
            loss.addLabels();
        }
    }

    private double[] ofRank() {
        int rows = (int) pass.rows;
        double[] sums = new double[3 * rows];
        for (int i = 0; i < rows; i++) {
            sums[i] = pass.sum(i);
            sums[2 * rows + i] = pass.offset(i);
        }
        for (int i = 0; i < pass.labels.rows.length; i++) {
            int row = (int) pass.labels.rows[i];
            double largest = plain ? 0 : Math.max(pass.offset(row), pass.labelLogit(i));
            sums[row] *= Math.exp(pass.offset(row) - largest);
            sums[rows + row] = pass.labelLogit(i) - largest;
            sums[2 * rows + row] = largest;
        }
        return sums;
    }

    private double[] reduced(ClassShard shard) {
        Tensor largest = pass.offset().clone();
        if (pass.isGuarded()) { // in float16 the offset is that of all classes but the label
            Tensor others = largest.index_select(0, labelRows);
            largest.index_copy_(0, labelRows, torch.maximum(others, pass.labelLogits()));
        }
        shard.allReduce(largest, ReduceOp.MAX);
        Tensor wide = largest.to(ScalarType.Double);
        Tensor sums = SoftmaxLoss.newSums(pass.options, largest);
        Tensor normaliser = sums.select(0, SoftmaxLoss.NORMALISER);
        normaliser.copy_(pass.batch(memory.sums()));
        Tensor labelLogits = pass.labelLogits().to(ScalarType.Double);
        if (!plain) {
            normaliser.mul_(pass.offset().to(ScalarType.Double).sub_(wide).exp_());
            labelLogits.sub_(wide.index_select(0, labelRows));
        }
        sums.select(0, SoftmaxLoss.LABEL).index_add_(0, labelRows, labelLogits);
        if (pass.isSmooth()) {
            sums.select(0, SoftmaxLoss.LOGITS).copy_(sumsOfLogits());
        }
        shard.allReduce(sums, ReduceOp.SUM);
        return SoftmaxLoss.read(sums, largest);
    }

    /** Returns the sums of this rank's logits: \(x \sum_k w_k + \sum_k b_k\), [rows]. */
    private Tensor sumsOfLogits() {
        Tensor allWeights = memory.rows(Matrix.PRODUCTS).select(0, pass.rows);
        Tensor x = pass.batch(memory.rows(Matrix.FEATURES)).to(ScalarType.Double);
        Tensor logits = x.mv(allWeights.to(ScalarType.Double));
        if (linear.bias() != null) {
            logits.add_(linear.bias().sum(new ScalarTypeOptional(ScalarType.Double)));
        }
        if (margin != null) {
            logits.index_add_(0, labelRows, margin.raised());
        }
        return logits;
    }

    /** Returns the loss, in float32: a scalar, or that of each row, [rows]. */
    Tensor loss() {
        return loss.value(memory.options());
    }

    /**
     * Returns this rank's summand of the gradient of the features, [rows, features], and leaves in
     * the memory what the update needs.
     */
    Tensor featureGradient() {
        double[] factors = loss.softmaxFactors();
        for (int i = 0; i < factors.length && !plain; i++) {
            factors[i] *= Math.exp(pass.offset(i) - loss.largest(i));
        }
        Tensor softmax = pass.batch(memory.column(Column.SOFTMAX_FACTOR)).copy_(numbers(factors));
        Tensor products = memory.rows(Matrix.PRODUCTS);
        Tensor gradient = pass.batch(products).mul(softmax.unsqueeze(1));
        addLabels(gradient);
        if (pass.isSmooth()) {
            Tensor share = numbers(loss.smoothedShares());
            pass.batch(memory.column(Column.SMOOTHED_PART)).copy_(share).neg_();
            // what the shift has not subtracted already
            Tensor rest = softmax.to(ScalarType.Double).mul_(pass.shift()).sub_(share);
            Tensor weights = products.select(0, pass.rows);
            HeadPass.addOuter(gradient, rest.to(ScalarType.Float), weights);
        }
        return margin == null ? gradient : margin.ofFeatures(gradient);
    }

    private Tensor numbers(double... values) {
        return SoftmaxLoss.tensor(memory.options(), values);
    }

    /** Adds what the labels have in the gradient of the features. */
    private void addLabels(Tensor gradient) {
        Tensor parts = numbers(labelParts()).to(ScalarType.Float);
        pass.labelParts().narrow(0, 0, parts.size(0)).copy_(parts);
        Tensor column = parts.unsqueeze(1);
        if (!pass.isSmooth()) { // else the parts go into the gradient of the logits
            Tensor x = pass.batch(memory.rows(Matrix.FEATURES)).index_select(0, labelRows);
            torch.mul_out(pass.labelGradients().narrow(0, 0, parts.size(0)), x, column);
        }
        Tensor weights = linear.rows(memory.index(pass.labels.columns));
        if (linear.isUnit()) {
            weights.mul_(UnitRows.inverseLengths(weights).unsqueeze(1));
        }
        gradient.index_add_(0, labelRows, weights.mul_(column));
    }

    /**
     * Returns what the passes do not add to the gradient of each label's logit, [labels]: with
     * label smoothing all but its part of the softmax; else all of it, times the slope where the
     * logit has a margin.
     */
    private double[] labelParts() {
        double[] parts = new double[pass.labels.rows.length];
        for (int i = 0; i < parts.length; i++) {
            int row = (int) pass.labels.rows[i];
            double slope = margin == null ? 1 : margin.slope(i);
            parts[i] =
                    pass.isSmooth() // the passes add the part of the softmax once
                            ? loss.labelPart(row) * slope + loss.sharedPart(row) * (slope - 1)
                            : loss.labelGradient(row) * slope;
        }
        return parts;
    }
}

package io.djltp.head;

import io.djltp.update.UnitRows;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * What follows from the pass over the weights once it is known of all ranks: the loss and the
 * gradient of the features. All of it has one number, or one row of features, for each row.
 */
final class FusedStatistics {

    private final FusedPass pass;
    private final ChunkBuffers buffers;
    private final Tensor rowWeights; // what a row counts for in the mean, [rows]
    private final Tensor labelRows; // the rows with a label of this rank, int64 [labels]
    private final Tensor labelWeights; // the weights of these labels, [labels, features]
    private final ChunkedLinear linear;
    private final MarginLabels margin; // or null

    private Tensor largest; // [rows]
    private Tensor sums; // [2 or 3, rows]

    FusedStatistics(FusedPass pass, ChunkedLinear linear, MarginLabels margin) {
        this.pass = pass;
        this.linear = linear;
        this.margin = margin;
        buffers = pass.buffers;
        rowWeights = rowWeights(pass.labels, buffers);
        labelRows = buffers.index(pass.labels.rows);
        Tensor weights = linear.rows(buffers.index(pass.labels.classes));
        if (linear.isUnit()) {
            weights.mul_(UnitRows.inverseLengths(weights).unsqueeze(1));
        }
        labelWeights = weights;
    }

    /** Returns what each row counts for in the mean, float64 [rows]. */
    static Tensor rowWeights(LabelRows labels, ChunkBuffers buffers) {
        float[] counts = new float[labels.counts.length];
        for (int i = 0; i < counts.length; i++) {
            counts[i] = labels.counts[i] ? 1 : 0;
        }
        Tensor weights = torch.tensor(counts).to(buffers.options().device(), ScalarType.Double);
        return weights.div_(new Scalar((double) Math.max(1, labels.valid)));
    }

    /** Returns the largest logit of each row, in float32, to be reduced over the ranks in place. */
    Tensor largest() {
        largest = pass.top().clone();
        return largest;
    }

    private Tensor wideLargest() {
        return largest.to(ScalarType.Double);
    }

    /**
     * Returns the sums of exponentials and the logits of the labels, both above the largest logit,
     * and for label smoothing the sums of logits, to be summed over the ranks in place.
     */
    Tensor sums() {
        int count = pass.isSmooth() ? 3 : 2;
        sums = torch.zeros(new long[] {count, pass.rows}, buffers.wide());
        Tensor own = pass.batch(buffers.wideColumn("sum"));
        torch.mul_out(sums.select(0, 0), own, aboveAll());
        addLabelLogits(sums.select(0, 1));
        if (pass.isSmooth()) {
            Tensor allWeights = buffers.rows("products").select(0, pass.rows);
            Tensor x = pass.batch(buffers.rows("features")).to(ScalarType.Double);
            Tensor logits = x.mv(allWeights.to(ScalarType.Double));
            if (linear.bias() != null) {
                logits.add_(linear.bias().sum(new ScalarTypeOptional(ScalarType.Double)));
            }
            if (margin != null) {
                logits.index_add_(0, labelRows, margin.raised());
            }
            sums.select(0, 2).copy_(logits);
        }
        return sums;
    }

    /** Returns the exponential of this rank's largest logits above those of all ranks, [rows]. */
    private Tensor aboveAll() {
        return pass.top().to(ScalarType.Double).sub_(wideLargest()).exp_();
    }

    private void addLabelLogits(Tensor target) {
        target.index_add_(0, labelRows, labelLogits());
    }

    /** Returns the logits of the labels above the largest logits, [labels]. */
    private Tensor labelLogits() {
        return wholeLabelLogits().sub(wideLargest().index_select(0, labelRows));
    }

    private Tensor wholeLabelLogits() {
        if (margin != null) {
            return margin.logits();
        }
        Tensor x = pass.batch(buffers.rows("features")).index_select(0, labelRows);
        Tensor logits = x.to(ScalarType.Double).mul_(labelWeights).sum(1);
        if (linear.bias() != null) {
            logits.add_(linear.bias().index_select(0, buffers.index(pass.labels.classes)));
        }
        return logits;
    }

    /** Returns the loss, a scalar in float32. */
    Tensor value() {
        return value(sums, wideLargest(), rowWeights, pass.options, pass.total);
    }

    /**
     * Returns the loss, a scalar in float32.
     *
     * @param sums the sums of exponentials and the logits of the labels, both above the largest
     *     logit, and for label smoothing the sums of logits, over all ranks, [2 or 3, rows]
     * @param largest the largest logits, float64 [rows]
     * @param rowWeights what each row counts for, [rows]
     * @param options the options of the loss
     * @param total the number of classes of all ranks
     */
    static Tensor value(
            Tensor sums, Tensor largest, Tensor rowWeights, LossOptions options, long total) {
        Tensor logSum = sums.select(0, 0).log(); // above the largest logit
        Tensor value = logSum.sub(sums.select(0, 1));
        if (options.labelSmoothing() > 0) {
            double alpha = options.labelSmoothing();
            Tensor mean = sums.select(0, 2).div(new Scalar((double) total)).sub_(largest);
            value.mul_(new Scalar(1 - alpha)).add_(logSum.sub(mean), new Scalar(alpha));
        }
        if (options.zLoss() > 0) {
            Tensor whole = logSum.add(largest);
            value.add_(whole.square_(), new Scalar((double) options.zLoss()));
        }
        return value.mul_(rowWeights).sum().to(ScalarType.Float);
    }

    /**
     * Returns this rank's summand of the gradient of the features, [rows, features], and leaves in
     * the buffers what the update needs.
     */
    Tensor featureGradient() {
        Tensor factor = rowWeights.div(sums.select(0, 0));
        if (pass.options.zLoss() > 0) {
            Tensor logSum = sums.select(0, 0).log().add_(wideLargest());
            double zLoss = 2.0 * pass.options.zLoss();
            factor.mul_(logSum.mul_(new Scalar(zLoss)).add_(new Scalar(1.0)));
        }
        Tensor parts = labelParts(factor);
        Tensor softmax = pass.batch(buffers.column("softmax factor"));
        softmax.copy_(factor.mul_(aboveAll()));
        Tensor products = buffers.rows("products");
        Tensor gradient = pass.batch(products).mul(softmax.unsqueeze(1));
        addLabels(gradient, parts);
        if (pass.isSmooth()) {
            Tensor share = rowWeights.mul(pass.smoothedShare(pass.total));
            torch.neg_out(pass.batch(buffers.column("part")), share.to(ScalarType.Float));
            // what the shift has not subtracted already
            Tensor rest = softmax.to(ScalarType.Double).mul_(pass.shift()).sub_(share);
            Tensor weights = products.select(0, pass.rows);
            LaneSmoothing.add(gradient, rest.to(ScalarType.Float), weights);
        }
        return margin == null ? gradient : margin.ofFeatures(gradient);
    }

    /**
     * Returns what the gradient of each label's logit has beside its part of the softmax, in
     * float32, [labels]. Where the logit has a margin, the whole gradient is multiplied with the
     * slope: the part of the softmax too, which the passes add once as for any class.
     *
     * @param factor what exponentials above the largest logit are multiplied with, [rows]
     */
    private Tensor labelParts(Tensor factor) {
        Scalar others = new Scalar(pass.options.labelSmoothing() - 1.0);
        Tensor parts = rowWeights.index_select(0, labelRows);
        if (margin == null) {
            return parts.mul_(others).to(ScalarType.Float);
        }
        Tensor slopes = margin.slopes();
        double alpha = pass.options.labelSmoothing();
        Tensor shared = factor.index_select(0, labelRows).mul_(labelLogits().exp_());
        shared.sub_(parts, new Scalar(alpha / pass.total));
        parts.mul_(others).mul_(slopes);
        return parts.addcmul_(shared, slopes.sub(new Scalar(1.0))).to(ScalarType.Float);
    }

    private void addLabels(Tensor gradient, Tensor parts) {
        long count = pass.labels.rows.length;
        buffers.column("label parts").narrow(0, 0, count).copy_(parts);
        Tensor column = parts.unsqueeze(1);
        if (!pass.isSmooth()) { // else the parts go into the gradient of the logits
            Tensor x = pass.batch(buffers.rows("features")).index_select(0, labelRows);
            torch.mul_out(buffers.rows("label rows").narrow(0, 0, count), x, column);
        }
        gradient.index_add_(0, labelRows, labelWeights.mul(column));
    }
}

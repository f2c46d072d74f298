package io.djltp.head;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * What label smoothing changes in a {@link PassWorker}. The gradient of a logit is \(p -
 * \alpha/n\), and where the softmax is nearly uniform a small difference: its digits are gone if
 * \(p\) and \(\alpha/n\) are multiplied with weights or features and summed before the one is
 * subtracted from the other. So the difference is taken first, of every exponential.
 *
 * <p>The second pass knows \(p\). The first does not know the sum of the exponentials yet, and
 * subtracts the shift instead, \(\alpha\) times the mean of those so far. When the mean moves, the
 * products that are there move with it by the sum of the weights so far, which is their last row.
 * So the shifts that were subtracted never come to more than the exponentials do, and the products
 * are as exact as without them also where the first classes are far more likely than the others.
 */
final class LabelSmoothing {

    private final FusedPass pass;
    private final ChunkBuffers buffers;
    private final ChunkArithmetic arithmetic;

    LabelSmoothing(FusedPass pass, ChunkBuffers buffers, ChunkArithmetic arithmetic) {
        this.pass = pass;
        this.buffers = buffers;
        this.arithmetic = arithmetic;
    }

    /**
     * Returns what was subtracted from the exponentials in the products, 0 in the last row, [rows].
     */
    Tensor shift() {
        return buffers.column(ChunkBuffers.Column.SHIFT);
    }

    /**
     * Adds a chunk to the sums and to the products.
     *
     * @param index the chunk
     * @param exponentials its exponentials, [classes of the chunk, rows], which stay as they are if
     *     they are kept
     * @param weight its weights, [classes of the chunk, features]
     * @param sums the sums of exponentials, float64 [rows]
     * @param products the products, [rows, features]
     */
    void addProducts(int index, Tensor exponentials, Tensor weight, Tensor sums, Tensor products) {
        // a product with ones is faster, but adds one after the other: of many equal exponentials,
        // all additions round in the same direction
        sums.add_(exponentials.sum(new long[] {0}));
        ChunkPlan plan = buffers.plan();
        long classes = plan.start(index) + plan.length(index) - plan.range().start();
        Scalar share = CrossEntropyFormula.smoothedShare(pass.options, classes);
        Tensor mean = pass.batch(sums).mul(share).to(ScalarType.Float);
        Tensor shift = pass.batch(shift());
        add(pass.batch(products), shift.sub_(mean), products.select(0, pass.rows));
        shift.copy_(mean);
        Tensor lowered = buffers.spareLogits(index);
        torch.sub_out(lowered, exponentials, shift());
        arithmetic.addProducts(index, lowered, weight, products);
    }

    /**
     * Adds the same sum of weights to all rows of products.
     *
     * @param products the products, [rows of the batch, features]
     * @param factors the factor of each row, float32 [rows of the batch]
     * @param weights the sum of the weights, [features]
     */
    static void add(Tensor products, Tensor factors, Tensor weights) {
        products.addcmul_(factors.unsqueeze(1), weights.unsqueeze(0));
    }

    /**
     * Computes the gradient of a chunk's logits in place of the exponentials.
     *
     * @param exponentials the exponentials, [classes of the chunk, rows], contiguous
     * @param factor the factor of the softmax, [rows of the batch]
     * @param labels where the logits of the labels lie
     * @param scale the factor of the loss in the backward pass
     * @return the gradient, without the last row of the features, [classes, rows of the batch]
     */
    Tensor logitGradient(
            Tensor exponentials, Tensor factor, LabelPlaces.OfChunk labels, float scale) {
        Tensor gradient = exponentials.narrow(1, 0, pass.rows);
        torch.addcmul_out(gradient, pass.smoothedPart(), gradient, factor);
        if (labels.places() != null) {
            Tensor parts = labels.part(pass.labelParts());
            exponentials.view(-1).index_add_(0, labels.places(), parts, new Scalar(scale));
        }
        return gradient;
    }
}

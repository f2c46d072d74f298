package io.djltp.head;

import io.djltp.torch.HostReads;
import io.djltp.update.UnitRows;

import org.bytedeco.pytorch.AbstractTensor;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.function.DoubleUnaryOperator;

/**
 * The logits of a batch's labels under a {@link Margin}, where the label is a class of this rank.
 * They are computed before the pass over the weights, in float64, and take the place of the cosines
 * that the pass computes.
 *
 * <p>In the pass the features are {@code scale * x / |x|} and the rows of the weight {@code w /
 * |w|}, so that their products are the logits of all other classes.
 */
final class MarginLabels {

    private final Margin margin;
    private final ChunkBuffers buffers;
    private final ShardLabels labels;

    private Tensor inverseLengths; // of the features, [rows], float64
    private Tensor features; // [rows, features], float32
    private Tensor slopes; // by what a logit changes with the cosine's, [labels], float64
    private Tensor raised; // the logits less those without the margin, [labels], float64

    MarginLabels(Margin margin, ChunkBuffers buffers, ShardLabels labels) {
        this.margin = margin;
        this.buffers = buffers;
        this.labels = labels;
    }

    /**
     * Computes the logits of the labels. What is kept lives as long as the caller's scope, but for
     * what {@link #replace} needs.
     *
     * @param x the features, [rows, features]
     * @param linear the layer
     */
    void evaluate(Tensor x, ChunkedLinear linear) {
        Scalar scale = new Scalar((double) margin.scale());
        Tensor wide = x.to(ScalarType.Double);
        inverseLengths = UnitRows.inverseLengths(wide);
        Tensor directions = wide.mul(inverseLengths.unsqueeze(1));
        features = directions.mul(scale).to(ScalarType.Float);
        Tensor weights = linear.rows(buffers.index(labels.columns)).to(ScalarType.Double);
        Tensor cosines =
                directions
                        .index_select(0, buffers.index(labels.rows))
                        .mul_(weights)
                        .sum(1)
                        .mul_(UnitRows.inverseLengths(weights));
        double[] values = HostReads.doubles(cosines);
        Tensor logits = map(values, margin::apply).mul_(scale);
        slopes = map(values, margin::slope);
        raised = logits.sub(cosines.mul_(scale));
        buffers.column(ChunkBuffers.Column.LABEL_LOGITS).narrow(0, 0, values.length).copy_(logits);
    }

    private Tensor map(double[] values, DoubleUnaryOperator function) {
        double[] mapped = new double[values.length];
        for (int i = 0; i < mapped.length; i++) {
            mapped[i] = function.applyAsDouble(values[i]);
        }
        return AbstractTensor.create(mapped).to(buffers.wide().device(), ScalarType.Double);
    }

    Tensor features() {
        return features;
    }

    Tensor slopes() {
        return slopes;
    }

    Tensor raised() {
        return raised;
    }

    /**
     * Puts the logits of the labels into those of a chunk.
     *
     * @param found the labels of the chunk
     * @param chunk its logits, [classes of the chunk, rows], contiguous
     */
    void replace(LabelPlaces.OfChunk found, Tensor chunk) {
        if (found.places() != null) {
            Tensor values = found.part(buffers.column(ChunkBuffers.Column.LABEL_LOGITS));
            chunk.view(-1).index_copy_(0, found.places(), values);
        }
    }

    /** Returns the gradient of the features from that of what the pass has in their place. */
    Tensor ofFeatures(Tensor gradient) {
        Tensor directions = features.div(new Scalar((double) margin.scale()));
        Tensor factors = inverseLengths.mul(new Scalar((double) margin.scale()));
        UnitRows.project(
                gradient, directions, factors.to(ScalarType.Float), torch.empty_like(gradient));
        return gradient;
    }
}

package io.djltp.update;

import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.torch.TensorView;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;

import java.util.List;
import java.util.Map;

/**
 * Adagrad with one number of state for each row.
 *
 * <p>Of rows that are cut over ranks, the squares of a whole row are summed over these before the
 * first of its elements moves: one all-reduce of [rows].
 */
final class RowwiseAdagradUpdate extends WeightUpdate {

    private static final String ISSUER = "row-wise Adagrad";

    private final float epsilon;
    private Tensor sums; // [rows]: of the means of the squared gradients so far
    private Tensor squares; // [rows]: the sums of this step's, of rows that are cut
    private Communicator group; // over which rows are cut, or null
    private long rowLength;
    private long shardLength; // of the axis that is cut, on this rank
    private long inner; // elements of one index of that axis, in a row
    private List<ShardRange> elsewhere = List.of(); // of the shard: counted by another rank

    RowwiseAdagradUpdate(Settings settings, float epsilon) {
        super(settings);
        this.epsilon = epsilon;
    }

    /** {@inheritDoc} */
    @Override
    public void setRowsCut(Communicator ranks, Shape whole, int axis, Cut cut) {
        group = ranks.getSize() > 1 ? ranks : null;
        rowLength = whole.size() / whole.get(0);
        shardLength = cut.getShardLength(ranks.getRank());
        inner = whole.slice(axis + 1).size();
        elsewhere =
                cut.getSegments().stream()
                        .filter(segment -> segment.getPlace(ranks.getRank()) >= 0)
                        .filter(segment -> segment.getFirstRank() != ranks.getRank())
                        .map(s -> new ShardRange(s.getPlace(ranks.getRank()), s.range().length()))
                        .toList();
    }

    /** {@inheritDoc} */
    @Override
    boolean isStill() {
        // ranks that share a row meet, whether they have a gradient or not
        return settings.weightDecay() == 0 && group == null;
    }

    /** {@inheritDoc} */
    @Override
    boolean isOneOperation(boolean onGpu) {
        return false;
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(long classes, long features, TensorOptions options) {
        if (sums == null) {
            sums = zeros(options, classes);
        }
        if (group != null && squares == null) {
            squares = zeros(options, classes);
        }
    }

    /** {@inheritDoc} */
    @Override
    boolean isMeasured() {
        return group != null;
    }

    /** {@inheritDoc} */
    @Override
    void measure(GradientRows chunk) {
        Tensor place = chunk.spare();
        torch.mul_out(place, chunk.gradient(1), new Scalar(settings.rescale()));
        if (settings.isClipped()) {
            place.clamp_max_(new Scalar(settings.clip()));
        }
        decay(place, chunk.weight);
        place.mul_(place);
        for (ShardRange range : elsewhere) {
            place.view(place.size(0), -1, shardLength, inner)
                    .narrow(2, range.start(), range.length())
                    .zero_();
        }
        chunk.rowsOf(squares, 0).copy_(sum(place));
    }

    /** {@inheritDoc} */
    @Override
    void endMeasure() {
        group.setIssuer(ISSUER);
        group.allReduce(TensorView.of(squares), ReduceOp.SUM).await();
    }

    /** {@inheritDoc} */
    @Override
    public void apply(GradientRows chunk) {
        Tensor gradient = chunk.whole(settings);
        decay(gradient, chunk.weight);
        Tensor state = chunk.rowsOf(sums, 0);
        state.add_(means(chunk, gradient));
        Tensor divisor = state.sqrt().add_(new Scalar(epsilon));
        chunk.weight.addcdiv_(gradient, divisor.unsqueeze(1), new Scalar(-learningRate));
        chunk.setRows(sums, state);
    }

    private void decay(Tensor gradient, Tensor weight) {
        if (settings.weightDecay() != 0) {
            gradient.add_(weight, new Scalar(settings.weightDecay()));
        }
    }

    /** Returns the means of the squared gradients of whole rows, [length]. */
    private Tensor means(GradientRows chunk, Tensor gradient) {
        if (group != null) {
            return chunk.rowsOf(squares, 0).div(new Scalar((double) rowLength));
        }
        Tensor ofElements = chunk.spare();
        torch.mul_out(ofElements, gradient, gradient);
        return sum(ofElements).div_(new Scalar((double) gradient.size(1)));
    }

    private static Tensor sum(Tensor ofElements) {
        return ofElements.size(1) == 1
                ? ofElements.squeeze(1) // of a bias: the sum of one number each takes its time
                : ofElements.sum(new long[] {1}, false, new ScalarTypeOptional());
    }

    /** {@inheritDoc} */
    @Override
    protected Map<String, Tensor> state() {
        return sums == null ? Map.of() : Map.of("sums", sums);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        free(sums);
        free(squares);
        sums = null;
        squares = null;
    }
}

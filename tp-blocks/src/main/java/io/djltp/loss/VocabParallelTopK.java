package io.djltp.loss;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;
import io.djltp.internal.head.ChunkedEvaluation;
import io.djltp.internal.loss.FusedHead;
import io.djltp.internal.loss.ShardedPredictions;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.TorchOperations;

/**
 * The k best classes of logits that are cut over the ranks by class, without gathering them: each
 * rank looks for its k best, one all-gather brings k logits and classes of each row and rank
 * together, and every rank takes the best of these. Of equal logits that of the class with the
 * lower number comes first.
 *
 * <pre>{@code
 * NDList predictions = trainer.evaluate(batch.getData());
 * try (TopClasses best = new VocabParallelTopK(5).evaluate(predictions)) {
 *     long[] classes = best.classes().toLongArray();
 * }
 * }</pre>
 *
 * <p>Takes the predictions of {@code trainer.evaluate}, on all of its ranks at once; on a rank, the
 * rank's shard or the features of a {@link io.djltp.nn.ClassificationHead}, whose logits are then
 * computed a chunk of classes at a time; and whole logits.
 */
public class VocabParallelTopK {

    private final int k;
    private final boolean withProbabilities;

    /**
     * Looks for the best classes and their logits.
     *
     * @param k how many classes are wanted, 1 or more
     */
    public VocabParallelTopK(int k) {
        this(k, false);
    }

    /**
     * Looks for the best classes, their logits and, if wanted, their probabilities, which take a
     * sum over all classes.
     *
     * @param k how many classes are wanted, 1 or more
     * @param withProbabilities whether their probabilities are wanted too
     */
    public VocabParallelTopK(int k, boolean withProbabilities) {
        Errors.check(k >= 1, "The k of a top-k must be 1 or more: %s", k);
        this.k = k;
        this.withProbabilities = withProbabilities;
    }

    /**
     * Returns the best classes of each row.
     *
     * @param predictions the predictions, one array of [x1, ..., xn, classes]
     * @return the best classes, [x1, ..., xn, k]
     * @throws IllegalArgumentException if there are fewer classes than k
     * @throws ArithmeticException if a logit is NaN; the message names the row
     */
    public TopClasses evaluate(NDList predictions) {
        ShardedPredictions sharded = ShardedPredictions.of(predictions);
        if (sharded == null) {
            return onRank(predictions.singletonOrThrow()).checked(); // alike on all ranks
        }
        long classes = classes(predictions);
        if (k > classes) { // an exception on a rank would end them all
            throw Errors.argument(
                    "The %s best of %s classes were asked for: 1 to %s can be had",
                    k, classes, classes);
        }
        NDList noLabels = new NDList();
        try (NDArray packed =
                sharded.evaluateOnRanks(
                        noLabels,
                        (none, predicted) -> pack(onRank(predicted.singletonOrThrow())))) {
            return unpack(packed).checked();
        }
    }

    private static long classes(NDList predictions) {
        Shape shape = predictions.singletonOrThrow().getShape();
        return shape.get(shape.dimension() - 1);
    }

    private TopClasses onRank(NDArray logits) {
        ParallelContext context = ParallelContext.current();
        FusedHead head = FusedHead.of(context, logits);
        if (head != null && context != null) {
            context.getTensorGroup().setIssuer(getClass().getSimpleName());
            return head.topK(logits, k, withProbabilities);
        }
        ClassCut classes = ClassCut.of(context, logits, this);
        try (ChunkedEvaluation chunks =
                new ChunkedEvaluation(classes.group(), classes.cut(), Long.MAX_VALUE, 0, null)) {
            return chunks.topK(logits, null, null, k, withProbabilities);
        }
    }

    /** Puts everything into one array of float64, which holds class numbers exactly. */
    private NDArray pack(TopClasses best) {
        try (best;
                NDList wide = new NDList()) {
            wide.add(best.classes().toType(DataType.FLOAT64, true));
            wide.add(best.logits().toType(DataType.FLOAT64, true));
            if (best.logProbabilities() != null) {
                wide.add(best.logProbabilities().toType(DataType.FLOAT64, true));
            }
            return TorchOperations.concat(wide, -1);
        }
    }

    private TopClasses unpack(NDArray packed) {
        return new TopClasses(
                part(packed, 0, DataType.INT64),
                part(packed, 1, DataType.FLOAT32),
                withProbabilities ? part(packed, 2, DataType.FLOAT32) : null);
    }

    private NDArray part(NDArray packed, int number, DataType type) {
        NDIndex columns = new NDIndex().addEllipseDim().addSliceDim(number * k, (number + 1) * k);
        try (NDArray wide = packed.get(columns)) {
            return wide.toType(type, true);
        }
    }
}

package io.djltp.internal.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.head.TopClasses;
import io.djltp.internal.Errors;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchScope;
import io.djltp.internal.update.UnitRows;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.stream.LongStream;

/**
 * What one asks of a linear layer with a softmax over many classes without training it: the best
 * classes, the places of labels, the loss. The logits exist a chunk of classes at a time, and no
 * graph is recorded.
 *
 * <p>Shapes as in {@link ChunkedHead}. Weights and features of 16 bits are computed with in 32. The
 * memory of a chunk is reused by the next call; an instance belongs to one rank, and one thread at
 * a time.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ChunkedEvaluation implements AutoCloseable {

    private static final ScalarType FLOAT = ScalarType.Float;

    private static final LossOptions ALL_COUNT = new LossOptions(Long.MIN_VALUE, 0, 0);

    private final ClassShard shard;
    private final long budget;
    private final long chunk;
    private final @Nullable Margin margin;
    private @Nullable ChunkMemory memory;
    private long restoredRows;

    /**
     * Creates the evaluation of one rank.
     *
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param cut the cut of the classes
     * @param budget the bytes that logits may take on this rank
     * @param chunk the classes of a chunk, or 0 for what suits the device
     * @param margin what the layer was trained with: its logits are then scaled cosines; or {@code
     *     null}
     * @throws IllegalArgumentException if a class is on several ranks
     */
    public ChunkedEvaluation(
            @Nullable Communicator group,
            Cut cut,
            long budget,
            long chunk,
            @Nullable Margin margin) {
        LibTorch.load(); // before anything else of the preset
        shard = new ClassShard(cut, group);
        this.budget = budget;
        this.chunk = chunk;
        this.margin = margin;
    }

    /**
     * Returns the best classes of all ranks for each row. One all-gather.
     *
     * @param features the features, [x1, ..., xn, features]; or the rank's shard of the logits
     * @param weight the rank's shard of the weight, or {@code null} for logits
     * @param bias the rank's shard of the bias, or {@code null}
     * @param k how many classes are wanted
     * @param withProbabilities whether their probabilities are wanted too
     * @return the best classes, attached to the manager of the features
     * @throws IllegalArgumentException if there are fewer classes than {@code k}
     */
    public TopClasses topK(
            NDArray features,
            @Nullable NDArray weight,
            @Nullable NDArray bias,
            int k,
            boolean withProbabilities) {
        long total = shard.total();
        if (k < 1 || k > total) {
            throw Errors.argument(
                    "The %s best of %s classes were asked for: 1 to %s can be had",
                    k, total, total);
        }
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            ChunkTopK.Found best =
                    new ChunkTopK(chunks, k, withProbabilities).found(shard, k).gather(shard);
            NDArray logProbabilities =
                    withProbabilities ? toArray(best.logProbabilities(), FLOAT, features) : null;
            return new TopClasses(
                    toArray(best.classes(), ScalarType.Long, features),
                    toArray(best.values(), FLOAT, features),
                    logProbabilities);
        }
    }

    /**
     * Returns how many classes of all ranks come before the label of each row in the order of the
     * logits: those with a larger one, and with an equal one and a lower number. Two all-reduces.
     *
     * @param features the features, [x1, ..., xn, features]; or the rank's shard of the logits
     * @param weight the rank's shard of the weight, or {@code null} for logits
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @return the counts, int64 [rows], attached to the manager of the features
     */
    public NDArray countBefore(
            NDArray features, @Nullable NDArray weight, @Nullable NDArray bias, NDArray labels) {
        ClassLabels rows = ClassLabels.of(features, labels, shard, ALL_COUNT);
        Errors.check(
                !rows.areMany(),
                "The place of one label of each row can be told, and not of several: %s",
                labels.getShape());
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            Tensor logits = torch.zeros(new long[] {chunks.rows}, chunks.memory.options());
            logits.index_copy_(0, chunks.memory.index(rows.rows), chunks.labelLogits(rows));
            shard.allReduce(logits, ReduceOp.SUM);
            long[] columns = LongStream.of(rows.all).map(shard::columnsBefore).toArray();
            Tensor before = chunks.countBefore(logits, chunks.memory.index(columns));
            shard.allReduce(before, ReduceOp.SUM);
            return TensorView.toArray(before, features.getManager());
        }
    }

    /**
     * Returns the loss that {@link ChunkedHead#evaluate} computes, without a gradient. One
     * all-gather.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @param options the options of the loss
     * @return the loss, in float32 a scalar, or of each row [x1, ..., xn], attached to the manager
     *     of the features
     */
    public NDArray loss(
            NDArray features,
            NDArray weight,
            @Nullable NDArray bias,
            NDArray labels,
            LossOptions options) {
        SoftmaxLoss.check(options, shard.total(), true);
        ClassLabels rows = ClassLabels.of(features, labels, shard, options);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            LogitChunks.LogSum sums = new LogitChunks.LogSum(chunks);
            Tensor labelLogits =
                    torch.zeros(new long[] {rows.rows.length}, chunks.memory.options());
            Tensor sumOfLogits = options.labelSmoothing() > 0 ? torch.zeros_like(sums.sum) : null;
            chunks.forEach(
                    (index, logits) -> {
                        chunks.copyLabelLogits(index, rows, logits, labelLogits, false);
                        if (sumOfLogits != null) {
                            long[] classes = {1};
                            sumOfLogits.add_(logits.sum(classes, false, new ScalarTypeOptional()));
                        }
                        sums.add(logits, logits.amax(new long[] {1}, false));
                    });
            SoftmaxLoss.Statistics statistics =
                    SoftmaxLoss.Statistics.gather(
                            shard,
                            sums.sum,
                            sums.largest,
                            sumOfLogits,
                            rows.atPlaces(labelLogits, chunks.memory.index(rows.places)),
                            null);
            double[] ofLabels = statistics.labelLogits(rows.all.length);
            SoftmaxLoss loss = new SoftmaxLoss(rows, statistics, ofLabels, true);
            return ShardedCrossEntropy.shaped(
                    loss.value(chunks.memory.options()), options, features);
        }
    }

    /**
     * Returns a one-vs-all loss over all classes, without a gradient. One all-reduce.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn] or [x1, ..., xn, width], of any numeric type
     * @param loss the loss
     * @return the loss, as {@link #loss(NDArray, NDArray, NDArray, NDArray, LossOptions)}
     */
    public NDArray loss(
            NDArray features,
            NDArray weight,
            @Nullable NDArray bias,
            NDArray labels,
            OneVsAll loss) {
        loss.check(shard.total());
        ClassLabels rows = ClassLabels.of(features, labels, shard, loss.options());
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            Tensor ofClasses = loss.classWeights(rows, chunks.memory.options());
            Tensor labelLogits =
                    torch.zeros(new long[] {rows.rows.length}, chunks.memory.options());
            Tensor sums = torch.zeros(new long[] {chunks.rows}, chunks.memory.options());
            sums = sums.to(ScalarType.Double);
            Tensor ofRows = sums;
            chunks.forEach(
                    (index, logits) -> {
                        chunks.copyLabelLogits(index, rows, logits, labelLogits, true);
                        Tensor losses = loss.kind().losses(logits);
                        if (ofClasses != null) {
                            losses.mul_(chunks.plan.part(ofClasses, index));
                        }
                        ofRows.add_(losses.sum(new long[] {1}, false, new ScalarTypeOptional()));
                    });
            Tensor all = loss.addLabels(rows, sums, labelLogits);
            return ShardedCrossEntropy.shaped(loss.value(rows, all), loss.options(), features);
        }
    }

    /**
     * Computes this rank's shard of the logits.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @return the logits, float32 [x1, ..., xn, classes of the rank], attached to the manager of
     *     the features
     */
    public NDArray logits(NDArray features, NDArray weight, @Nullable NDArray bias) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            long classes = chunks.plan.range().length();
            long[] shape = {chunks.rows, classes};
            Tensor logits = torch.empty(shape, chunks.memory.options(), new MemoryFormatOptional());
            chunks.forEach(
                    (index, part) ->
                            logits.narrow(1, chunks.plan.start(index), part.size(1)).copy_(part));
            return toArray(logits, FLOAT, features);
        }
    }

    /** Returns [rows, columns] as an array [x1, ..., xn, columns]. */
    private static NDArray toArray(Tensor tensor, ScalarType type, NDArray features) {
        Shape shape = ClassLabels.leading(features).add(tensor.size(1));
        Tensor values = tensor.to(type).contiguous().view(shape.getShape());
        return TensorView.toArray(values, features.getManager());
    }

    private LogitChunks chunks(NDArray features, @Nullable NDArray weight, @Nullable NDArray bias) {
        Tensor rows = ClassLabels.rows(features);
        if (weight == null) {
            return LogitChunks.of(prepare(rows, 0, rows.size(1), false), rows);
        }
        Tensor x = rows.to(FLOAT).contiguous();
        ScalarType type = TensorView.of(weight).tensor().scalar_type().intern();
        boolean copies = type != FLOAT || margin != null;
        ChunkMemory prepared = prepare(x, x.size(1), weight.getShape().get(0), copies);
        ChunkedLinear linear = new ChunkedLinear(weight, bias, null, margin != null);
        return LogitChunks.of(prepared, linear, margin == null ? x : scaled(x, margin));
    }

    private static Tensor scaled(Tensor x, Margin margin) {
        Tensor factors = UnitRows.inverseLengths(x).mul_(new Scalar(margin.scale()));
        return x.mul(factors.unsqueeze(1));
    }

    /** Memory for many rows has too small chunks for few. */
    private ChunkMemory prepare(Tensor x, long features, long classes, boolean copiesWeights) {
        long rows = Math.max(1, x.size(0));
        if (memory != null
                && memory.fits(rows, features)
                && memory.plan().range().length() == classes
                && memory.plan().rows() < 4 * rows) {
            return memory;
        }
        long copied = copiesWeights ? features : 0;
        boolean before = memory == null && rows <= restoredRows && restoredRows < 4 * rows;
        long planned = before ? restoredRows : rows;
        long wanted =
                chunk > 0 ? chunk : ChunkPlan.evaluationSize(planned, copied, budget, x.is_cuda());
        ChunkPlan plan =
                ChunkPlan.of(
                        planned, features, classes, wanted, budget, Float.BYTES, 1, x.is_cuda())[0];
        freeMemory();
        memory = new ChunkMemory(plan, features, x, Precision.FLOAT32);
        return memory;
    }

    /**
     * Returns the rows that chunks were planned for, or 0: how sums are rounded follows from it.
     */
    long plannedRows() {
        return memory == null ? restoredRows : memory.plan().rows();
    }

    /** Sets the rows that chunks were planned for in a run that is continued. */
    void setPlannedRows(long rows) {
        freeMemory();
        restoredRows = rows;
    }

    /** Frees the memory. */
    @Override
    public void close() {
        freeMemory();
    }

    private void freeMemory() {
        if (memory != null) {
            memory.close();
            memory = null;
        }
    }
}

package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.ShardRange;
import io.djltp.torch.LibTorch;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;
import io.djltp.update.RowOps;
import io.djltp.update.UnitRows;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * What one asks of a linear layer with a softmax over many classes without training it: the best
 * classes, the places of labels, the loss. The logits exist a chunk of classes at a time, and no
 * graph is recorded.
 *
 * <p>Shapes as in {@link FusedCrossEntropy}. Weights and features of 16 bits are computed with in
 * 32. The memory of a chunk is reused by the next call; an instance belongs to one rank, and one
 * thread at a time.
 */
@SuppressWarnings("try") // a scope is used by being open
public final class ChunkedEvaluation implements AutoCloseable {

    /**
     * The bytes that the logits of a chunk take on a CPU: few enough for its caches, where they are
     * read several times, and enough for the threads of an operation not to wait for each other for
     * longer than they compute. Each weight is read once, and need not stay there.
     */
    private static final long CPU_BYTES = 4L << 20;

    /** A GPU needs enough work for each of its kernels instead. */
    private static final long GPU_BYTES = 256L << 20;

    private static final long SMALLEST = 256;

    private final Communicator group;
    private final ShardRange range;
    private final long total;
    private final long budget;
    private final long chunk;
    private final Margin margin; // or null
    private ChunkBuffers buffers;

    /**
     * Creates the evaluation of one rank.
     *
     * @param group the ranks over which the classes are cut, or {@code null} if they are not
     * @param range the classes of this rank, one of the balanced ranges
     * @param total the number of classes of all ranks
     * @param budget the bytes that logits may take on this rank
     * @param chunk the classes of a chunk, or 0 for what suits the device
     * @param margin what the layer was trained with: its logits are then scaled cosines; or {@code
     *     null}
     */
    public ChunkedEvaluation(
            Communicator group,
            ShardRange range,
            long total,
            long budget,
            long chunk,
            Margin margin) {
        LibTorch.load(); // before anything else of the preset
        this.group = group;
        this.range = range;
        this.total = total;
        this.budget = budget;
        this.chunk = chunk;
        this.margin = margin;
    }

    /**
     * Returns the best classes of all ranks for each row. One all-gather.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param k how many classes are wanted
     * @param withProbabilities whether their probabilities are wanted too
     * @return the best classes, attached to the manager of the features
     * @throws IllegalArgumentException if there are fewer classes than {@code k}
     */
    public TopClasses topK(
            NDArray features, NDArray weight, NDArray bias, int k, boolean withProbabilities) {
        checkCount(k);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            return topK(chunks, features, k, withProbabilities);
        }
    }

    /**
     * Returns the best classes of all ranks for each row of logits that are there. One all-gather.
     *
     * @param logits the rank's slice of the logits, [x1, ..., xn, classes/p]
     * @param k how many classes are wanted
     * @param withProbabilities whether their probabilities are wanted too
     * @return the best classes, attached to the manager of the logits
     * @throws IllegalArgumentException if there are fewer classes than {@code k}
     */
    public TopClasses topK(NDArray logits, int k, boolean withProbabilities) {
        checkCount(k);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            Tensor rows = FusedCrossEntropy.rows(logits);
            prepare(rows, 0, rows.size(1), false);
            LogitChunks chunks = new LogitChunks.OfWhole(buffers, rows);
            return topK(chunks, logits, k, withProbabilities);
        }
    }

    private TopClasses topK(LogitChunks chunks, NDArray rows, int k, boolean withProbabilities) {
        ChunkTopK own = new ChunkTopK(chunks, k, withProbabilities).run();
        TopKGather gather = new TopKGather(own, range, total, k, group);
        ChunkTopK.Best best = gather.best();
        Shape shape = leading(rows).add(k);
        NDManager manager = rows.getManager();
        Tensor logProbabilities = withProbabilities ? gather.logProbabilities(best.values()) : null;
        return new TopClasses(
                toArray(best.classes().to(ScalarType.Long), shape, manager),
                toArray(best.values().to(ScalarType.Float), shape, manager),
                withProbabilities
                        ? toArray(logProbabilities.to(ScalarType.Float), shape, manager)
                        : null);
    }

    private void checkCount(int k) {
        if (k < 1 || k > total) {
            throw new IllegalArgumentException(
                    "The "
                            + k
                            + " best of "
                            + total
                            + " classes were asked for: 1 to "
                            + total
                            + " can be had");
        }
    }

    /**
     * Returns how many classes of all ranks come before the label of each row in the order of the
     * logits, see {@link RowOps#countBefore}. Two all-reduces.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @return the counts, int64 [rows], attached to the manager of the features
     */
    public NDArray countBefore(NDArray features, NDArray weight, NDArray bias, NDArray labels) {
        LabelRows rows = LabelRows.of(features, labels, range, total, Long.MIN_VALUE);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            ChunkRanking ranking = new ChunkRanking(chunks(features, weight, bias), rows);
            Tensor logits = ranking.labelLogits();
            allReduce(logits, ReduceOp.SUM);
            Tensor ids = TensorView.of(labels).tensor().to(ScalarType.Long).reshape(-1);
            Tensor before = ranking.countBefore(logits, ids.sub(new Scalar(range.start())));
            allReduce(before, ReduceOp.SUM);
            return TensorView.toArray(before, features.getManager());
        }
    }

    /**
     * Returns the loss that {@link FusedCrossEntropy#evaluate} computes, without a gradient. Two
     * all-reduces.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @param options the options of the loss
     * @return the loss, a scalar in float32, attached to the manager of the features
     */
    public NDArray loss(
            NDArray features, NDArray weight, NDArray bias, NDArray labels, LossOptions options) {
        LabelRows rows = LabelRows.of(features, labels, range, total, options.ignoreIndex());
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            ChunkLogSum logSum = new ChunkLogSum(chunks);
            boolean smooth = options.labelSmoothing() > 0;
            long[] shape = {smooth ? 3 : 2, chunks.rows};
            Tensor sums = torch.zeros(shape, buffers.wide());
            addLabels(chunks, new ChunkRanking(chunks, rows), logSum, sums, smooth);
            Tensor largest = logSum.largest().clone();
            allReduce(largest, ReduceOp.MAX);
            sums.select(0, 0).copy_(logSum.sumAbove(largest));
            allReduce(sums, ReduceOp.SUM);
            sums.select(0, 1).sub_(largest);
            Tensor weights = FusedStatistics.rowWeights(rows, buffers);
            Tensor wide = largest.to(ScalarType.Double);
            Tensor value = FusedStatistics.value(sums, wide, weights, options, total);
            return TensorView.toArray(value, features.getManager());
        }
    }

    private static void addLabels(
            LogitChunks chunks,
            ChunkRanking ranking,
            ChunkLogSum logSum,
            Tensor sums,
            boolean smooth) {
        for (int i = 0; i < chunks.plan().count(); i++) {
            try (PointerScope scope = new PointerScope()) {
                Tensor logits = chunks.logits(i);
                ranking.addLabelLogits(i, logits, sums.select(0, 1));
                if (smooth) {
                    ScalarTypeOptional same = new ScalarTypeOptional();
                    sums.select(0, 2).add_(logits.sum(new long[] {1}, false, same));
                }
                logSum.add(logits, logits.amax(new long[] {1}, false));
            }
        }
    }

    /**
     * Returns this rank's slice of the logits after all.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @return the logits, float32 [x1, ..., xn, classes/p], attached to the manager of the features
     */
    public NDArray logits(NDArray features, NDArray weight, NDArray bias) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            ChunkPlan plan = chunks.plan();
            long[] shape = {chunks.rows, plan.range().length()};
            Tensor whole = torch.empty(shape, buffers.options(), new MemoryFormatOptional());
            for (int i = 0; i < plan.count(); i++) {
                try (PointerScope part = new PointerScope()) {
                    whole.narrow(1, plan.start(i), plan.length(i)).copy_(chunks.logits(i));
                }
            }
            return toArray(
                    whole, leading(features).add(plan.range().length()), features.getManager());
        }
    }

    private void allReduce(Tensor tensor, ReduceOp op) {
        if (group != null && group.getSize() > 1) {
            group.allReduce(TensorView.of(tensor), op).await();
        }
    }

    private static Shape leading(NDArray rows) {
        return rows.getShape().slice(0, rows.getShape().dimension() - 1);
    }

    private static NDArray toArray(Tensor tensor, Shape shape, NDManager manager) {
        return TensorView.toArray(tensor.contiguous().view(shape.getShape()), manager);
    }

    private LogitChunks chunks(NDArray features, NDArray weight, NDArray bias) {
        Tensor x = FusedCrossEntropy.rows(features).to(ScalarType.Float).contiguous();
        ScalarType type = TensorView.of(weight).tensor().scalar_type().intern();
        prepare(x, x.size(1), weight.getShape().get(0), type != ScalarType.Float || margin != null);
        Tensor w = TensorView.of(weight).tensor().detach();
        Tensor b = bias == null ? null : TensorView.of(bias).tensor().detach();
        ChunkedLinear linear = new ChunkedLinear(buffers, w, b, null, margin != null);
        return new LogitChunks.OfLinear(buffers, linear, margin == null ? x : scaled(x));
    }

    private Tensor scaled(Tensor x) {
        Tensor factors = UnitRows.inverseLengths(x).mul_(new Scalar(margin.scale()));
        return x.mul(factors.unsqueeze(1));
    }

    /** Memory for many rows has too small chunks for few. */
    private void prepare(Tensor x, long features, long classes, boolean copiesWeights) {
        long rows = Math.max(1, x.size(0));
        if (buffers != null
                && buffers.fits(rows, features)
                && buffers.plan().range().length() == classes
                && buffers.plan().rows() < 4 * rows) {
            return;
        }
        long wanted = chunk > 0 ? chunk : chunkSize(rows, copiesWeights ? features : 0, x);
        ChunkPlan plan = ChunkPlan.of(rows, features, classes, wanted, budget, 1, x.is_cuda())[0];
        close();
        buffers = new ChunkBuffers(plan, features, x);
    }

    private long chunkSize(long rows, long copied, Tensor x) {
        long fitting = (x.is_cuda() ? GPU_BYTES : CPU_BYTES) / (Float.BYTES * (rows + copied));
        long size = Math.max(SMALLEST, Long.highestOneBit(Math.max(1, fitting)));
        return Math.max(1, Math.min(size, budget / (Float.BYTES * rows)));
    }

    /** Frees the memory. */
    @Override
    public void close() {
        if (buffers != null) {
            buffers.close();
            buffers = null;
        }
    }
}

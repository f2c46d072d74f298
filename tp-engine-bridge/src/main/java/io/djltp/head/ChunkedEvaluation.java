package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Communicator;
import io.djltp.collective.ReduceOp;
import io.djltp.cut.Cut;
import io.djltp.torch.LibTorch;
import io.djltp.torch.Precision;
import io.djltp.torch.TensorView;
import io.djltp.torch.TorchScope;
import io.djltp.update.UnitRows;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorVector;
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

    private final ClassShard shard;
    private final long budget;
    private final long chunk;
    private final Margin margin; // or null
    private ChunkMemory buffers;
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
    public ChunkedEvaluation(Communicator group, Cut cut, long budget, long chunk, Margin margin) {
        LibTorch.load(); // before anything else of the preset
        shard = new ClassShard(cut, group);
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
     * @param logits the rank's shard of the logits, [x1, ..., xn, classes of the rank]
     * @param k how many classes are wanted
     * @param withProbabilities whether their probabilities are wanted too
     * @return the best classes, attached to the manager of the logits
     * @throws IllegalArgumentException if there are fewer classes than {@code k}
     */
    public TopClasses topK(NDArray logits, int k, boolean withProbabilities) {
        checkCount(k);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return topK(chunks(logits), logits, k, withProbabilities);
        }
    }

    private TopClasses topK(LogitChunks chunks, NDArray rows, int k, boolean withProbabilities) {
        ChunkTopK found = new ChunkTopK(chunks, k, withProbabilities).run();
        TopKGather gather = new TopKGather(found, shard, k);
        ChunkTopK.Best best = gather.best();
        Shape shape = ShardLabels.leading(rows).add(k);
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
        long total = shard.total();
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
     * logits: those with a larger one, and with an equal one and a lower number. Two all-reduces.
     *
     * @param features the features, [x1, ..., xn, features]
     * @param weight the rank's shard of the weight
     * @param bias the rank's shard of the bias, or {@code null}
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @return the counts, int64 [rows], attached to the manager of the features
     */
    public NDArray countBefore(NDArray features, NDArray weight, NDArray bias, NDArray labels) {
        ShardLabels rows = ShardLabels.of(features, labels, shard, Long.MIN_VALUE);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return countBefore(chunks(features, weight, bias), rows, features.getManager());
        }
    }

    /**
     * Returns how many classes of all ranks come before the label of each row in the order of
     * logits that are there. Two all-reduces.
     *
     * @param logits the rank's shard of the logits, [x1, ..., xn, classes of the rank]
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @return the counts, int64 [rows], attached to the manager of the logits
     */
    public NDArray countBefore(NDArray logits, NDArray labels) {
        ShardLabels rows = ShardLabels.of(logits, labels, shard, Long.MIN_VALUE);
        try (TorchScope scope = TorchScope.withoutGraph()) {
            return countBefore(chunks(logits), rows, logits.getManager());
        }
    }

    private NDArray countBefore(LogitChunks chunks, ShardLabels labels, NDManager manager) {
        ChunkRanking ranking = new ChunkRanking(chunks, labels);
        Tensor logits = ranking.labelLogits();
        shard.allReduce(logits, ReduceOp.SUM);
        Tensor before = ranking.countBefore(logits, buffers.index(labels.columnsBefore(shard)));
        shard.allReduce(before, ReduceOp.SUM);
        return TensorView.toArray(before, manager);
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
     * @return the loss, in float32 a scalar, or of each row [x1, ..., xn], attached to the manager
     *     of the features
     */
    public NDArray loss(
            NDArray features, NDArray weight, NDArray bias, NDArray labels, LossOptions options) {
        options.checkFused(shard.total());
        ShardLabels rows = ShardLabels.of(features, labels, shard, options.ignoreIndex());
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            Tensor value = new ChunkLoss(chunks, rows, options).evaluate(shard);
            return ShardedCrossEntropy.shaped(value, options, features);
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
    public NDArray logits(NDArray features, NDArray weight, NDArray bias) {
        try (TorchScope scope = TorchScope.withoutGraph()) {
            LogitChunks chunks = chunks(features, weight, bias);
            ChunkPlan plan = chunks.plan();
            long[] shape = {chunks.rows, plan.range().length()};
            Tensor logits = torch.empty(shape, buffers.options(), new MemoryFormatOptional());
            for (int i = 0; i < plan.count(); i++) {
                try (PointerScope part = new PointerScope()) {
                    logits.narrow(1, plan.start(i), plan.length(i)).copy_(chunks.logits(i));
                }
            }
            Shape shapeOfAll = ShardLabels.leading(features).add(plan.range().length());
            return toArray(logits, shapeOfAll, features.getManager());
        }
    }

    private static NDArray toArray(Tensor tensor, Shape shape, NDManager manager) {
        return TensorView.toArray(tensor.contiguous().view(shape.getShape()), manager);
    }

    private LogitChunks chunks(NDArray logits) {
        Tensor rows = ShardLabels.rows(logits);
        prepare(rows, 0, rows.size(1), false);
        return new LogitChunks.OfLogits(buffers, rows);
    }

    private LogitChunks chunks(NDArray features, NDArray weight, NDArray bias) {
        Tensor x = ShardLabels.rows(features).to(ScalarType.Float).contiguous();
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
        long copied = copiesWeights ? features : 0;
        boolean before = buffers == null && rows <= restoredRows && restoredRows < 4 * rows;
        long planned = before ? restoredRows : rows;
        long wanted =
                chunk > 0 ? chunk : ChunkPlan.evaluationSize(planned, copied, budget, x.is_cuda());
        ChunkPlan plan =
                ChunkPlan.of(
                        planned, features, classes, wanted, budget, Float.BYTES, 1, x.is_cuda())[0];
        close();
        buffers = new ChunkMemory(plan, features, x, Precision.FLOAT32);
    }

    /**
     * Returns the rows that chunks were planned for, or 0: how sums are rounded follows from it.
     */
    long plannedRows() {
        return buffers == null ? restoredRows : buffers.plan().rows();
    }

    /** Sets the rows that chunks were planned for in a run that is continued. */
    void setPlannedRows(long rows) {
        close();
        restoredRows = rows;
    }

    /** Frees the memory. */
    @Override
    public void close() {
        if (buffers != null) {
            buffers.close();
            buffers = null;
        }
    }

    /** The loss of logits that exist a chunk of classes at a time, by the {@link SoftmaxLoss}. */
    @SuppressWarnings("try") // a scope is used by being open
    private static final class ChunkLoss {

        private final LogitChunks chunks;
        private final ShardLabels labels;
        private final LossOptions options;
        private final ChunkLogSum logSum;
        private final Tensor sums;

        ChunkLoss(LogitChunks chunks, ShardLabels labels, LossOptions options) {
            this.chunks = chunks;
            this.labels = labels;
            this.options = options;
            logSum = new ChunkLogSum(chunks);
            sums = SoftmaxLoss.newSums(options, logSum.largest());
        }

        /**
         * Returns the loss over all ranks, a scalar in float32.
         *
         * @param shard the classes of the rank
         */
        Tensor evaluate(ClassShard shard) {
            ChunkRanking ranking = new ChunkRanking(chunks, labels);
            for (int i = 0; i < chunks.plan().count(); i++) {
                try (PointerScope scope = new PointerScope()) {
                    add(ranking, i);
                }
            }
            Tensor largest = logSum.largest().clone();
            shard.allReduce(largest, ReduceOp.MAX);
            sums.select(0, SoftmaxLoss.NORMALISER).copy_(logSum.sumAbove(largest));
            shard.allReduce(sums, ReduceOp.SUM);
            sums.select(0, SoftmaxLoss.LABEL).sub_(largest);
            return new SoftmaxLoss(options, labels, SoftmaxLoss.read(sums, largest))
                    .value(chunks.buffers.options());
        }

        private void add(ChunkRanking ranking, int index) {
            Tensor logits = chunks.logits(index);
            ranking.addLabelLogits(index, logits, sums.select(0, SoftmaxLoss.LABEL));
            if (options.labelSmoothing() > 0) {
                ScalarTypeOptional same = new ScalarTypeOptional();
                sums.select(0, SoftmaxLoss.LOGITS).add_(logits.sum(new long[] {1}, false, same));
            }
            logSum.add(logits, logits.amax(new long[] {1}, false));
        }
    }

    /**
     * The best classes of each rank brought together: one all-gather of k logits and classes and,
     * if probabilities are wanted, of the largest logit and the sum of exponentials above it, for
     * each row and rank. All of it is in float64, which holds class numbers and logits exactly.
     */
    private static final class TopKGather {

        private final long rows;
        private final int k;
        private final boolean withSum;
        private final boolean inOrder; // whether the classes of the ranks ascend
        private final Tensor[] parts; // of each rank, [rows, 2 * its k and 2 for the sum]

        /**
         * Gathers.
         *
         * @param found what this rank has found
         * @param shard the classes of this rank
         * @param k how many classes are wanted, not more than there are
         */
        TopKGather(ChunkTopK found, ClassShard shard, int k) {
            this.k = k;
            rows = found.values().size(0);
            withSum = found.logSum() != null;
            inOrder = shard.cut().isConsecutive();
            Tensor packed = pack(found, shard);
            int size = shard.cut().getRanks();
            parts = new Tensor[size];
            if (size == 1) {
                parts[0] = packed;
                return;
            }
            long[] counts = new long[size];
            long sum = 0;
            for (int rank = 0; rank < size; rank++) {
                counts[rank] = rows * width(shard.cut().getShardLength(rank));
                sum += counts[rank];
            }
            Tensor all =
                    torch.empty(new long[] {sum}, packed.options(), new MemoryFormatOptional());
            shard.group().allGather(TensorView.of(packed), TensorView.of(all), counts).await();
            long start = 0;
            for (int rank = 0; rank < size; rank++) {
                long width = width(shard.cut().getShardLength(rank));
                parts[rank] = all.narrow(0, start, counts[rank]).view(rows, width);
                start += counts[rank];
            }
        }

        private long width(long classes) {
            return 2 * Math.min(k, classes) + (withSum ? 2 : 0);
        }

        private Tensor pack(ChunkTopK found, ClassShard shard) {
            TensorVector columns =
                    new TensorVector(
                            found.values().to(ScalarType.Double),
                            shard.classesOf(found.columns()).to(ScalarType.Double));
            if (withSum) {
                Tensor largest = found.logSum().largest();
                columns.push_back(largest.to(ScalarType.Double).unsqueeze(1));
                columns.push_back(found.logSum().sumAbove(largest).unsqueeze(1));
            }
            return torch.cat(columns, 1);
        }

        /** Returns the best logits and classes of all ranks, float64 [rows, k]. */
        ChunkTopK.Best best() {
            TensorVector values = new TensorVector();
            TensorVector classes = new TensorVector();
            for (Tensor part : parts) {
                long count = (part.size(1) - (withSum ? 2 : 0)) / 2;
                values.push_back(part.narrow(1, 0, count));
                classes.push_back(part.narrow(1, count, count));
            }
            Tensor allValues = torch.cat(values, 1);
            Tensor allClasses = torch.cat(classes, 1);
            if (!inOrder) { // of equal logits, that of the lower class comes first
                Tensor order = allClasses.argsort(true, 1, false);
                allValues = allValues.gather(1, order);
                allClasses = allClasses.gather(1, order);
            }
            return ChunkTopK.sorted(allValues, allClasses, k);
        }

        /** Returns the logarithms of the probabilities that belong to logits of all ranks. */
        Tensor logProbabilities(Tensor logits) {
            Tensor[] largest = new Tensor[parts.length];
            Tensor top = null;
            for (int rank = 0; rank < parts.length; rank++) {
                largest[rank] = parts[rank].select(1, parts[rank].size(1) - 2);
                top = top == null ? largest[rank] : torch.maximum(top, largest[rank]);
            }
            Tensor sum = torch.zeros_like(top);
            for (int rank = 0; rank < parts.length; rank++) {
                Tensor ofRank = parts[rank].select(1, parts[rank].size(1) - 1);
                sum.addcmul_(ofRank, largest[rank].sub(top).exp_());
            }
            // the largest logit first: a log-sum-exp would lose the digits that it has after the
            // point
            return logits.sub(top.unsqueeze(1)).sub_(sum.log_().unsqueeze(1));
        }
    }
}

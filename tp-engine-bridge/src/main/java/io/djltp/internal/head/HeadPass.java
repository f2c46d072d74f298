package io.djltp.internal.head;

import io.djltp.collective.ReduceOp;
import io.djltp.head.LossOptions;
import io.djltp.internal.head.ChunkMemory.Place;
import io.djltp.internal.torch.HostReads;
import io.djltp.internal.update.RowGradient;
import io.djltp.internal.update.UnitRows;
import io.djltp.torch.Precision;

import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.stream.DoubleStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;

/**
 * One step of a {@link ChunkedHead} on one rank: the pass over the weights that computes the loss,
 * and the pass that updates them. Everything large lies in the {@link HeadMemory}, and is computed
 * by the {@link ChunkWorker}s. In between, what follows from the first pass once it is known of all
 * ranks: the loss and the gradient of the features, by the {@link SoftmaxLoss}.
 *
 * <p>Exponentials are those of the logits less an {@link #offset()}. It is 0, which is as exact as
 * the largest logit as long as the sum of the exponentials is neither too large nor too small for
 * float32; {@link #firstUnusable} says whether it was. A guarded pass subtracts the largest logit
 * so far, at the cost of some more operations a chunk, and can always be used. So is a pass over no
 * class at all, whose offset is below all logits.
 *
 * <p>With label smoothing the features get one more row, of zeros. Its logits are zero and their
 * exponentials one, so that the products that are computed anyway yield the sum of all weights,
 * which the loss and the {@link ChunkWorker} need.
 */
final class HeadPass {

    /** Sums of which no summand that matters has left the range of float32. */
    private static final double LEAST_SUM = 1e-20;

    private static final double LARGEST_SUM = 1e30;

    /** Labels are not in the sums. */
    private static final double LARGEST_LOGIT = Math.log(LARGEST_SUM);

    final ChunkMemory memory; // shared by the worker threads
    final ClassLabels labels;
    final Precision precision; // of the factors of products
    final long rows; // of the batch
    final ChunkProducts.Scales scales = new ChunkProducts.Scales(); // of float16

    private final HeadMemory memories;
    private final boolean guarded;
    private final @Nullable OneVsAll loss; // null: a softmax
    private @Nullable Tensor classWeights; // of a one-vs-all loss
    private SoftmaxLoss.@Nullable Statistics statistics; // of the rows, once they are known
    private @Nullable MarginLabels margin;
    private double[] found = {}; // by place: labels' logits, or with a margin their cosines
    private double[] labelLogits = {}; // by place
    private @Nullable Tensor index; // of the labels: columns, rows and places, [3, labels]

    HeadPass(HeadMemory memories, ClassLabels labels, boolean guarded, Precision precision) {
        this(memories, labels, guarded, precision, null);
    }

    HeadPass(
            HeadMemory memories,
            ClassLabels labels,
            boolean guarded,
            Precision precision,
            @Nullable OneVsAll loss) {
        this.loss = loss;
        this.precision = precision;
        this.memories = memories;
        this.labels = labels;
        // exponentials of float16 have no range to be without the largest logit
        boolean hasNone = memories.classes() == 0;
        this.guarded = loss == null && (guarded || hasNone || precision == Precision.FLOAT16);
        memory = memories.shared();
        rows = labels.counts.length;
        memories.setRows(rows(rows, labels.options, precision));
    }

    boolean isSmooth() {
        return labels.options.labelSmoothing() > 0;
    }

    boolean isGuarded() {
        return guarded;
    }

    boolean isOneVsAll() {
        return loss != null;
    }

    OneVsAll oneVsAll() {
        return Objects.requireNonNull(loss, "loss");
    }

    /**
     * Returns what logits are multiplied with for exponentials to be powers of two, or 1 if there
     * are none.
     */
    double unit() {
        boolean isHinge = loss != null && loss.kind() == OneVsAll.Kind.SQUARED_HINGE;
        return isHinge ? 1 : ChunkProducts.LOG2_E;
    }

    /** Returns whether factors of products are rounded to 16 bits. */
    boolean isRounded() {
        return precision != Precision.FLOAT32;
    }

    /**
     * Returns the rows that are computed with: those of the batch, one of zeros for label
     * smoothing, and one more of zeros where products in 16 bits want an even number.
     */
    static long rows(long ofBatch, LossOptions options, Precision precision) {
        long needed = ofBatch + (options.labelSmoothing() > 0 ? 1 : 0);
        return precision == Precision.FLOAT32 ? needed : ChunkMemory.even(Math.max(1, needed));
    }

    /** Returns the part of the batch, without rows of zeros. */
    Tensor batch(Tensor tensor) {
        return memory.batchRows() == rows ? tensor : tensor.narrow(0, 0, rows);
    }

    /** Returns what there is one of for each row of the batch, [rows]. */
    Tensor column(Place which) {
        return batch(memory.column(which));
    }

    /** Returns what there is one of for each label of this rank, [labels]. */
    Tensor ofLabels(Place which) {
        return memory.ofLabels(which, labels.rows.length);
    }

    /** Returns what the labels have in the gradient of their classes, [labels, features]. */
    Tensor labelGradients() {
        return memory.ofLabels(Place.LABEL_GRADIENTS, labels.rows.length, memory.features());
    }

    /**
     * Computes the loss of all chunks.
     *
     * @param x the features, [rows, features]
     * @param linear the layer
     * @param withMargin the labels with their margin, or {@code null}
     */
    void run(Tensor x, ChunkedLinear linear, @Nullable MarginLabels withMargin) {
        margin = withMargin;
        prepare(x, linear);
        forward(x, linear, null, null);
    }

    private void forward(
            Tensor x,
            ChunkedLinear linear,
            @Nullable Tensor biasGradient,
            @Nullable Consumer<RowGradient> update) {
        List<ChunkWorker> workers = workers(linear);
        memories.run(workers.size(), i -> workers.get(i).forward(biasGradient, update));
        combine(workers);
        gather(x, linear);
    }

    /**
     * Computes a one-vs-all loss of all chunks, and the gradient of their logits.
     *
     * @param x the features, [rows, features], finite
     * @param linear the layer
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update what updates the weights in the same pass, or {@code null}
     * @return the loss of the batch, and this rank's summand of the gradient of the features
     */
    Found runOneVsAll(
            Tensor x,
            ChunkedLinear linear,
            @Nullable Tensor biasGradient,
            @Nullable Consumer<RowGradient> update) {
        prepare(x, linear);
        OneVsAll rule = oneVsAll();
        Scalar factor = new Scalar(rule.share(labels) * rule.kind().factor);
        column(Place.SOFTMAX_FACTOR).fill_(factor);
        scaleFeatures(memory, column(Place.SOFTMAX_FACTOR));
        ofLabels(Place.LABEL_PARTS).copy_(doubles(rule.weightsOfLabels(labels))).neg_();
        classWeights = rule.classWeights(labels, memory.options());
        forward(x, linear, biasGradient, update);
        double sum = rule.lossesOfLabels(labels, labelLogits);
        for (int i = 0; i < rows; i++) {
            sum += statistics().get(0, i);
        }
        Tensor value = doubles(sum * rule.share(labels));
        labels.shard.allReduce(value, ReduceOp.SUM);
        Tensor gradient = batch(memory.rows(Place.PRODUCTS)).mul(factor);
        return new Found(value.select(0, 0).to(ScalarType.Float), gradient);
    }

    /** A loss, a scalar in float32, and this rank's summand of its gradient, [rows, features]. */
    record Found(Tensor value, Tensor gradient) {}

    /** Returns the weights of the classes of a one-vs-all loss, or {@code null} for 1. */
    @Nullable Tensor classWeights() {
        return classWeights;
    }

    private void prepare(Tensor x, ChunkedLinear linear) {
        setIndex();
        Tensor features = memory.rows(Place.FEATURES);
        batch(features).copy_(x);
        features.narrow(0, rows, features.size(0) - rows).zero_();
        ChunkProducts.pack(this, features);
        if (isRounded() && !linear.isUnit() && labels.rows.length > 0) {
            computeLabelLogits(x, linear); // those of labels with a margin are there
        }
    }

    private void setIndex() {
        LongStream all =
                Stream.of(labels.columns, labels.rows, labels.places).flatMapToLong(LongStream::of);
        index = memory.index(all.toArray()).view(3, labels.rows.length);
    }

    private Tensor index(int which) {
        return Objects.requireNonNull(index, "a run").select(0, which);
    }

    private Tensor columnsOfLabels() {
        return index(0);
    }

    private Tensor rowsOfLabels() {
        return index(1);
    }

    /**
     * Computes the logits of the labels, rounded as those that the exponentials are of. The loss is
     * the logarithm of the normaliser less the label's logit; where the label has most of the
     * normaliser, an error of its logit is in both and cancels only if it is the same.
     */
    private void computeLabelLogits(Tensor x, ChunkedLinear linear) {
        Tensor columns = columnsOfLabels();
        Tensor logits =
                linear.rows(columns)
                        .to(ScalarType.Double)
                        .mul_(x.index_select(0, rowsOfLabels()).to(ScalarType.Double))
                        .sum(1);
        if (linear.bias() != null) {
            logits.add_(linear.bias().index_select(0, columns));
        }
        ofLabels(Place.LABEL_LOGITS).copy_(logits);
    }

    private List<ChunkWorker> workers(ChunkedLinear linear) {
        return memories.ofWorkers().stream()
                .map(each -> new ChunkWorker(this, each, linear))
                .toList();
    }

    /**
     * Sums up what the workers have, with the largest of their offsets m: each times exp(m_i - m).
     */
    private void combine(List<ChunkWorker> workers) {
        Tensor offset = memory.column(Place.OFFSET).copy_(workers.get(0).offset());
        for (ChunkWorker worker : workers) {
            torch.maximum_out(offset, offset, worker.offset());
        }
        Tensor sums = memory.column(Place.SUMS).zero_();
        Tensor products = memory.rows(Place.PRODUCTS).zero_();
        Tensor factor = memory.column(Place.FACTOR);
        for (ChunkWorker worker : workers) {
            if (!guarded) {
                sums.add_(worker.sums());
                products.add_(worker.products());
                continue;
            }
            torch.sub_out(factor, worker.offset(), offset).exp_();
            sums.addcmul_(worker.sums(), factor.to(ScalarType.Double));
            products.addcmul_(worker.products(), factor.unsqueeze(1));
        }
        if (isSmooth()) {
            combineShifts(workers, offset);
        }
    }

    /** Moves the products to one shift: that of the exponentials of all workers. */
    private void combineShifts(List<ChunkWorker> workers, Tensor offset) {
        double share = SoftmaxLoss.smoothedShare(labels.options, memories.classes());
        Tensor shift = column(Place.SHIFT);
        shift.copy_(column(Place.SUMS).mul(new Scalar(share)));
        Tensor products = batch(memory.rows(Place.PRODUCTS));
        Tensor factor = memory.column(Place.FACTOR);
        for (ChunkWorker worker : workers) {
            torch.sub_out(factor, worker.offset(), offset).exp_();
            Tensor moved = batch(worker.shift().mul(factor)).sub_(shift);
            addOuter(products, moved, worker.products().select(0, rows));
        }
    }

    /**
     * Adds the same sum of weights to all rows of products.
     *
     * @param products the products, [rows of the batch, features]
     * @param factors the factor of each row, float32 [rows of the batch]
     * @param weights the sum of the weights, [features]
     */
    static void addOuter(Tensor products, Tensor factors, Tensor weights) {
        products.addcmul_(factors.unsqueeze(1), weights.unsqueeze(0));
    }

    /**
     * Reads what has become of the rows, all of it at once: on all ranks, or for a one-vs-all loss
     * on this one.
     */
    private void gather(Tensor x, ChunkedLinear linear) {
        Tensor products = memory.rows(Place.PRODUCTS);
        Tensor sums = column(Place.SUMS).add_(zeroIfFinite(guarded ? x : products));
        if (precision == Precision.FLOAT16) { // some weights may be infinite with no part in p
            sums.add_(zeroIfFinite(products));
        }
        Tensor ofLabels = margin == null ? ofLabels(Place.LABEL_LOGITS) : margin.cosines();
        boolean alone = loss != null || labels.shard.isAlone();
        statistics =
                SoftmaxLoss.Statistics.gather(
                        alone ? null : labels.shard,
                        sums,
                        column(Place.OFFSET),
                        isSmooth() ? sumsOfLogits(linear) : null,
                        alone ? ofLabels : labels.atPlaces(ofLabels, index(2)),
                        null);
        found = new double[labels.all.length];
        for (int i = 0; alone && i < labels.places.length; i++) {
            found[(int) labels.places[i]] = statistics.get(0, statistics.labels() + i);
        }
        found = alone ? found : statistics.labelLogits(found.length);
        labelLogits = margin == null ? found : margin.logits(found);
    }

    private SoftmaxLoss.Statistics statistics() {
        return Objects.requireNonNull(statistics, "a pass");
    }

    /** Returns which of the ranks in the statistics this one is. */
    private int own() {
        return statistics().ranks() == 1 ? 0 : labels.shard.rank();
    }

    /**
     * Returns the first rank that has something infinite or NaN, or has lost something by
     * exponentials that were too large or too small. All ranks find the same. Of guarded passes
     * only the former matters: they have an offset, and where it is 0 the sum is 1 or more.
     *
     * @param allGuarded whether the passes of all ranks are guarded
     * @return the rank, or -1 if there is none
     */
    int firstUnusable(boolean allGuarded) {
        for (int rank = 0; rank < statistics().ranks(); rank++) {
            if (!isUsable(rank, allGuarded || loss != null)) {
                return statistics().ranks() == 1 ? labels.shard.rank() : rank;
            }
        }
        return -1;
    }

    private boolean isUsable(int rank, boolean finite) {
        boolean usable = true;
        for (int i = 0; i < rows; i++) {
            double sum = statistics().get(rank, i);
            usable &=
                    finite || statistics().offset(rank, i) != 0
                            ? Double.isFinite(sum)
                            : sum >= LEAST_SUM && sum <= LARGEST_SUM;
        }
        boolean alone = statistics().ranks() == 1;
        for (int i = statistics().labels(); i < statistics().size(); i++) {
            int label = i - statistics().labels();
            int row = alone ? (int) labels.rows[label] : label / labels.width;
            double logit = statistics().get(rank, i);
            logit = margin == null ? logit : margin.logit(logit);
            boolean any = finite || statistics().offset(rank, row) != 0;
            usable &= Double.isFinite(logit) && (any || logit <= LARGEST_LOGIT);
        }
        return usable;
    }

    /** Returns what an error calls what is infinite or NaN in a guarded pass. */
    String uncheckedName() {
        return precision == Precision.FLOAT16
                ? "logits or weights (float16 has none above 1,023: use float32, or bfloat16)"
                : "logits";
    }

    /** Returns whether a tensor holds no NaN and no infinite value. */
    static boolean isFinite(Tensor tensor) {
        return HostReads.number(zeroIfFinite(tensor)) == 0;
    }

    /** NaN and infinite values are NaN times 0. */
    static Tensor zeroIfFinite(Tensor tensor) {
        return tensor.mul(new Scalar(0f)).sum();
    }

    /** Returns the loss of all ranks. */
    SoftmaxLoss loss() {
        if (margin != null && isSmooth()) {
            for (int i = 0; i < found.length; i++) {
                if (labels.all[i] != labels.options.ignoreIndex()) {
                    double raised = labelLogits[i] - margin.scale() * found[i];
                    statistics().addToLogits(i / labels.width, raised);
                }
            }
        }
        return new SoftmaxLoss(labels, statistics(), labelLogits, false);
    }

    /** Returns the sums of this rank's logits: \(x \sum_k w_k + \sum_k b_k\), [rows]. */
    private Tensor sumsOfLogits(ChunkedLinear linear) {
        Tensor allWeights = memory.rows(Place.PRODUCTS).select(0, rows);
        Tensor x = batch(memory.rows(Place.FEATURES)).to(ScalarType.Double);
        Tensor logits = x.mv(allWeights.to(ScalarType.Double));
        if (linear.bias() != null) {
            logits.add_(linear.bias().sum(new ScalarTypeOptional(ScalarType.Double)));
        }
        return logits;
    }

    /**
     * Returns this rank's summand of the gradient of the features, [rows, features], and leaves in
     * the memory what the update needs.
     *
     * @param loss the loss
     * @param linear the layer
     */
    Tensor featureGradient(SoftmaxLoss loss, ChunkedLinear linear) {
        int count = labels.rows.length;
        double[] offsets = statistics().ofRows(own(), 1);
        double[] smoothed = loss.smoothedShares();
        double[] ofWeights = new double[count];
        double[] ofFeatures = new double[count];
        for (int i = 0; i < count; i++) {
            int place = (int) labels.places[i];
            double slope = margin == null ? 1 : margin.slope(found[place]);
            int row = (int) labels.rows[i];
            double ofLogit = loss.labelGradient(row, labels.parts[place], labelLogits[place]);
            ofWeights[i] = (ofLogit - smoothed[row]) * slope;
            ofFeatures[i] = ofWeights[i] + smoothed[row]; // which is subtracted of every class
        }
        Tensor all = // in one copy to the device
                doubles(
                        Stream.of(loss.softmaxFactors(offsets), ofWeights, ofFeatures, smoothed)
                                .flatMapToDouble(DoubleStream::of)
                                .toArray());
        Tensor softmax = column(Place.SOFTMAX_FACTOR).copy_(all.narrow(0, 0, rows));
        Tensor products = memory.rows(Place.PRODUCTS);
        Tensor gradient = batch(products).mul(softmax.unsqueeze(1));
        ofLabels(Place.LABEL_PARTS).copy_(all.narrow(0, rows, count));
        addLabels(gradient, all.narrow(0, rows + count, count).to(ScalarType.Float), linear);
        if (isSmooth()) {
            Tensor share = all.narrow(0, rows + 2L * count, rows);
            column(Place.SMOOTHED_PART).copy_(share).neg_();
            // what the shift has not subtracted already
            Tensor rest = softmax.to(ScalarType.Double).mul_(column(Place.SHIFT)).sub_(share);
            addOuter(gradient, rest.to(ScalarType.Float), products.select(0, rows));
        }
        return margin == null ? gradient : margin.ofFeatures(gradient);
    }

    /** Multiplies the gradient with a number. */
    void scale(Tensor factor) {
        memories.setRows(rows(rows, labels.options, precision));
        column(Place.SOFTMAX_FACTOR).mul_(factor);
        if (loss == null) {
            ofLabels(Place.LABEL_PARTS).mul_(factor);
        }
        if (isSmooth()) {
            column(Place.SMOOTHED_PART).mul_(factor);
        }
    }

    /** Returns whether what the update multiplies with is finite. */
    boolean hasFiniteFactors() {
        memories.setRows(rows(rows, labels.options, precision));
        return isFinite(column(Place.SOFTMAX_FACTOR));
    }

    private Tensor doubles(double... values) {
        return SoftmaxLoss.tensor(memory.options(), values);
    }

    /** Adds what the labels have in the gradient of the features. */
    private void addLabels(Tensor gradient, Tensor factors, ChunkedLinear linear) {
        Tensor weights = linear.rows(columnsOfLabels());
        if (linear.isUnit()) {
            weights.mul_(UnitRows.inverseLengths(weights).unsqueeze(1));
        }
        gradient.index_add_(0, rowsOfLabels(), weights.mul_(factors.unsqueeze(1)));
    }

    /**
     * Updates the weights, and computes the gradient of the bias.
     *
     * @param linear the layer
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update the update, or {@code null} if the weights are not to be changed
     * @param scale the factor of the loss in the backward pass
     * @param added what else the gradient of the weights has, or {@code null}
     */
    void update(
            ChunkedLinear linear,
            @Nullable Tensor biasGradient,
            @Nullable Consumer<RowGradient> update,
            float scale,
            AddedGradient.@Nullable Chunks added) {
        memories.setRows(rows(rows, labels.options, precision));
        setIndex(); // that of before is freed
        if (scale != 1) {
            scale(torch.scalar_tensor(new Scalar(scale), memory.options()));
        }
        Tensor ofSoftmax = column(Place.SOFTMAX_FACTOR);
        if (loss != null) {
            classWeights = loss.classWeights(labels, memory.options()); // that of before is freed
        } else {
            Tensor parts = ofLabels(Place.LABEL_PARTS);
            Tensor x = batch(memory.rows(Place.FEATURES));
            torch.mul_out(labelGradients(), x.index_select(0, rowsOfLabels()), parts.unsqueeze(1));
        }
        if (!isSmooth() && !guarded) {
            scaleFeatures(memory, ofSoftmax); // the same for all chunks
        }
        if (precision == Precision.FLOAT16) {
            scales.setGradients(this);
        }
        List<ChunkWorker> workers = workers(linear);
        memories.run(
                workers.size(), i -> workers.get(i).backwardAndUpdate(biasGradient, update, added));
    }

    /**
     * Computes the features, each row multiplied with its factor.
     *
     * @param target the memory where they go
     * @param factor the factor, [rows]
     */
    Tensor scaleFeatures(ChunkMemory target, Tensor factor) {
        Tensor scaled = batch(target.rows(Place.SCALED_FEATURES));
        return torch.mul_out(scaled, batch(memory.rows(Place.FEATURES)), factor.unsqueeze(1));
    }
}

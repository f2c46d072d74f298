package io.djltp.internal.head;

import io.djltp.internal.head.ChunkMemory.Place;
import io.djltp.internal.torch.FlushDenormals;
import io.djltp.internal.update.RowGradient;
import io.djltp.internal.update.UnitRows;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.NoGradGuard;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;
import org.jspecify.annotations.Nullable;

import java.util.Objects;
import java.util.function.Consumer;

/**
 * The part of a {@link HeadPass} that one worker thread computes: some of the rank's classes, a
 * chunk of them at a time. The logits of a chunk are [classes, rows], the layout in which the
 * products with the weights are fastest.
 *
 * <p>With label smoothing the gradient of a logit is \(p - \alpha/n\), and where the softmax is
 * nearly uniform a small difference: its digits are gone if \(p\) and \(\alpha/n\) are multiplied
 * with weights or features and summed before the one is subtracted from the other. So the
 * difference is taken first, of every exponential. The second pass knows \(p\). The first does not
 * know the sum of the exponentials yet, and subtracts the shift instead, \(\alpha\) times the mean
 * of those so far. When the mean moves, the products that are there move with it by the sum of the
 * weights so far, which is their last row. So the shifts that were subtracted never come to more
 * than the exponentials do, and the products are as exact as without them also where the first
 * classes are far more likely than the others.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkWorker {

    /** What the first chunk's offset is above: times log2(e) it is in the range of float32 too. */
    private static final float LOWEST = -1e38f;

    private final HeadPass pass;
    private final ChunkMemory memory;
    private final ChunkedLinear linear;
    private final ChunkProducts products;

    /** With label smoothing not: what is subtracted from what is kept is nearly as large. */
    private final boolean keepsRounded;

    private final Scalar unit; // what logits are multiplied with
    private final Scalar toLogits; // one over it
    private final ScalarTypeOptional floats;
    private final Scalar none = new Scalar(Float.NEGATIVE_INFINITY);
    private ClassLabels.@Nullable Places places; // of labels
    private @Nullable Tensor logitsOfLabels; // as what follows, those of all labels of the rank
    private @Nullable Tensor partsOfLabels;
    private @Nullable Tensor gradientsOfLabels; // null in the first pass
    private @Nullable Tensor sameFactor; // that of all chunks, null if each has its own
    private AddedGradient.@Nullable Chunks added;
    private @Nullable SlopeChunks slopes; // of a one-vs-all loss

    ChunkWorker(HeadPass pass, ChunkMemory memory, ChunkedLinear linear) {
        this.pass = pass;
        this.memory = memory;
        this.linear = linear;
        products = ChunkProducts.of(pass, memory);
        keepsRounded = pass.isRounded() && !pass.isSmooth();
        unit = new Scalar((float) pass.unit());
        toLogits = new Scalar(1 / pass.unit());
        floats = new ScalarTypeOptional(ScalarType.Float);
    }

    /**
     * Returns what was subtracted from the logits of the last chunk before the exponential, [rows].
     */
    Tensor offset() {
        return memory.offset(pass.isGuarded() ? memory.plan().count() - 1 : -1);
    }

    /** Returns the sums of the exponentials with the {@link #offset()}, float64 [rows]. */
    Tensor sums() {
        return memory.column(Place.SUMS);
    }

    /**
     * Returns the products of exponentials with the {@link #offset()} and weights, [rows,
     * features]; with label smoothing, of exponentials less the {@link #shift()}.
     */
    Tensor products() {
        return memory.rows(Place.PRODUCTS);
    }

    /**
     * Returns what label smoothing has subtracted from the exponentials with the {@link #offset()}
     * in the products, 0 in the last row, [rows].
     */
    Tensor shift() {
        return memory.column(Place.SHIFT);
    }

    /**
     * Computes the logits of all chunks and keeps, of all of them, the sums of the exponentials and
     * their products with the weights. Of a one-vs-all loss it may also update the weights.
     *
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update the rule, or {@code null} if the weights are not to be changed
     */
    void forward(@Nullable Tensor biasGradient, @Nullable Consumer<RowGradient> update) {
        run(
                () -> {
                    products().zero_();
                    sums().zero_();
                    shift().zero_();
                    memory.offset(-1).fill_(new Scalar(pass.isGuarded() ? LOWEST : 0));
                    for (int i = 0; i < memory.plan().count(); i++) {
                        try (PointerScope scope = new PointerScope()) {
                            addChunk(i, biasGradient, update);
                        }
                    }
                });
    }

    private void run(Runnable overChunks) {
        try (PointerScope scope = new PointerScope();
                NoGradGuard guard = new NoGradGuard();
                FlushDenormals zeros = new FlushDenormals()) {
            places = pass.labels.new Places(memory);
            logitsOfLabels = pass.ofLabels(Place.LABEL_LOGITS);
            slopes = pass.isOneVsAll() ? new SlopeChunks(pass, memory) : null;
            overChunks.run();
            products.end();
        }
    }

    private void addChunk(
            int index, @Nullable Tensor biasGradient, @Nullable Consumer<RowGradient> update) {
        Tensor weight = linear.weight(memory, index);
        Tensor exponentials = compute(index, weight, false, update != null);
        if (slopes != null) {
            Tensor kept = keep(index, exponentials);
            products.addToFeatures(index, kept, weight, products());
            Tensor factor = pass.column(Place.SOFTMAX_FACTOR);
            backward(index, weight, kept, factor, null, true, biasGradient, update);
            return;
        }
        // a product with ones is faster, but adds one after the other: of many equal exponentials,
        // all additions round in the same direction
        Tensor sum = memory.column(Place.FACTOR);
        sums().add_(torch.sum_out(sum, exponentials, new long[] {0}, false, floats));
        Tensor factors = pass.isSmooth() ? lowered(index, exponentials) : keep(index, exponentials);
        products.addToFeatures(index, factors, weight, products());
    }

    /**
     * Computes the exponentials of a chunk, [classes of the chunk, rows]. Those of labels are 0:
     * their share of the softmax p is in the gradient as {@code p - 1}, of which digits are lost if
     * p is summed with others before 1 is subtracted. In float32 the pass notes their logits as
     * they would go into the normaliser.
     *
     * <p>Of a one-vs-all loss it is the gradient of the logits, but for the factor of all.
     */
    private Tensor compute(int index, Tensor weight, boolean again, boolean updates) {
        Tensor logits = logits(index, weight, again);
        if (slopes != null) {
            ClassLabels.OfChunk labels = Objects.requireNonNull(places).of(index);
            if (again || !slopes.areQuick(index, logits)) {
                logits = again ? logits : logits(index, weight, true);
                slopes.compute(index, logits, !again, updates);
            }
            if (labels != null) {
                slopes.setLabels(labels, logits);
            }
            return logits;
        }
        if (pass.isGuarded()) {
            logits.sub_(again ? offset() : raisedOffset(index, logits), unit);
        }
        return logits.exp2_();
    }

    /** Computes the logits of a chunk, times {@link #unit}; those of labels are -infinity. */
    private Tensor logits(int index, Tensor weight, boolean again) {
        Tensor logits = keepsRounded ? memory.spareLogits(index) : memory.logits(index);
        products.multiply(index, weight, logits);
        if (linear.bias() != null) {
            Tensor bias = memory.plan().part(linear.bias(), index).unsqueeze(1);
            logits.narrow(1, 0, pass.rows).add_(bias, unit);
        }
        ClassLabels.OfChunk labels = Objects.requireNonNull(places).of(index);
        if (labels != null) {
            Tensor flat = logits.view(-1);
            if (!again && !pass.isRounded() && !linear.isUnit()) { // others are known
                Tensor noted = labels.part(Objects.requireNonNull(logitsOfLabels));
                torch.index_select_out(noted, flat, 0, labels.inLogits());
                noted.mul_(toLogits);
            }
            flat.index_fill_(0, labels.inLogits(), none);
        }
        return logits;
    }

    /**
     * Makes the largest logit so far the offset of this chunk and of what came of those before, and
     * returns it.
     */
    private Tensor raisedOffset(int index, Tensor logits) {
        Tensor before = memory.offset(index - 1);
        Tensor now = memory.offset(index);
        torch.amax_out(now, logits, new long[] {0}, false);
        torch.maximum_out(now, before, now.mul_(toLogits));
        Tensor factor = memory.column(Place.FACTOR);
        torch.sub_out(factor, before, now).exp_();
        sums().mul_(factor);
        products().mul_(factor.unsqueeze(1));
        shift().mul_(factor);
        return now;
    }

    /** Keeps exponentials, or leaves them where they last until the next chunk. */
    private Tensor keep(int index, Tensor exponentials) {
        return keepsRounded
                ? products.round(memory.roundedKept(index), exponentials, false)
                : exponentials;
    }

    /** Returns exponentials, which stay as they are if they are kept, less the shift. */
    private Tensor lowered(int index, Tensor exponentials) {
        ChunkPlan plan = memory.plan();
        long classes = plan.start(index) + plan.length(index) - plan.range().start();
        Scalar share = new Scalar(SoftmaxLoss.smoothedShare(pass.labels.options, classes));
        Tensor mean = pass.batch(sums()).mul(share).to(ScalarType.Float);
        Tensor shift = pass.batch(shift());
        Tensor weights = products().select(0, pass.rows);
        HeadPass.addOuter(pass.batch(products()), shift.sub_(mean), weights);
        shift.copy_(mean);
        Tensor lowered = memory.spareLogits(index);
        torch.sub_out(lowered, exponentials, shift());
        return pass.isRounded()
                ? products.round(memory.roundedSpare(index), lowered, false)
                : lowered;
    }

    /**
     * Updates the weights, and computes the gradient of the bias.
     *
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update the rule, or {@code null} if the weights are not to be changed
     * @param others what else the gradient of the weights has, or {@code null}
     */
    void backwardAndUpdate(
            @Nullable Tensor biasGradient,
            @Nullable Consumer<RowGradient> update,
            AddedGradient.@Nullable Chunks others) {
        added = others;
        sameFactor = pass.isGuarded() ? null : pass.column(Place.SOFTMAX_FACTOR);
        run(
                () -> {
                    partsOfLabels = pass.ofLabels(Place.LABEL_PARTS);
                    gradientsOfLabels = slopes == null ? pass.labelGradients() : null;
                    // backwards: the last chunks may still be in a cache
                    for (int index = memory.plan().count() - 1; index >= 0; index--) {
                        try (PointerScope scope = new PointerScope()) {
                            updateChunk(index, biasGradient, update);
                        }
                    }
                });
    }

    private void updateChunk(
            int index, @Nullable Tensor biasGradient, @Nullable Consumer<RowGradient> update) {
        Tensor weight = linear.weight(memory, index);
        if (!memory.isKept(index)) {
            keep(index, compute(index, weight, true, false));
        }
        Tensor factor = sameFactor == null ? factor(index) : sameFactor;
        ClassLabels.OfChunk labels = // of a one-vs-all loss they are in the gradient of the logits
                slopes == null ? Objects.requireNonNull(places).of(index) : null;
        Tensor ofLogits = keepsRounded ? memory.roundedKept(index) : memory.logits(index);
        if (pass.isSmooth()) { // the gradient of the logits, without the last row of the features
            Tensor flat = ofLogits.view(-1);
            ofLogits = ofLogits.narrow(1, 0, pass.rows);
            torch.addcmul_out(ofLogits, pass.column(Place.SMOOTHED_PART), ofLogits, factor);
            if (labels != null) {
                flat.index_fill_(0, labels.inLogits(), new Scalar(0));
            }
        }
        boolean isRead = !memory.isKept(index);
        backward(index, weight, ofLogits, factor, labels, isRead, biasGradient, update);
    }

    /** Computes the gradient of a chunk's bias, and updates its weights. */
    private void backward(
            int index,
            Tensor weight,
            Tensor ofLogits,
            Tensor factor,
            ClassLabels.@Nullable OfChunk labels,
            boolean isRead,
            @Nullable Tensor biasGradient,
            @Nullable Consumer<RowGradient> update) {
        if (biasGradient != null) {
            Tensor target = memory.plan().part(biasGradient, index);
            addUp(target, index, ofLogits, factor);
            if (labels != null) {
                Tensor parts = labels.part(Objects.requireNonNull(partsOfLabels));
                target.index_add_(0, labels.inClasses(), parts);
            }
        }
        if (update != null) {
            Gradient gradient =
                    new Gradient(
                            index, weight, left(index, ofLogits), right(factor), labels, isRead);
            update.accept(gradient);
            linear.setWeight(memory.plan(), index, gradient.weight);
        }
    }

    /** Returns the factor of the softmax for the exponentials of a chunk, [rows of the batch]. */
    private Tensor factor(int index) {
        Tensor ofChunk = memory.isKept(index) ? memory.offset(index) : offset();
        Tensor factor = pass.batch(memory.column(Place.FACTOR));
        torch.sub_out(factor, pass.batch(ofChunk), pass.column(Place.OFFSET)).exp_();
        return factor.mul_(pass.column(Place.SOFTMAX_FACTOR));
    }

    /** Puts the sums of the gradient of a chunk's logits over the rows into a tensor, [classes]. */
    private void addUp(Tensor target, int index, Tensor ofLogits, Tensor factor) {
        if (pass.isSmooth()) {
            torch.sum_out(target, ofLogits, new long[] {1}, false, floats);
        } else if (keepsRounded) {
            Tensor wide = memory.spareLogits(index).copy_(ofLogits).narrow(1, 0, pass.rows);
            torch.mv_out(target, wide, factor.mul(new Scalar(products.ofKept())));
        } else {
            torch.mv_out(target, ofLogits, factor);
        }
    }

    /** Returns the left factor of the gradient of a chunk's weights, [classes, rows]. */
    private Tensor left(int index, Tensor ofLogits) {
        if (!pass.isRounded() || !pass.isSmooth()) {
            return ofLogits;
        }
        Tensor place = memory.roundedSpare(index);
        place.narrow(1, pass.rows, memory.batchRows() - pass.rows).zero_();
        products.round(place.narrow(1, 0, pass.rows), ofLogits, true);
        return place;
    }

    /** Returns the right factor of the gradient of a chunk's weights, [rows, features]. */
    private Tensor right(Tensor factor) {
        if (pass.isSmooth()) {
            return pass.batch(pass.memory.rows(Place.FEATURES));
        }
        return pass.isGuarded()
                ? pass.scaleFeatures(memory, factor)
                : pass.batch(pass.memory.rows(Place.SCALED_FEATURES));
    }

    /**
     * The gradient of the weights of a chunk as the two factors that it is a product of, and as the
     * few rows in which a label lies. It is only computed into what it is added to.
     */
    private final class Gradient extends RowGradient {

        private final long start; // the first column of the chunk
        private final long length;
        private final @Nullable Tensor
                columns; // of the chunk, int64 [length], null if they are a range
        private final @Nullable Tensor
                directions; // the unit rows that were used, if not the weight
        private final Tensor left;
        private final Tensor right;
        private final ClassLabels.@Nullable OfChunk labels;
        private final boolean isRead; // whether the weight was, for the logits

        Gradient(
                int index,
                Tensor used,
                Tensor left,
                Tensor right,
                ClassLabels.@Nullable OfChunk labels,
                boolean isRead) {
            super(linear.updated(memory, index, used));
            this.isRead = isRead;
            start = memory.plan().start(index);
            length = memory.plan().length(index);
            columns = linear.columns(memory.plan(), index);
            directions = linear.isUnit() ? used : null;
            this.left = left;
            this.right = right;
            this.labels = labels;
        }

        /** {@inheritDoc} */
        @Override
        public void accumulateInto(Tensor target, float beta, float alpha) {
            if (directions == null) {
                addProduct(target, beta, alpha);
            } else {
                Tensor gradient = gradient(alpha); // before the target, which may be the weight
                target.mul_(new Scalar(beta)).add_(gradient);
            }
        }

        /** {@inheritDoc} */
        @Override
        public Tensor gradient(float factor) {
            Tensor gradient = memory.work(Place.GRADIENT, length);
            addProduct(gradient, 0, factor);
            return gradient;
        }

        private void addProduct(Tensor target, float keep, float factor) {
            products.addToWeight(left, right, target, keep, factor, isRead && target == weight);
            if (labels != null) {
                Tensor rows = labels.part(Objects.requireNonNull(gradientsOfLabels));
                target.index_add_(0, labels.inClasses(), rows, new Scalar(factor));
            }
            if (directions != null) {
                Tensor inverse = UnitRows.inverseLengths(weight);
                UnitRows.project(target, directions, inverse, spare());
            }
            if (added != null) {
                added.addTo(target, start, length, factor);
            }
        }

        /** {@inheritDoc} */
        @Override
        public Tensor spare() {
            return memory.work(Place.SPARE, length);
        }

        /** {@inheritDoc} */
        @Override
        public Tensor rowsOf(Tensor state, int number) {
            if (columns == null) {
                return state.narrow(0, start, length);
            }
            if (state.dim() == 1) {
                return state.index_select(0, columns);
            }
            Place place = number == 0 ? Place.FIRST_STATE : Place.SECOND_STATE;
            return torch.index_select_out(memory.work(place, length), state, 0, columns);
        }

        /** {@inheritDoc} */
        @Override
        public void setRows(Tensor state, Tensor rows) {
            if (columns != null) {
                state.index_copy_(0, columns, rows);
            }
        }
    }
}

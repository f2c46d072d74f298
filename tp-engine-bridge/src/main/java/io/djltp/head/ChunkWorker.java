package io.djltp.head;

import io.djltp.head.ChunkMemory.Column;
import io.djltp.head.ChunkMemory.Matrix;
import io.djltp.head.ChunkMemory.Work;
import io.djltp.internal.torch.FlushDenormals;
import io.djltp.internal.update.RowGradient;
import io.djltp.internal.update.UnitRows;
import io.djltp.internal.update.WeightUpdate;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.NoGradGuard;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

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

    private final HeadPass pass;
    private final ChunkMemory memory;
    private final ChunkedLinear linear;
    private final ChunkArithmetic arithmetic;
    private ShardLabels.Places inLogits; // of logits, [classes, rows]
    private ShardLabels.Places inClasses; // of the classes of a chunk
    private Tensor labelLogits; // of all labels
    private Tensor sameFactor; // that of all chunks, or null if each has its own
    private Tensor sameFeatures; // the right factor of all chunks' gradients, or null
    private float scale; // of the loss in the backward pass
    private AddedGradient.Chunks added; // or null

    ChunkWorker(HeadPass pass, ChunkMemory memory, ChunkedLinear linear) {
        this.pass = pass;
        this.memory = memory;
        this.linear = linear;
        arithmetic = ChunkArithmetic.of(pass, memory, linear);
    }

    /**
     * Returns what was subtracted from the logits of the last chunk before the exponential, [rows].
     */
    Tensor offset() {
        return memory.offset(pass.isGuarded() ? memory.plan().count() - 1 : -1);
    }

    /** Returns the sums of the exponentials with the {@link #offset()}, float64 [rows]. */
    Tensor sums() {
        return memory.sums();
    }

    /**
     * Returns the products of exponentials with the {@link #offset()} and weights, [rows,
     * features]; with label smoothing, of exponentials less the {@link #shift()}.
     */
    Tensor products() {
        return memory.rows(Matrix.PRODUCTS);
    }

    /**
     * Returns what label smoothing has subtracted from the exponentials with the {@link #offset()}
     * in the products, 0 in the last row, [rows].
     */
    Tensor shift() {
        return memory.column(Column.SHIFT);
    }

    /**
     * Computes the logits of all chunks and keeps, of all of them, the sums of the exponentials and
     * their products with the weights.
     */
    void forward() {
        try (PointerScope all = new PointerScope();
                NoGradGuard guard = new NoGradGuard();
                FlushDenormals zeros = new FlushDenormals()) {
            arithmetic.begin();
            findLabels();
            products().zero_();
            sums().zero_();
            if (pass.isSmooth()) {
                shift().zero_();
            }
            memory.offset(-1).fill_(new Scalar(pass.isGuarded() ? -Float.MAX_VALUE : 0));
            for (int i = 0; i < memory.plan().count(); i++) {
                try (PointerScope scope = new PointerScope()) {
                    addChunk(i);
                }
            }
            if (!pass.isGuarded() && !pass.isSmooth()) {
                ScalarTypeOptional wide = new ScalarTypeOptional(ScalarType.Double);
                torch.sum_out(sums(), memory.chunkSums(), new long[] {0}, false, wide);
            }
            arithmetic.end();
        }
    }

    private void findLabels() {
        inLogits = pass.labels.places(memory, memory.batchRows(), 1);
        labelLogits = pass.labelLogits();
    }

    private void addChunk(int index) {
        Tensor weight = linear.weight(index);
        Tensor exponentials = compute(index, weight, false);
        if (pass.isSmooth()) {
            addShifted(index, exponentials, weight);
            return;
        }
        Tensor sum = arithmetic.sum(index, exponentials);
        if (pass.isGuarded()) {
            sums().add_(sum);
        }
        arithmetic.keep(index, exponentials);
        arithmetic.addProducts(index, weight, products());
    }

    /**
     * Computes the exponentials of a chunk, [classes of the chunk, rows]. Without label smoothing
     * labels are left out: their share of the softmax p is in the gradient as {@code p - 1}, of
     * which digits are lost if p is summed with others before 1 is subtracted.
     */
    private Tensor compute(int index, Tensor weight, boolean again) {
        Tensor logits = arithmetic.logits(index, weight);
        ShardLabels.OfChunk labels = inLogits.of(index);
        Tensor flat = labels.isEmpty() ? null : arithmetic.flat(index, logits);
        if (flat != null) {
            arithmetic.labelLogits(labels.places(), labels.part(labelLogits), flat, again);
        }
        if (pass.isGuarded() && again) {
            arithmetic.subtract(logits, offset());
        } else if (pass.isGuarded()) {
            raiseOffset(index, logits);
        }
        arithmetic.exp(logits);
        if (flat != null && !pass.isSmooth()) {
            flat.index_fill_(0, labels.places(), new Scalar(0));
        }
        return logits;
    }

    /** Makes the largest logit so far the offset of this chunk and of what came of those before. */
    private void raiseOffset(int index, Tensor logits) {
        Tensor before = memory.offset(index - 1);
        Tensor now = memory.offset(index);
        arithmetic.largest(now, logits);
        torch.maximum_out(now, before, now);
        arithmetic.subtract(logits, now);
        Tensor factor = memory.column(Column.FACTOR);
        torch.sub_out(factor, before, now).exp_();
        sums().mul_(factor);
        products().mul_(factor.unsqueeze(1));
        if (pass.isSmooth()) {
            shift().mul_(factor);
        }
    }

    /** Adds exponentials, which stay as they are if they are kept, with label smoothing. */
    private void addShifted(int index, Tensor exponentials, Tensor weight) {
        // a product with ones is faster, but adds one after the other: of many equal exponentials,
        // all additions round in the same direction
        sums().add_(exponentials.sum(new long[] {0}));
        ChunkPlan plan = memory.plan();
        long classes = plan.start(index) + plan.length(index) - plan.range().start();
        Scalar share = new Scalar(SoftmaxLoss.smoothedShare(pass.options, classes));
        Tensor mean = pass.batch(sums()).mul(share).to(ScalarType.Float);
        Tensor shift = pass.batch(shift());
        Tensor weights = products().select(0, pass.rows);
        HeadPass.addOuter(pass.batch(products()), shift.sub_(mean), weights);
        shift.copy_(mean);
        Tensor lowered = memory.spareLogits(index);
        torch.sub_out(lowered, exponentials, shift());
        arithmetic.addProducts(index, lowered, weight, products());
    }

    /**
     * Updates the weights, and computes the gradient of the bias.
     *
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update the update, or {@code null} if the weights are not to be changed
     * @param lossScale the factor of the loss in the backward pass
     * @param others what else the gradient of the weights has, or {@code null}
     */
    void backwardAndUpdate(
            Tensor biasGradient,
            WeightUpdate update,
            float lossScale,
            AddedGradient.Chunks others) {
        scale = lossScale;
        added = others;
        try (PointerScope all = new PointerScope();
                NoGradGuard guard = new NoGradGuard();
                FlushDenormals zeros = new FlushDenormals()) {
            arithmetic.begin();
            if (!pass.isGuarded()) {
                sameFactor = pass.softmaxFactor();
            }
            if (pass.isSmooth()) {
                sameFeatures = pass.batch(pass.memory.rows(Matrix.FEATURES));
            } else if (!pass.isGuarded()) {
                sameFeatures = pass.scaledFeatures(memory, sameFactor);
            }
            inClasses = pass.labels.places(memory, 1, 0);
            int count = memory.plan().count();
            if (pass.isSmooth() || memory.plan().kept() < count) {
                findLabels();
            }
            // backwards: the last chunks may still be in a cache
            for (int index = count - 1; index >= 0; index--) {
                try (PointerScope scope = new PointerScope()) {
                    updateChunk(index, biasGradient, update);
                }
            }
            arithmetic.end();
        }
    }

    private void updateChunk(int index, Tensor biasGradient, WeightUpdate update) {
        Tensor weight = linear.weight(index);
        if (!memory.isKept(index)) {
            arithmetic.keep(index, compute(index, weight, true));
        }
        Tensor exponentials = arithmetic.kept(index);
        Tensor factor = sameFactor == null ? factor(index) : sameFactor;
        Tensor ofLogits = exponentials;
        ShardLabels.OfChunk labels = inClasses.of(index);
        if (pass.isSmooth()) {
            ofLogits = logitGradient(index, exponentials, factor);
            labels = ShardLabels.OfChunk.NONE;
        }
        if (biasGradient != null) {
            Tensor target = linear.part(biasGradient, index);
            if (pass.isSmooth()) {
                ScalarTypeOptional type = ChunkArithmetic.floats();
                torch.sum_out(target, ofLogits, new long[] {1}, false, type);
            } else {
                arithmetic.addUp(target, index, exponentials, factor);
                if (!labels.isEmpty()) {
                    Tensor parts = labels.part(pass.labelParts());
                    target.index_add_(0, labels.places(), parts, new Scalar(scale));
                }
            }
        }
        if (update != null) {
            Tensor x = sameFeatures == null ? pass.scaledFeatures(memory, factor) : sameFeatures;
            Gradient gradient =
                    new Gradient(index, weight, arithmetic.product(index, ofLogits, x), labels);
            update.apply(gradient);
            linear.setWeight(index, gradient.weight);
        }
    }

    /** Returns the factor of the softmax for the exponentials of a chunk, [rows of the batch]. */
    private Tensor factor(int index) {
        Tensor ofChunk = memory.isKept(index) ? memory.offset(index) : offset();
        Tensor factor = pass.batch(memory.column(Column.FACTOR));
        torch.sub_out(factor, pass.batch(ofChunk), pass.offset()).exp_();
        return factor.mul_(pass.softmaxFactor());
    }

    /**
     * Computes the gradient of a chunk's logits with label smoothing, in place of the exponentials.
     *
     * @return the gradient, without the last row of the features, [classes, rows of the batch]
     */
    private Tensor logitGradient(int index, Tensor exponentials, Tensor factor) {
        Tensor gradient = exponentials.narrow(1, 0, pass.rows);
        torch.addcmul_out(gradient, pass.smoothedPart(), gradient, factor);
        ShardLabels.OfChunk labels = inLogits.of(index);
        if (!labels.isEmpty()) {
            Tensor parts = labels.part(pass.labelParts());
            exponentials.view(-1).index_add_(0, labels.places(), parts, new Scalar(scale));
        }
        return gradient;
    }

    /**
     * The gradient of the weights of a chunk as the two factors that it is a product of, and as the
     * few rows in which a label lies. It is only computed into what it is added to.
     */
    private final class Gradient extends RowGradient {

        private final long start; // the first column of the chunk
        private final long length;
        private final Tensor columns; // of the chunk, int64 [length], or null if they are a range
        private final Tensor directions; // the unit rows that were used, or null: it was the weight
        private final ChunkArithmetic.WeightProduct product;
        private final ShardLabels.OfChunk labels;

        Gradient(
                int index,
                Tensor used,
                ChunkArithmetic.WeightProduct product,
                ShardLabels.OfChunk labels) {
            super(linear.updated(index, used));
            start = memory.plan().start(index);
            length = memory.plan().length(index);
            columns = linear.columns(index);
            directions = linear.isUnit() ? used : null;
            this.product = product;
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
            Tensor gradient = memory.work(Work.GRADIENT, length);
            addProduct(gradient, 0, factor);
            return gradient;
        }

        private void addProduct(Tensor target, float keep, float factor) {
            product.addTo(target, keep, factor);
            if (!labels.isEmpty()) {
                Tensor rows = labels.part(pass.labelGradients());
                target.index_add_(0, labels.places(), rows, new Scalar(factor * scale));
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
            return memory.work(Work.SPARE, length);
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
            Tensor place = memory.work(number == 0 ? Work.FIRST_STATE : Work.SECOND_STATE, length);
            return torch.index_select_out(place, state, 0, columns);
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

package io.djltp.head;

import io.djltp.head.ChunkBuffers.Column;
import io.djltp.head.ChunkBuffers.Matrix;
import io.djltp.torch.FlushDenormals;
import io.djltp.update.WeightUpdate;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.NoGradGuard;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * The part of a {@link FusedPass} that one worker thread computes: some of the rank's classes, a
 * chunk of them at a time. The logits of a chunk are [classes, rows], the layout in which the
 * products with the weights are fastest.
 */
@SuppressWarnings("try") // a scope is used by being open
final class PassWorker {

    private final FusedPass pass;
    private final ChunkBuffers buffers;
    private final ChunkedLinear linear;
    private final LabelSmoothing smoothing; // or null
    private final ChunkArithmetic arithmetic;
    private Tensor products;
    private LabelPlaces inLogits; // of logits, [classes, rows]
    private Tensor labelLogits; // of all labels
    private Tensor labelGradients; // of all labels
    private LabelPlaces inClasses; // of the classes of a chunk
    private AddedGradient.Chunks added;
    private Tensor sameFactor; // that of all chunks, or null if each has its own
    private Tensor sameFeatures; // times the factor

    PassWorker(FusedPass pass, ChunkBuffers buffers, ChunkedLinear linear) {
        this.pass = pass;
        this.buffers = buffers;
        this.linear = linear;
        arithmetic = ChunkArithmetic.of(pass, buffers, linear);
        smoothing = pass.isSmooth() ? new LabelSmoothing(pass, buffers, arithmetic) : null;
    }

    /**
     * Returns what was subtracted from the logits of the last chunk before the exponential, [rows].
     */
    Tensor offset() {
        return buffers.offset(pass.isGuarded() ? buffers.plan().count() - 1 : -1);
    }

    /** Returns the sums of the exponentials with the {@link #offset()}, float64 [rows]. */
    Tensor sums() {
        return buffers.sums();
    }

    /**
     * Returns the products of exponentials with the {@link #offset()} and weights, [rows,
     * features]; with label smoothing, of exponentials less the {@link #shift()}.
     */
    Tensor products() {
        return buffers.rows(Matrix.PRODUCTS);
    }

    /** Returns the shift of {@link LabelSmoothing}, for the {@link #offset()}, [rows]. */
    Tensor shift() {
        return smoothing.shift();
    }

    /**
     * Computes the logits of all chunks and keeps, of all of them, the sums of the exponentials and
     * their products with the weights.
     */
    void run() {
        try (PointerScope all = new PointerScope();
                NoGradGuard guard = new NoGradGuard();
                FlushDenormals zeros = new FlushDenormals()) {
            arithmetic.begin();
            inLogits = placesInLogits();
            labelLogits = pass.labelLogits();
            products = products().zero_();
            sums().zero_();
            if (smoothing != null) {
                shift().zero_();
            }
            buffers.offset(-1).fill_(new Scalar(pass.isGuarded() ? -Float.MAX_VALUE : 0));
            for (int i = 0; i < buffers.plan().count(); i++) {
                try (PointerScope scope = new PointerScope()) {
                    runChunk(i);
                }
            }
            if (!pass.isGuarded() && smoothing == null) {
                torch.sum_out(sums(), buffers.chunkSums(), new long[] {0}, false, doubles());
            }
            arithmetic.end();
        }
    }

    private static ScalarTypeOptional doubles() {
        return new ScalarTypeOptional(ScalarType.Double);
    }

    private void runChunk(int index) {
        Tensor weight = linear.weight(index);
        Tensor logits = arithmetic.logits(index, weight);
        LabelPlaces.OfChunk labels = inLogits.of(index);
        Tensor flat = labels.places() == null ? null : arithmetic.flat(index, logits);
        if (flat != null) {
            arithmetic.labelLogits(labels.places(), labels.part(labelLogits), flat);
        }
        if (pass.isGuarded()) {
            raiseOffset(index, logits);
        }
        arithmetic.exp(logits);
        if (smoothing != null) {
            smoothing.addProducts(index, logits, weight, sums(), products);
            return;
        }
        withoutLabels(labels, flat);
        Tensor sum = arithmetic.sum(index, logits);
        if (pass.isGuarded()) {
            sums().add_(sum);
        }
        arithmetic.keep(index, logits);
        arithmetic.addProducts(index, weight, products);
    }

    /**
     * Leaves labels out of the exponentials: their share of the softmax p is in the gradient as
     * {@code p - 1}, of which digits are lost if p is summed with others before 1 is subtracted.
     */
    private static void withoutLabels(LabelPlaces.OfChunk labels, Tensor flat) {
        if (flat != null) {
            flat.index_fill_(0, labels.places(), new Scalar(0));
        }
    }

    /** Makes the largest logit so far the offset of this chunk and of what came of those before. */
    private void raiseOffset(int index, Tensor logits) {
        Tensor before = buffers.offset(index - 1);
        Tensor now = buffers.offset(index);
        arithmetic.largest(now, logits);
        torch.maximum_out(now, before, now);
        arithmetic.subtract(logits, now);
        Tensor factor = buffers.column(Column.FACTOR);
        torch.sub_out(factor, before, now).exp_();
        sums().mul_(factor);
        products.mul_(factor.unsqueeze(1));
        if (smoothing != null) {
            shift().mul_(factor);
        }
    }

    /**
     * Updates the weights, and computes the gradient of the bias.
     *
     * @param biasGradient where the gradient of the bias goes, or {@code null}
     * @param update the update, or {@code null} if the weights are not to be changed
     * @param scale the factor of the loss in the backward pass
     * @param others what else the gradient of the weights has, or {@code null}
     */
    void update(
            Tensor biasGradient, WeightUpdate update, float scale, AddedGradient.Chunks others) {
        added = others;
        try (PointerScope all = new PointerScope();
                NoGradGuard guard = new NoGradGuard();
                FlushDenormals zeros = new FlushDenormals()) {
            arithmetic.begin();
            if (!pass.isGuarded()) {
                sameFactor = pass.softmaxFactor();
                sameFeatures = pass.scaledFeatures(buffers, sameFactor);
            }
            inClasses = new LabelPlaces(pass.labels, buffers, 1, 0);
            boolean allKept = buffers.plan().kept() == buffers.plan().count();
            inLogits = allKept && smoothing == null ? null : placesInLogits();
            labelLogits = inLogits == null ? null : pass.labelLogits();
            labelGradients = smoothing == null ? pass.labelGradients() : null;
            int count = buffers.plan().count();
            // backwards: the last chunks may still be in a cache
            for (int index = count - 1; index >= 0; index--) {
                try (PointerScope scope = new PointerScope()) {
                    updateChunk(index, biasGradient, update, scale);
                }
            }
            arithmetic.end();
        }
    }

    private void updateChunk(int index, Tensor biasGradient, WeightUpdate update, float scale) {
        Tensor weight = linear.weight(index);
        Tensor exponentials = exponentials(index, weight);
        Tensor factor = factor(index);
        if (smoothing != null) {
            Tensor ofLogits =
                    smoothing.logitGradient(exponentials, factor, inLogits.of(index), scale);
            if (biasGradient != null) {
                long[] rows = {1};
                torch.sum_out(
                        part(biasGradient, index), ofLogits, rows, false, ChunkArithmetic.floats());
            }
            if (update != null) {
                Tensor x = pass.batch(pass.buffers.rows(Matrix.FEATURES));
                apply(update, index, weight, ofLogits, x, LabelPlaces.NONE, scale);
            }
            return;
        }
        LabelPlaces.OfChunk labels = inClasses.of(index);
        if (biasGradient != null) {
            addBiasGradient(biasGradient, index, exponentials, factor, labels, scale);
        }
        if (update != null) {
            Tensor scaled =
                    sameFactor == null ? pass.scaledFeatures(buffers, factor) : sameFeatures;
            apply(update, index, weight, exponentials, scaled, labels, scale);
        }
    }

    /** Applies the update with the gradient that is a product, plus that of labels. */
    private void apply(
            WeightUpdate update,
            int index,
            Tensor weight,
            Tensor ofLogits,
            Tensor x,
            LabelPlaces.OfChunk labels,
            float scale) {
        Tensor ofLabels = labels.places() == null ? null : labels.part(labelGradients);
        GradientChunk gradient =
                new GradientChunk(
                        buffers,
                        linear,
                        index,
                        weight,
                        arithmetic.product(index, ofLogits, x),
                        labels.places(),
                        ofLabels,
                        scale,
                        added);
        update.apply(gradient);
        linear.setWeight(index, gradient.weight);
    }

    /** Returns the exponentials of a chunk, kept or computed again. */
    private Tensor exponentials(int index, Tensor weight) {
        if (buffers.isKept(index)) {
            return arithmetic.kept(index);
        }
        Tensor logits = arithmetic.logits(index, weight);
        LabelPlaces.OfChunk labels = inLogits.of(index);
        Tensor flat = labels.places() == null ? null : arithmetic.flat(index, logits);
        if (flat != null) {
            arithmetic.restoreLabelLogits(labels.places(), labels.part(labelLogits), flat);
        }
        if (pass.isGuarded()) {
            arithmetic.subtract(logits, offset());
        }
        arithmetic.exp(logits);
        if (smoothing == null) {
            withoutLabels(labels, flat);
        }
        arithmetic.keep(index, logits);
        return arithmetic.kept(index);
    }

    /** Returns the factor of the softmax for the exponentials of a chunk, [rows of the batch]. */
    private Tensor factor(int index) {
        if (sameFactor != null) {
            return sameFactor;
        }
        Tensor ofChunk = buffers.isKept(index) ? buffers.offset(index) : offset();
        Tensor factor = pass.batch(buffers.column(Column.FACTOR));
        torch.sub_out(factor, pass.batch(ofChunk), pass.offset()).exp_();
        return factor.mul_(pass.softmaxFactor());
    }

    private void addBiasGradient(
            Tensor target,
            int index,
            Tensor exponentials,
            Tensor factor,
            LabelPlaces.OfChunk labels,
            float scale) {
        Tensor gradient = part(target, index);
        arithmetic.addUp(gradient, index, exponentials, factor);
        if (labels.places() != null) {
            gradient.index_add_(
                    0, labels.places(), labels.part(pass.labelParts()), new Scalar(scale));
        }
    }

    private LabelPlaces placesInLogits() {
        LabelPlaces places = new LabelPlaces(pass.labels, buffers, buffers.sums().size(0), 1);
        linear.setLabels(places);
        return places;
    }

    private Tensor part(Tensor ofClasses, int index) {
        return ofClasses.narrow(0, buffers.plan().start(index), buffers.plan().length(index));
    }
}

package io.djltp.head;

import io.djltp.cut.ShardRange;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;

/**
 * The memory of a fused cross entropy, used again by every step: fresh pages cost more than the
 * arithmetic on them. Batches with fewer rows use a part of it.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkBuffers implements AutoCloseable {

    /** What has the size of the features. */
    enum Matrix {
        FEATURES,
        TRANSPOSED_FEATURES,
        /** The features, each row times its factor of the softmax. */
        SCALED_FEATURES,
        /** The products of exponentials and weights: the softmax part of the features' gradient. */
        PRODUCTS,
        /** The features of the rows with a label, times that label's part of the gradient. */
        LABEL_GRADIENTS
    }

    /** What has one number for each row, or for each row with a label. */
    enum Column {
        /** What is subtracted from the logits of all worker threads before the exponential. */
        OFFSET,
        /** What {@link LabelSmoothing} has subtracted from the exponentials. */
        SHIFT,
        /** Used at once. */
        FACTOR,
        /** By what the exponentials are multiplied in the gradient of the loss. */
        SOFTMAX_FACTOR,
        /** The same of the loss times its scale. */
        SCALED_SOFTMAX_FACTOR,
        /** What label smoothing adds to the gradient of each logit. */
        SMOOTHED_PART,
        /** The same of the loss times its scale. */
        SCALED_SMOOTHED_PART,
        /** What the gradient of a label's logit has beside its part of the softmax. */
        LABEL_PARTS,
        /** The logits of the labels. */
        LABEL_LOGITS
    }

    /** What has the size of a chunk's weights. */
    enum Work {
        GRADIENT,
        SPARE,
        /** The rows of the weight that are computed with, if they are a copy. */
        USED_WEIGHT,
        /** The rows of the weight that are updated, if they are others. */
        UPDATED_WEIGHT,
        FIRST_STATE,
        SECOND_STATE
    }

    private enum Other {
        SUMS,
        CHUNK_SUMS,
        CHUNK_OFFSETS,
        KEPT_LOGITS,
        SCRATCH_LOGITS,
        ONES
    }

    private final long features;
    private final ChunkPlan capacity;
    private final TensorOptions options; // float32 on the device of the rank
    private final TensorOptions wide;
    private final Map<Enum<?>, Tensor> tensors = new ConcurrentHashMap<>();
    private final Map<Enum<?>, Tensor> parts = new ConcurrentHashMap<>(); // of them, for the batch
    private final RoundedBuffers rounded = new RoundedBuffers();
    private ChunkPlan plan; // of the batch
    private ChunkViews views;
    private long rows;

    /**
     * Prepares memory, which is taken when it is first used.
     *
     * @param plan the chunks
     * @param features the length of a row of features
     * @param like a tensor on the device of the rank
     */
    ChunkBuffers(ChunkPlan plan, long features, Tensor like) {
        capacity = plan;
        this.plan = plan;
        this.features = features;
        try (PointerScope scope = new PointerScope()) {
            options = of(like, ScalarType.Float).retainReference();
            wide = of(like, ScalarType.Double).retainReference();
        }
    }

    private static TensorOptions of(Tensor like, ScalarType type) {
        return like.options().dtype(new ScalarTypeOptional(type));
    }

    ChunkPlan plan() {
        return plan;
    }

    /** Returns the length of a row of features. */
    long features() {
        return features;
    }

    /** Returns how many chunks there is memory for to keep. */
    long keptPlaces() {
        return capacity.kept();
    }

    /** Returns the memory of numbers in 16 bits. */
    RoundedBuffers rounded() {
        return rounded;
    }

    TensorOptions options() {
        return options;
    }

    TensorOptions wide() {
        return wide;
    }

    /** Returns whether a batch fits in. */
    boolean fits(long batchRows, long batchFeatures) {
        return batchRows <= plan.rows() && batchFeatures == features;
    }

    /** Sets the classes that are computed with, not more than those of the first plan. */
    void setClasses(ShardRange classes) {
        ChunkPlan next = capacity.withClasses(classes);
        if (next.count() != plan.count()) {
            freeParts();
        }
        plan = next;
    }

    /** Begins a pass over a batch. */
    void setRows(long batchRows) {
        if (batchRows != rows) {
            freeParts();
        }
        rows = batchRows;
    }

    /** Returns how many rows are computed with. */
    long batchRows() {
        return rows;
    }

    /** Returns a matrix, [rows, features]. */
    Tensor rows(Matrix which) {
        return part(
                which,
                () ->
                        get(which, plan.rows() * features, options)
                                .narrow(0, 0, rows * features)
                                .view(rows, features));
    }

    /** Returns a matrix whose columns are the rows of the batch, [features, rows]. */
    Tensor columns(Matrix which) {
        return part(
                which,
                () ->
                        get(which, plan.rows() * features, options)
                                .narrow(0, 0, rows * features)
                                .view(features, rows));
    }

    /** Returns a number for each class of a chunk, [classes]. */
    Tensor ones() {
        return get(Other.ONES, plan.chunk(), options);
    }

    /** Returns the sums over the classes of each chunk, [chunks, rows]. */
    Tensor chunkSums() {
        return part(
                Other.CHUNK_SUMS,
                () ->
                        get(Other.CHUNK_SUMS, capacity.count() * plan.rows(), options)
                                .narrow(0, 0, plan.count() * rows)
                                .view(plan.count(), rows));
    }

    /** Returns the places of the chunks for the present batch. */
    ChunkViews views() {
        if (views == null || !views.fits(rows, plan)) {
            freeViews();
            views = new ChunkViews(this, rows, plan);
        }
        return views;
    }

    private void freeViews() {
        if (views != null) {
            views.close();
        }
    }

    /** Returns one number a row, [rows]. */
    Tensor column(Column which) {
        return part(which, () -> get(which, plan.rows(), options).narrow(0, 0, rows));
    }

    /** Returns the sums of the exponentials, float64 [rows]. */
    Tensor sums() {
        return part(Other.SUMS, () -> get(Other.SUMS, plan.rows(), wide).narrow(0, 0, rows));
    }

    /**
     * Returns what was subtracted from the logits of a chunk before the exponential, [rows]; -1 is
     * before the first.
     */
    Tensor offset(int index) {
        Tensor all = get(Other.CHUNK_OFFSETS, plan.rows() * (capacity.count() + 1L), options);
        return all.narrow(0, (index + 1) * plan.rows(), rows);
    }

    /** Returns whether the logits of a chunk are kept from the first pass to the second. */
    boolean isKept(int index) {
        return index < plan.kept();
    }

    /** Returns the place of the logits of a chunk, [classes of the chunk, rows]. */
    Tensor logits(int index) {
        long length = plan.length(index);
        return place(index).narrow(0, 0, length * rows).view(length, rows);
    }

    private Tensor place(int index) {
        long size = plan.rows() * plan.chunk();
        if (!isKept(index)) {
            return get(Other.SCRATCH_LOGITS, size, options);
        }
        return get(Other.KEPT_LOGITS, capacity.kept() * size, options)
                .narrow(0, index * size, size);
    }

    /**
     * Returns a place for what a chunk's logits become while those that are kept stay as they are,
     * [classes of the chunk, rows]: for logits that are not kept it is where they are.
     */
    Tensor spareLogits(int index) {
        return scratch(index).view(plan.length(index), rows);
    }

    /** Returns a place for logits that are not kept, [rows, classes of the chunk]. */
    Tensor scratch(int index) {
        long length = plan.length(index);
        return get(Other.SCRATCH_LOGITS, plan.rows() * plan.chunk(), options)
                .narrow(0, 0, rows * length)
                .view(rows, length);
    }

    /** Returns memory of the size of a chunk's weights, [length, features]. */
    Tensor work(Work which, long length) {
        return get(which, plan.chunk() * features, options)
                .narrow(0, 0, length * features)
                .view(length, features);
    }

    /** Returns how many pieces of memory there are. */
    int count() {
        return tensors.size() + rounded.count();
    }

    /** Returns numbers as a tensor on the device. */
    Tensor index(long... values) {
        return torch.tensor(values).to(options.device(), ScalarType.Long);
    }

    /** Returns what a batch uses of some memory, a view that is made once for all of its size. */
    private Tensor part(Enum<?> which, Supplier<Tensor> view) {
        Tensor known = parts.get(which);
        return known != null
                ? known
                : parts.computeIfAbsent(which, key -> view.get().retainReference());
    }

    private void freeParts() {
        parts.values().forEach(Tensor::close);
        parts.clear();
    }

    private Tensor get(Enum<?> which, long size, TensorOptions type) {
        return tensors.computeIfAbsent(
                which,
                key ->
                        torch.empty(new long[] {size}, type, new MemoryFormatOptional())
                                .retainReference());
    }

    /** Frees the memory. */
    @Override
    public void close() {
        freeViews();
        freeParts();
        tensors.values().forEach(Tensor::close);
        tensors.clear();
        rounded.close();
        options.close();
        wide.close();
    }
}

package io.djltp.head;

import io.djltp.cut.ShardRange;
import io.djltp.torch.Precision;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import java.util.stream.LongStream;

/**
 * The memory of one thread of a fused cross entropy, used again by every step: fresh pages cost
 * more than the arithmetic on them. Batches with fewer rows use a part of it.
 *
 * <p>Views of it are made once for all batches of a size: to make one takes longer than some
 * operations on a chunk, and threads allocate and free small native objects from the same lists.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkMemory implements AutoCloseable {

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
        /** What label smoothing has subtracted from the exponentials. */
        SHIFT,
        /** Scratch, overwritten by the next use. */
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

    /**
     * What {@link RoundedArithmetic} has in 16 bits. Products in bfloat16 take their inner length
     * in pairs, so odd numbers of rows and features are rounded up, with zeros.
     */
    enum Rounded {
        /** The features as the factor that logits are products with. */
        FEATURES,
        /** The scaled features as the factor that the gradient is a product with. */
        SCALED_FEATURES,
        /** A chunk's weights. */
        WEIGHT,
        /** The exponentials of chunks that are kept. */
        KEPT,
        /** Those of a chunk that is not. */
        SCRATCH,
        /** A chunk's product with the weights. */
        PRODUCT
    }

    private enum Other {
        SUMS,
        CHUNK_SUMS,
        CHUNK_OFFSETS,
        KEPT_LOGITS,
        SCRATCH_LOGITS,
        ONES,
        // views of these
        FLAT_LOGITS,
        TRANSPOSED_LOGITS,
        TRANSPOSED_KEPT,
        WEIGHT_OF_FEATURES
    }

    private record Place(Enum<?> what, int index) {}

    private final long features;
    private final ChunkPlan capacity;
    private final TensorOptions options; // float32 on the device of the rank
    private final TensorOptions wide;
    private final TensorOptions rounded;
    private final Map<Enum<?>, Tensor> tensors = new HashMap<>();
    private final Map<Place, Tensor> views = new HashMap<>(); // of them, for the batch
    private ChunkPlan plan; // of the batch
    private long rows;

    /**
     * Prepares memory, which is taken when it is first used.
     *
     * @param plan the chunks
     * @param features the length of a row of features
     * @param like a tensor on the device of the rank
     * @param precision of what is {@link Rounded}
     */
    ChunkMemory(ChunkPlan plan, long features, Tensor like, Precision precision) {
        capacity = plan;
        this.plan = plan;
        this.features = features;
        try (PointerScope scope = new PointerScope()) {
            ScalarType half =
                    precision == Precision.FLOAT16 ? ScalarType.Half : ScalarType.BFloat16;
            options = of(like, ScalarType.Float);
            wide = of(like, ScalarType.Double);
            rounded = of(like, half);
        }
    }

    private static TensorOptions of(Tensor like, ScalarType type) {
        return like.options().dtype(new ScalarTypeOptional(type)).retainReference();
    }

    ChunkPlan plan() {
        return plan;
    }

    /** Returns the length of a row of features. */
    long features() {
        return features;
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
        if (!next.equals(plan)) {
            freeViews();
        }
        plan = next;
    }

    /** Begins a pass over a batch. */
    void setRows(long batchRows) {
        if (batchRows != rows) {
            freeViews();
        }
        rows = batchRows;
    }

    /** Returns how many rows are computed with. */
    long batchRows() {
        return rows;
    }

    /** Returns a matrix, [rows, features]. */
    Tensor rows(Matrix which) {
        return view(which, 0, () -> part(which, plan.rows() * features, 0, rows, features));
    }

    /** Returns a matrix whose columns are the rows of the batch, [features, rows]. */
    Tensor columns(Matrix which) {
        return view(which, 0, () -> part(which, plan.rows() * features, 0, features, rows));
    }

    /** Returns one number a row, [rows]. */
    Tensor column(Column which) {
        return view(which, 0, () -> part(which, plan.rows(), 0, rows));
    }

    /** Returns the sums of the exponentials, float64 [rows]. */
    Tensor sums() {
        return view(Other.SUMS, 0, () -> part(Other.SUMS, plan.rows(), 0, rows));
    }

    /** Returns the sums over the classes of each chunk, [chunks, rows]. */
    Tensor chunkSums() {
        long size = capacity.count() * plan.rows();
        return view(
                Other.CHUNK_SUMS, -1, () -> part(Other.CHUNK_SUMS, size, 0, plan.count(), rows));
    }

    /** Returns where the sums over a chunk's classes go, [rows]. */
    Tensor chunkSum(int index) {
        return view(Other.CHUNK_SUMS, index, () -> chunkSums().select(0, index));
    }

    /** Returns a one for each class of a chunk. */
    Tensor ones(int index) {
        Scalar one = new Scalar(1);
        return view(
                Other.ONES,
                index,
                () -> part(Other.ONES, plan.chunk(), 0, plan.length(index)).fill_(one));
    }

    /**
     * Returns what was subtracted from the logits of a chunk before the exponential, [rows]; -1 is
     * before the first.
     */
    Tensor offset(int index) {
        long size = plan.rows() * (capacity.count() + 1L);
        return part(Other.CHUNK_OFFSETS, size, (index + 1) * plan.rows(), rows);
    }

    /** Returns whether the logits of a chunk are kept from the first pass to the second. */
    boolean isKept(int index) {
        return index < plan.kept();
    }

    /** Returns the place of the logits of a chunk, [classes of the chunk, rows]. */
    Tensor logits(int index) {
        return isKept(index) ? kept(Other.KEPT_LOGITS, index) : spareLogits(index);
    }

    /** Returns the same as one vector. */
    Tensor flatLogits(int index) {
        return view(Other.FLAT_LOGITS, index, () -> logits(index).view(-1));
    }

    /** Returns the same, [rows, classes of the chunk]. */
    Tensor transposedLogits(int index) {
        return view(Other.TRANSPOSED_LOGITS, index, () -> logits(index).t());
    }

    /**
     * Returns a place for what a chunk's logits become while those that are kept stay as they are,
     * [classes of the chunk, rows]: for logits that are not kept it is where they are.
     */
    Tensor spareLogits(int index) {
        return scratch(Other.SCRATCH_LOGITS, index);
    }

    /** Returns a place for logits that are not kept, [rows, classes of the chunk]. */
    Tensor rowMajorLogits(int index) {
        return part(Other.SCRATCH_LOGITS, chunkSize(), 0, rows, plan.length(index));
    }

    /** Returns memory of the size of a chunk's weights, [length, features]. */
    Tensor work(Work which, long length) {
        return part(which, plan.chunk() * features, 0, length, features);
    }

    /** Returns the next even number: of rows or features that products are computed with. */
    static long even(long length) {
        return length + (length & 1);
    }

    /**
     * Returns features or their product with weights.
     *
     * @param which what
     * @param shape the shape: not more numbers than even rows have even features
     */
    Tensor rounded(Rounded which, long... shape) {
        return view(which, 0, () -> part(which, plan.rows() * even(features), 0, shape));
    }

    /** Returns the place of a chunk's rounded weights, [classes of the chunk, even features]. */
    Tensor roundedWeight(int index) {
        long columns = even(features);
        long length = plan.length(index);
        return view(
                Rounded.WEIGHT,
                index,
                () -> part(Rounded.WEIGHT, plan.chunk() * columns, 0, length, columns));
    }

    /** Returns the same without what makes the features an even number, [classes, features]. */
    Tensor roundedWeightOfFeatures(int index) {
        return view(
                Other.WEIGHT_OF_FEATURES, index, () -> roundedWeight(index).narrow(1, 0, features));
    }

    /** Returns a place for rounded numbers that nobody keeps, [classes of the chunk, rows]. */
    Tensor roundedScratch(int index) {
        return scratch(Rounded.SCRATCH, index);
    }

    /** Returns the place of a chunk's rounded exponentials, [classes of the chunk, rows]. */
    Tensor roundedKept(int index) {
        return isKept(index) ? kept(Rounded.KEPT, index) : roundedScratch(index);
    }

    /** Returns the same, [rows, classes of the chunk]. */
    Tensor transposedKept(int index) {
        return view(Other.TRANSPOSED_KEPT, index, () -> roundedKept(index).t());
    }

    private Tensor kept(Enum<?> which, int index) {
        long size = chunkSize();
        return view(
                which,
                index,
                () -> part(which, capacity.kept() * size, index * size, plan.length(index), rows));
    }

    private Tensor scratch(Enum<?> which, int index) {
        return view(which, index, () -> part(which, chunkSize(), 0, plan.length(index), rows));
    }

    private long chunkSize() {
        return plan.rows() * plan.chunk();
    }

    /** Returns how many pieces of memory there are. */
    int count() {
        return tensors.size();
    }

    /** Returns numbers as a tensor on the device. */
    Tensor index(long... values) {
        return torch.tensor(values).to(options.device(), ScalarType.Long);
    }

    /** Returns a view that is made once for all batches of the size. */
    private synchronized Tensor view(Enum<?> what, int index, Supplier<Tensor> view) {
        Place place = new Place(what, index);
        Tensor known = views.get(place);
        if (known == null) {
            known = view.get().retainReference();
            views.put(place, known);
        }
        return known;
    }

    private synchronized void freeViews() {
        views.values().forEach(Tensor::close);
        views.clear();
    }

    /**
     * Returns a part of a piece of memory.
     *
     * @param which the piece
     * @param size the most numbers in it, the same in all calls
     * @param start the first number
     * @param shape the shape of the part
     */
    private Tensor part(Enum<?> which, long size, long start, long... shape) {
        long length = LongStream.of(shape).reduce(1, (a, b) -> a * b);
        return piece(which, size).narrow(0, start, length).view(shape);
    }

    private synchronized Tensor piece(Enum<?> which, long... size) {
        Tensor known = tensors.get(which);
        if (known == null) {
            Tensor made =
                    which instanceof Rounded
                            ? torch.zeros(size, rounded)
                            : torch.empty(
                                    size,
                                    which == Other.SUMS ? wide : options,
                                    new MemoryFormatOptional());
            known = made.retainReference();
            tensors.put(which, known);
        }
        return known;
    }

    /** Frees the memory. */
    @Override
    public void close() {
        freeViews();
        tensors.values().forEach(Tensor::close);
        tensors.clear();
        options.close();
        wide.close();
        rounded.close();
    }
}

package io.djltp.internal.head;

import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.HostReads;
import io.djltp.torch.Precision;

import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.MemoryFormatOptional;
import org.bytedeco.pytorch.ScalarTypeOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

import java.util.EnumMap;
import java.util.HashMap;
import java.util.Map;
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

    /** A piece of memory. */
    enum Place {
        /** The features, as all that follows [rows, features]. */
        FEATURES,
        /** The features, [features, rows]. */
        TRANSPOSED_FEATURES,
        /** The features, each row times its factor of the softmax. */
        SCALED_FEATURES,
        /** The products of exponentials and weights: the softmax part of the features' gradient. */
        PRODUCTS,

        /** The sums of the exponentials, in float64. From here on there is one number a row. */
        SUMS,
        /** What is subtracted from the logits of all worker threads before the exponential. */
        OFFSET,
        /** What label smoothing has subtracted from the exponentials. */
        SHIFT,
        /** Scratch, overwritten by the next use. */
        FACTOR,
        /** By what the exponentials are multiplied in the gradient of the loss. */
        SOFTMAX_FACTOR,
        /** What label smoothing adds to the gradient of each logit. */
        SMOOTHED_PART,
        /** One number a row and chunk. */
        OFFSETS_OF_CHUNKS,

        /** What the gradient of a label's logit has beside its part of the softmax, [labels]. */
        LABEL_PARTS,
        /** The logits of the labels, [labels]. */
        LABEL_LOGITS,
        /** The features of the rows of labels, times that part, [labels, features]. */
        LABEL_GRADIENTS,

        /** The logits of chunks that are kept. */
        KEPT_LOGITS,
        /** Those of a chunk that is not. */
        SPARE_LOGITS,
        /** Scratch of the same size. */
        SCRATCH,

        /** What has the size of a chunk's weights: their gradient. */
        GRADIENT,
        SPARE,
        /** The rows of the weight that are computed with, if they are a copy. */
        USED_WEIGHT,
        /** The rows of the weight that are updated, if they are others. */
        UPDATED_WEIGHT,
        FIRST_STATE,
        SECOND_STATE,

        /** In 16 bits, the features as the factor that logits are products with. */
        ROUNDED_FEATURES(true),
        /** The scaled features as the factor that the gradient is a product with. */
        ROUNDED_SCALED_FEATURES(true),
        /** A chunk's weights. */
        ROUNDED_WEIGHT(true),
        /** The exponentials of chunks that are kept. */
        ROUNDED_KEPT(true),
        /** Those of a chunk that is not. */
        ROUNDED_SPARE(true),
        /** A chunk's product with the weights. */
        ROUNDED_PRODUCT(true);

        private final boolean rounded;

        Place() {
            this(false);
        }

        Place(boolean rounded) {
            this.rounded = rounded;
        }
    }

    private record View(Place what, int index) {}

    private final long features;
    private final ChunkPlan capacity;
    private final TensorOptions options; // float32 on the device of the rank
    private final TensorOptions rounded;
    private final Map<Place, Tensor> pieces = new EnumMap<>(Place.class);
    private final Map<View, Tensor> views = new HashMap<>(); // of them, for the batch
    private ChunkPlan plan; // of the batch
    private long rows;

    /**
     * Prepares memory, which is taken when it is first used.
     *
     * @param plan the chunks
     * @param features the length of a row of features
     * @param like a tensor on the device of the rank
     * @param precision of what is rounded
     */
    ChunkMemory(ChunkPlan plan, long features, Tensor like, Precision precision) {
        capacity = plan;
        this.plan = plan;
        this.features = features;
        ScalarType half = precision == Precision.FLOAT16 ? ScalarType.Half : ScalarType.BFloat16;
        try (PointerScope scope = new PointerScope()) {
            options = like.options().dtype(type(ScalarType.Float)).retainReference();
            rounded = options.dtype(type(half)).retainReference();
        }
    }

    private static ScalarTypeOptional type(ScalarType type) {
        return new ScalarTypeOptional(type);
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
    Tensor rows(Place which) {
        return view(which, 0, plan.rows() * features, 0, rows, features);
    }

    /** Returns memory for the labels of a batch, [labels, ...], which grows with their number. */
    synchronized Tensor ofLabels(Place which, long... shape) {
        long size = Math.max(1, LongStream.of(shape).reduce(1, (a, b) -> a * b));
        Tensor piece = pieces.get(which);
        if (piece != null && piece.numel() < size) {
            pieces.remove(which);
            piece.close();
        }
        return part(which, size, 0, shape);
    }

    /** Returns the features, [features, rows]. */
    Tensor transposedFeatures() {
        return view(Place.TRANSPOSED_FEATURES, 0, plan.rows() * features, 0, features, rows);
    }

    /** Returns one number a row, [rows]. */
    Tensor column(Place which) {
        return view(which, 0, plan.rows(), 0, rows);
    }

    /**
     * Returns what was subtracted from the logits of a chunk before the exponential, [rows]; -1 is
     * before the first.
     */
    Tensor offset(int index) {
        long size = plan.rows() * (capacity.count() + 1L);
        return view(Place.OFFSETS_OF_CHUNKS, index, size, (index + 1) * plan.rows(), rows);
    }

    /** Returns whether the logits of a chunk are kept from the first pass to the second. */
    boolean isKept(int index) {
        return index < plan.kept();
    }

    /** Returns the place of the logits of a chunk, [classes of the chunk, rows]. */
    Tensor logits(int index) {
        return isKept(index) ? kept(Place.KEPT_LOGITS, index) : spareLogits(index);
    }

    /**
     * Returns a place for what a chunk's logits become while those that are kept stay as they are,
     * [classes of the chunk, rows]: for logits that are not kept it is where they are.
     */
    Tensor spareLogits(int index) {
        return spare(Place.SPARE_LOGITS, index);
    }

    /** Returns scratch of the size of a chunk's logits, [classes of the chunk, rows]. */
    Tensor scratch(int index) {
        return spare(Place.SCRATCH, index);
    }

    /** Returns a place for logits that are not kept, [rows, classes of the chunk]. */
    Tensor rowMajorLogits(int index) {
        return part(Place.SPARE_LOGITS, sizeOfChunk(), 0, rows, plan.length(index));
    }

    /** Returns memory of the size of a chunk's weights, [length, features]. */
    Tensor work(Place which, long length) {
        return part(which, plan.chunk() * features, 0, length, features);
    }

    /**
     * Returns the next even number: of rows or features that products are computed with. Products
     * in bfloat16 take their inner length in pairs.
     */
    static long even(long length) {
        return length + (length & 1);
    }

    /**
     * Returns rounded features or their product with weights.
     *
     * @param which what
     * @param shape the shape: not more numbers than even rows have even features
     */
    Tensor rounded(Place which, long... shape) {
        return view(which, 0, plan.rows() * even(features), 0, shape);
    }

    /** Returns the place of a chunk's rounded weights, [classes of the chunk, even features]. */
    Tensor roundedWeight(int index) {
        long columns = even(features);
        long size = plan.chunk() * columns;
        return view(Place.ROUNDED_WEIGHT, index, size, 0, plan.length(index), columns);
    }

    /** Returns a place for rounded numbers that nobody keeps, [classes of the chunk, rows]. */
    Tensor roundedSpare(int index) {
        return spare(Place.ROUNDED_SPARE, index);
    }

    /** Returns the place of a chunk's rounded exponentials, [classes of the chunk, rows]. */
    Tensor roundedKept(int index) {
        return isKept(index) ? kept(Place.ROUNDED_KEPT, index) : roundedSpare(index);
    }

    private Tensor kept(Place which, int index) {
        long size = sizeOfChunk();
        long all = capacity.kept() * size;
        return view(which, index, all, index * size, plan.length(index), rows);
    }

    private Tensor spare(Place which, int index) {
        return view(which, index, sizeOfChunk(), 0, plan.length(index), rows);
    }

    private long sizeOfChunk() {
        return plan.rows() * plan.chunk();
    }

    /** Returns numbers as a tensor on the device. */
    Tensor index(long... values) {
        return HostReads.toDevice(options.device(), values);
    }

    /** Returns a {@link #part} that is made once for all batches of the size. */
    private synchronized Tensor view(Place which, int index, long size, long start, long... shape) {
        View key = new View(which, index);
        Tensor known = views.get(key);
        if (known == null) {
            known = part(which, size, start, shape).retainReference();
            views.put(key, known);
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
    private synchronized Tensor part(Place which, long size, long start, long... shape) {
        long length = LongStream.of(shape).reduce(1, (a, b) -> a * b);
        Tensor piece = pieces.computeIfAbsent(which, key -> newPiece(key, size));
        return piece.narrow(0, start, length).view(shape);
    }

    private Tensor newPiece(Place which, long... size) {
        if (which.rounded) { // what makes a length even has to be 0
            return torch.zeros(size, rounded).retainReference();
        }
        ScalarType type = which == Place.SUMS ? ScalarType.Double : ScalarType.Float;
        return torch.empty(size, options.dtype(type(type)), new MemoryFormatOptional())
                .retainReference();
    }

    /** Frees the memory. */
    @Override
    public void close() {
        freeViews();
        pieces.values().forEach(Tensor::close);
        pieces.clear();
        options.close();
        rounded.close();
    }
}

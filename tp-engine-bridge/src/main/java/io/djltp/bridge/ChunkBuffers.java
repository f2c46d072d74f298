package io.djltp.bridge;

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

/**
 * The memory of a fused cross entropy, used again by every step: fresh pages cost more than the
 * arithmetic on them. Batches with fewer rows use a part of it.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ChunkBuffers implements AutoCloseable {

    private final long features;
    private final ChunkPlan capacity;
    private final TensorOptions options; // float32 on the device of the rank
    private final TensorOptions wide;
    private final Map<String, Tensor> tensors = new HashMap<>();
    private ChunkPlan plan; // of the batch
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

    /** Sets how many classes are computed with, up to those of the plan. */
    void setClasses(long classes) {
        plan = capacity.withClasses(classes);
    }

    /** Begins a pass over a batch. */
    void setRows(long batchRows) {
        rows = batchRows;
    }

    /** Returns the features, or what they are multiplied to, [rows, features]. */
    Tensor rows(String name) {
        return get(name, plan.rows() * features, options)
                .narrow(0, 0, rows * features)
                .view(rows, features);
    }

    /** Returns one number a row, [rows]. */
    Tensor column(String name) {
        return get(name, plan.rows(), options).narrow(0, 0, rows);
    }

    /** Returns one number a row in float64, [rows]. */
    Tensor wideColumn(String name) {
        return get(name, plan.rows(), wide).narrow(0, 0, rows);
    }

    /** Returns what the logits of a chunk were compared with, [rows]; of -1, the least of all. */
    Tensor reference(int index) {
        Tensor all = tensors.get("references");
        if (all == null) {
            all = get("references", plan.rows() * (capacity.count() + 1L), options);
            all.narrow(0, 0, plan.rows()).fill_(new Scalar(-Float.MAX_VALUE));
        }
        return all.narrow(0, (index + 1) * plan.rows(), rows);
    }

    /** Returns whether the logits of a chunk have a place of their own. */
    boolean isKept(int index) {
        return index < plan.kept();
    }

    /** Returns the place of the logits of a chunk, [rows, classes of the chunk]. */
    Tensor logits(int index) {
        if (!isKept(index)) {
            return scratch(index);
        }
        Tensor all = get("kept", capacity.kept() * plan.rows() * plan.chunk(), options);
        return shaped(all, index * plan.rows() * plan.chunk(), index);
    }

    /** Returns a place for logits that are not kept. */
    Tensor scratch(int index) {
        return shaped(get("scratch", plan.rows() * plan.chunk(), options), 0, index);
    }

    private Tensor shaped(Tensor all, long offset, int index) {
        long length = plan.length(index);
        return all.narrow(0, offset, rows * length).view(rows, length);
    }

    /** Returns memory of the size of a chunk's weights, [length, features]. */
    Tensor work(int number, long length) {
        return get("work " + number, plan.chunk() * features, options)
                .narrow(0, 0, length * features)
                .view(length, features);
    }

    /** Returns numbers as a tensor on the device. */
    Tensor index(long... values) {
        return torch.tensor(values).to(options.device(), ScalarType.Long);
    }

    private Tensor get(String name, long size, TensorOptions type) {
        return tensors.computeIfAbsent(
                name,
                key ->
                        torch.empty(new long[] {size}, type, new MemoryFormatOptional())
                                .retainReference());
    }

    /** Frees the memory. */
    @Override
    public void close() {
        tensors.values().forEach(Tensor::close);
        tensors.clear();
        options.close();
        wide.close();
    }
}

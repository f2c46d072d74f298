package io.djltp.nn;

import ai.djl.ndarray.types.Shape;

import io.djltp.optimizer.OptimizerSettings;
import io.djltp.optimizer.StateKind;
import io.djltp.sharding.ShardingStrategy;

import java.util.List;

/**
 * What the large parts of a training take on one rank, in bytes: its shards and replicas, their
 * gradients, what the optimizer keeps of them, and the logits of heads. Parameters are in 32 bits.
 *
 * <pre>{@code
 * MemoryEstimate rank = new MemoryEstimate(OptimizerSettings.of(optimizer), 0, 4);
 * rank.addHead(new Shape(1_000_000, 512), 256).addTable(new Shape(100_000, 512));
 * long bytes = rank.getTotal();
 * }</pre>
 */
public final class MemoryEstimate {

    private static final long LEAST_FUSED_MEMORY = 64L << 20;

    private final int rank;
    private final int ranks;
    private final boolean rowSparse;
    private final List<StateKind> stateKinds;
    private long weights;
    private long gradients;
    private long state;
    private long logits;

    /**
     * Begins the estimate of a rank.
     *
     * @param optimizer the optimizer
     * @param rank the rank's place in the group over which weights are cut, from 0
     * @param ranks the size of the group; 1 in DATA mode
     */
    public MemoryEstimate(OptimizerSettings optimizer, int rank, int ranks) {
        this.rank = rank;
        this.ranks = ranks;
        rowSparse = optimizer.isRowSparse();
        stateKinds = StateKind.of(optimizer);
    }

    /**
     * Adds a parameter that has a gradient.
     *
     * @param shape its shape over all ranks
     * @param strategy how it is cut
     * @return this estimate
     */
    public MemoryEstimate addParameter(Shape shape, ShardingStrategy strategy) {
        Shape own = addWeight(shape, strategy);
        gradients += bytes(own);
        return this;
    }

    /**
     * Adds the table of an {@link EmbeddingBag}.
     *
     * @param shape its shape, [rows, features]
     * @return this estimate
     */
    public MemoryEstimate addTable(Shape shape) {
        Shape own = addWeight(shape, ShardingStrategy.replicate());
        gradients += rowSparse ? 0 : bytes(own);
        return this;
    }

    /**
     * Adds the weight of a {@link ClassificationHead} with what it keeps of the logits.
     *
     * @param shape its shape over all ranks, [classes, features]
     * @param rows the rows of a batch that the head gets on the rank
     * @return this estimate
     */
    public MemoryEstimate addHead(Shape shape, long rows) {
        Shape own = addWeight(shape, ShardingStrategy.rowwise());
        logits += Math.min(bytes(logits(own, rows)), fusedMemory(own.get(0), own.get(1)));
        return this;
    }

    /**
     * Adds the weight of a last layer whose logits are whole: with their softmax, which becomes
     * their gradient.
     *
     * @param shape its shape over all ranks, [classes, features]
     * @param rows the rows of a batch that the layer gets on the rank
     * @return this estimate
     */
    public MemoryEstimate addWholeLogits(Shape shape, long rows) {
        Shape own = addWeight(shape, ShardingStrategy.rowwise());
        gradients += bytes(own);
        logits += 2 * bytes(logits(own, rows));
        return this;
    }

    private Shape addWeight(Shape shape, ShardingStrategy strategy) {
        Shape own = strategy.isReplicated() ? shape : strategy.shardShape(shape, rank, ranks);
        weights += bytes(own);
        state += stateKinds.stream().mapToLong(kind -> kind.bytes(own)).sum();
        return own;
    }

    private static Shape logits(Shape weight, long rows) {
        return new Shape(rows, weight.get(0));
    }

    private static long bytes(Shape shape) {
        return shape.size() * Float.BYTES;
    }

    /**
     * Returns how many bytes the logits of a batch may take on a rank if nothing else is said.
     *
     * @param classes the classes of the rank
     * @param features the features
     * @return the bytes: 64 MiB, and 3/4 of what the rank's weight takes
     */
    static long fusedMemory(long classes, long features) {
        return LEAST_FUSED_MEMORY + classes * features * Float.BYTES * 3 / 4;
    }

    /**
     * Returns what the parameters take.
     *
     * @return the bytes
     */
    public long getWeights() {
        return weights;
    }

    /**
     * Returns what gradients take.
     *
     * @return the bytes
     */
    public long getGradients() {
        return gradients;
    }

    /**
     * Returns what the optimizer keeps.
     *
     * @return the bytes
     */
    public long getState() {
        return state;
    }

    /**
     * Returns what heads keep of the logits of a batch.
     *
     * @return the bytes
     */
    public long getLogits() {
        return logits;
    }

    /**
     * Returns the sum of all parts.
     *
     * @return the bytes
     */
    public long getTotal() {
        return weights + gradients + state + logits;
    }
}

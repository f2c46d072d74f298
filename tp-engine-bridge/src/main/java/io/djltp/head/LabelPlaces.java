package io.djltp.head;

import org.bytedeco.pytorch.Tensor;

/**
 * Where the labels of a worker thread lie in its chunks, for all chunks in one tensor: to make one
 * for each chunk takes longer than what is done at these places.
 */
final class LabelPlaces {

    /** What a chunk without labels has. */
    static final OfChunk NONE = new OfChunk(0, 0, null);

    private final ShardLabels labels;
    private final ChunkPlan plan;
    private final int first; // label of the thread
    private final Tensor places; // of all its labels, or null if there are none

    /**
     * Finds the places.
     *
     * @param labels the labels of the rank
     * @param buffers the memory of the thread
     * @param ofColumn how far apart the places of neighbouring columns are
     * @param ofRow how far apart those of neighbouring rows are
     */
    LabelPlaces(ShardLabels labels, ChunkBuffers buffers, long ofColumn, long ofRow) {
        this.labels = labels;
        plan = buffers.plan();
        first = labels.from(plan.range().start());
        long[] found = new long[labels.from(plan.range().end()) - first];
        for (int i = 0; i < found.length; i++) {
            long column = labels.columns[first + i] - plan.range().start();
            found[i] = column % plan.chunk() * ofColumn + labels.rows[first + i] * ofRow;
        }
        places = found.length == 0 ? null : buffers.index(found);
    }

    /** Returns the labels of a chunk. */
    OfChunk of(int index) {
        if (places == null) {
            return NONE;
        }
        long start = plan.start(index);
        int from = labels.from(start);
        int to = labels.from(start + plan.length(index));
        return from == to ? NONE : new OfChunk(from, to, places.narrow(0, from - first, to - from));
    }

    /** The labels that lie in a chunk, and their places; {@code null} if none do. */
    record OfChunk(int from, int to, Tensor places) {

        Tensor part(Tensor ofAllLabels) {
            return ofAllLabels.narrow(0, from, to - from);
        }
    }
}

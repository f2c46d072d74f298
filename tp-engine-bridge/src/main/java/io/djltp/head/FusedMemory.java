package io.djltp.head;

import io.djltp.cut.Cut;

import org.bytedeco.pytorch.Tensor;

import java.util.ArrayList;
import java.util.List;

/** The memory of a fused cross entropy: what its lanes share, and what each of them has alone. */
final class FusedMemory implements AutoCloseable {

    private final ChunkBuffers shared;
    private final List<ChunkBuffers> lanes = new ArrayList<>();

    /**
     * Prepares memory, which is taken when it is first used.
     *
     * @param plans the chunks of each lane
     * @param features the length of a row of features
     * @param like a tensor on the device of the rank
     */
    FusedMemory(ChunkPlan[] plans, long features, Tensor like) {
        shared = new ChunkBuffers(plans[0], features, like);
        for (ChunkPlan plan : plans) {
            lanes.add(new ChunkBuffers(plan, features, like));
        }
    }

    ChunkBuffers shared() {
        return shared;
    }

    List<ChunkBuffers> lanes() {
        return lanes;
    }

    /** Returns how many pieces of memory there are. */
    int count() {
        return shared.count() + lanes.stream().mapToInt(ChunkBuffers::count).sum();
    }

    /** Sets how many classes are computed with, not more than those of the first plans. */
    void setClasses(long classes) {
        for (int i = 0; i < lanes.size(); i++) {
            lanes.get(i).setClasses(Cut.balanced(classes, lanes.size()).getRange(i));
        }
    }

    /** Begins a pass over a batch. */
    void setRows(long rows) {
        shared.setRows(rows);
        lanes.forEach(lane -> lane.setRows(rows));
    }

    /** Frees the memory. */
    @Override
    public void close() {
        shared.close();
        lanes.forEach(ChunkBuffers::close);
    }
}

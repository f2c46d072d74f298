package io.djltp.checkpoint.store;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.io.IOException;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Writes a checkpoint again with another number of parts, a chunk at a time. A checkpoint can be
 * loaded at any size as it is; with as many parts as there are ranks, what a rank needs of a tensor
 * lies in one file.
 *
 * <p>Each axis that was cut is cut into balanced ranges: how a stacked weight would be cut for so
 * many ranks is known to its layer only, and its ranks may need ranges of several parts.
 */
public final class Resharding {

    private Resharding() {}

    /**
     * Writes a checkpoint again.
     *
     * @param from the checkpoint
     * @param to where it goes, under the same step
     * @param parts how many parts it gets, 1 or more
     * @throws CheckpointException if it is damaged, or there is one of its step
     * @throws IOException if it cannot be read or written
     */
    public static void write(Checkpoint from, CheckpointFolder to, int parts) throws IOException {
        List<Integer> own = IntStream.range(0, parts).boxed().toList();
        TensorReader reader = from.newReader();
        try (CheckpointWriter writer = to.begin(from.getStep(), from.getMesh(), parts, own)) {
            for (CutTensor tensor : from.getTensors().values()) {
                CutTensor other = recut(tensor, parts);
                writer.declare(other);
                for (int part : own) {
                    if (other.isIn(part)) {
                        List<List<ShardRange>> box = Checkpoint.whole(tensor);
                        if (!other.isWhole()) {
                            box.set(other.axis(), other.cut().getRanges(part));
                        }
                        writer.put(other.name(), part, out -> reader.stream(tensor, box, out));
                    }
                }
            }
            writer.stream();
            writer.finish(from.getValues());
        }
    }

    private static CutTensor recut(CutTensor tensor, int parts) {
        return tensor.isWhole()
                ? tensor
                : new CutTensor(
                        tensor.name(),
                        tensor.type(),
                        tensor.shape(),
                        tensor.axis(),
                        Cut.balanced(tensor.cut().getLength(), parts));
    }
}

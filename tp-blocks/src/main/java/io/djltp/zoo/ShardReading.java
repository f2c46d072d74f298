package io.djltp.zoo;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.cut.Cut;
import io.djltp.parameters.RankParameterStore;
import io.djltp.rank.ParallelContext;
import io.djltp.safetensors.SafetensorsFile;
import io.djltp.safetensors.SliceReader;
import io.djltp.torch.Autograd;
import io.djltp.training.ParallelInference;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * Fills the ranks' parts of a network from its file: every rank reads its shards and nothing else,
 * one after another, each at its place in the file. What all ranks have is read once.
 */
@SuppressWarnings("try") // a scope is used by being open
final class ShardReading {

    private final StoredNetwork stored;
    private final ParallelInference ranks;

    ShardReading(StoredNetwork stored, ParallelInference ranks) {
        this.stored = stored;
        this.ranks = ranks;
    }

    /**
     * Reads everything.
     *
     * @return the bytes that each rank has read
     * @throws IOException if the file cannot be read
     */
    List<Long> run() throws IOException {
        long shared;
        try (SafetensorsFile file = SafetensorsFile.open(stored.getPath())) {
            stored.initialize(file, true, () -> ranks.initialize(stored.getInputs()));
            shared = file.getBytesRead();
        }
        List<Long> bytes = new ArrayList<>(ranks.getRanks().run(this::readShards));
        bytes.set(0, bytes.get(0) + shared);
        return List.copyOf(bytes);
    }

    private long readShards(ParallelContext context) throws IOException {
        RankParameterStore store = ranks.getParameterStore(context.getLocalIndex());
        int rank = context.getTensorGroup().getRank();
        int size = context.getTensorGroup().getSize();
        try (SafetensorsFile file = SafetensorsFile.open(stored.getPath());
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            SliceReader reader = new SliceReader(file);
            for (StoredNetwork.Entry entry : stored.getEntries()) {
                if (entry.isCut()) {
                    NDArray shard = store.getHeld(entry.parameter());
                    Cut cut = entry.strategy().cut(entry.shape(), size);
                    int axis = entry.strategy().axis(entry.shape());
                    try (NDManager scope = store.getManager().newSubManager()) {
                        NDArray read = reader.read(entry.name(), axis, cut.getRanges(rank), scope);
                        shard.set(
                                new NDIndex("..."),
                                StoredNetwork.ofType(read, shard.getDataType()));
                    }
                }
            }
            return file.getBytesRead();
        }
    }
}

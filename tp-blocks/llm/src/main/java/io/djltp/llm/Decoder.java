package io.djltp.llm;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;

import io.djltp.internal.Errors;
import io.djltp.internal.decode.RankThread;
import io.djltp.internal.decode.SharedRows;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.FloatBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * A model on all ranks, for generation. In a job of several processes, all of them compute the same
 * steps.
 */
final class Decoder implements AutoCloseable {

    private static final int MOST_IDS = 1 << 24; // that a float tells apart

    private final ModelConfig config;
    private final DecoderSize size;
    private final SafetensorsFolder files;
    private final RankPool pool;
    private final List<RankDecoder> decoders; // of the ranks of this process
    private boolean closed;

    Decoder(
            ModelConfig config,
            Path folder,
            @Nullable Adapter adapter,
            WeightType type,
            ParallelConfig parallel,
            DecoderSize size)
            throws IOException {
        this.config = config;
        this.size = size;
        Errors.check(
                !parallel.getMesh().isCut(DeviceMesh.DATA),
                "Generation cuts a model over all ranks, and has none for %s. Use"
                        + " ParallelConfig.tensor(ranks)",
                parallel.describe());
        for (Device device : parallel.getDevices()) {
            Errors.check(
                    !device.isGpu(),
                    "Generation runs on CPUs only, and a rank is to run on %s. Leave the devices"
                            + " out",
                    device);
        }
        RankWeights.checkRanks(config, parallel.getRanks());
        Errors.check(
                config.getVocabularySize() <= MOST_IDS,
                "The model has %s token ids, and generation knows up to %s",
                config.getVocabularySize(),
                MOST_IDS);
        files = SafetensorsFolder.open(folder);
        RankPool started = null;
        List<RankDecoder> made = new ArrayList<>();
        try {
            started = new RankPool(parallel);
            int ranks = parallel.getRanks();
            boolean together =
                    ranks > 1
                            && ranks == parallel.getLocalRanks()
                            && ranks <= Runtime.getRuntime().availableProcessors();
            SharedRows shared = together ? new SharedRows(ranks) : null;
            boolean several = parallel.getLocalRanks() > 1 || parallel.getThreadsPerRank() == 1;
            made.addAll(
                    started.run(
                            context -> {
                                if (several) {
                                    RankThread.computeAlone();
                                }
                                try (NDManager manager =
                                        NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
                                    return new RankDecoder(
                                            config,
                                            files,
                                            adapter,
                                            type,
                                            context.getTensorGroup(),
                                            shared,
                                            size,
                                            manager);
                                }
                            }));
        } catch (RuntimeException | Error e) {
            if (started != null) {
                started.close();
            }
            files.close();
            throw e;
        }
        RankThread.giveBackMemory();
        started.setInterruptible(false); // a step is short, and others may want the ranks
        pool = started;
        decoders = made;
    }

    ModelConfig config() {
        return config;
    }

    DecoderSize size() {
        return size;
    }

    int ranks() {
        return pool.getWorldSize();
    }

    /** Returns the memory of weights and cache of each rank of this process. */
    List<Long> bytes() {
        return decoders.stream().map(RankDecoder::bytes).toList();
    }

    String kernel() {
        return decoders.get(0).kernel();
    }

    /** Returns whether there are ranks in other processes. */
    boolean isDistributed() {
        return pool.isDistributed();
    }

    /** Computes a step, and returns the tokens that it asks for. */
    DecoderStep.Choice[] choose(DecoderStep step) {
        List<DecoderStep.Choice[]> parts =
                pool.run(context -> decoders.get(context.getLocalIndex()).choose(step));
        DecoderStep.Choice[] choices = parts.get(0).clone();
        for (int i = 0; i < choices.length; i++) {
            if (choices[i].logits() != null) {
                FloatBuffer logits = FloatBuffer.allocate(config.getVocabularySize());
                for (DecoderStep.Choice[] part : parts) {
                    logits.put(part[i].logits());
                }
                choices[i] = new DecoderStep.Choice(choices[i].id(), logits.array());
            }
        }
        return choices;
    }

    /** Stops the ranks, and frees what they hold. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        pool.close();
        if (pool.isStopped()) { // else a rank uses it
            decoders.forEach(RankDecoder::close);
        }
        try {
            files.close();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}

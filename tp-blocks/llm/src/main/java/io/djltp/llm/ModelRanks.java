package io.djltp.llm;

import ai.djl.Device;

import io.djltp.internal.Errors;
import io.djltp.internal.decode.SharedRows;
import io.djltp.internal.job.AgreedSettings;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.rank.RankPool;
import io.djltp.internal.safetensors.SafetensorsFolder;
import io.djltp.job.Job;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32;

/**
 * The ranks of this process, on CPUs, and what each of them holds of a model that is cut over all
 * ranks.
 *
 * @param <T> what a rank holds
 */
final class ModelRanks<T extends AutoCloseable> implements AutoCloseable {

    private final SafetensorsFolder files;
    private final RankPool pool;
    private final @Nullable SharedRows shared;
    private final List<T> parts;
    private boolean closed;

    /** Reads what a rank holds, which sums in shared memory or, without, by its groups. */
    interface Reader<T> {

        T read(ParallelContext context, SafetensorsFolder files, @Nullable SharedRows shared)
                throws IOException;
    }

    /** What a rank computes. */
    interface Task<T, R> {

        R compute(T part) throws IOException;
    }

    /**
     * Starts the ranks.
     *
     * @param settings what else all processes must have alike
     * @throws IOException if the folder cannot be read
     * @throws IllegalArgumentException if the model cannot be cut over these ranks, or processes
     *     have different ones
     */
    ModelRanks(
            ModelConfig config,
            Path folder,
            ParallelConfig parallel,
            String settings,
            Reader<T> reader)
            throws IOException {
        checkAgreed(parallel.getJob(), config, folder, settings);
        Errors.check(
                !parallel.getMesh().isCut(DeviceMesh.DATA),
                "A model is cut over all ranks, and there are none for %s. Use"
                        + " ParallelConfig.tensor(ranks)",
                parallel.describe());
        for (Device device : parallel.getDevices()) {
            Errors.check(
                    !device.isGpu(),
                    "Generation and embedding run on CPUs only, and a rank is to run on %s. Leave"
                            + " the devices out",
                    device);
        }
        RankWeights.checkRanks(config, parallel.getRanks());
        int ranks = parallel.getRanks();
        boolean together =
                ranks > 1
                        && ranks == parallel.getLocalRanks()
                        && ranks <= Runtime.getRuntime().availableProcessors();
        shared = together ? new SharedRows(ranks) : null;
        files = SafetensorsFolder.open(folder);
        RankPool started = null;
        try {
            started = new RankPool(parallel);
            parts = started.run(context -> reader.read(context, files, shared));
        } catch (RuntimeException | Error e) {
            if (started != null) {
                started.close();
            }
            files.close();
            throw e;
        }
        started.setInterruptible(false); // a step is short, and others may want the ranks
        pool = started;
    }

    private static void checkAgreed(
            @Nullable Job job, ModelConfig config, Path folder, String settings)
            throws IOException {
        if (job == null) {
            return;
        }
        CRC32 files = new CRC32();
        for (String name : List.of("config.json", LanguageModel.TOKENIZER)) {
            if (Files.exists(folder.resolve(name))) {
                files.update(Files.readAllBytes(folder.resolve(name)));
            }
        }
        String own =
                "a %s, files with the checksum %08x, %s"
                        .formatted(config, files.getValue(), settings);
        AgreedSettings.check(
                job, "model", Map.of("the model", own), "open the same one on all processes");
    }

    RankPool pool() {
        return pool;
    }

    /** Returns what the ranks hold, in their order. */
    List<T> parts() {
        return parts;
    }

    /** Computes on a rank. If it fails, so do those that wait for its sums. */
    <R> R compute(ParallelContext context, Task<T, R> task) throws IOException {
        try {
            return task.compute(parts.get(context.getLocalIndex()));
        } catch (IOException | RuntimeException | Error e) {
            if (shared != null) {
                shared.fail(e);
            }
            throw e;
        }
    }

    /** Stops the ranks, and frees what they hold. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        pool.close();
        try (files) {
            if (pool.isStopped()) { // else a rank uses it
                for (T part : parts) {
                    part.close();
                }
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}

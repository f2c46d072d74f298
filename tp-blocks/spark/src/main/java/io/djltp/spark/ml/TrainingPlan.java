package io.djltp.spark.ml;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.checkpoint.Resumable;

import org.jspecify.annotations.Nullable;

import java.io.Serializable;
import java.net.URI;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * How a classifier is trained, the same in all tasks.
 *
 * @param settings what the user has set
 * @param network its network
 * @param many whether a row has several labels
 * @param rows the rows of an epoch
 * @param checksum tells the rows from others
 */
record TrainingPlan(
        ParallelClassifier settings, NetworkPlan network, boolean many, long rows, long checksum)
        implements Serializable {

    /** Returns the folder for checkpoints, or {@code null} for none. */
    static @Nullable Path folder(String given) {
        boolean uri = given.startsWith("file:");
        if (given.matches("[A-Za-z][A-Za-z0-9+.-]+:.*") && !uri) {
            throw new IllegalArgumentException(
                    ("The checkpointFolder %s is no path of a file system that all executors have"
                                    + " mounted, such as file:/mnt/shared/run: the ranks write"
                                    + " their parts there themselves")
                            .formatted(given));
        }
        Path path = uri ? Path.of(URI.create(given)) : Path.of(given);
        return given.isEmpty() ? null : path;
    }

    /**
     * Returns what takes checkpoints, the last listener of a trainer; {@code null} if there are
     * none. It throws IllegalArgumentException where the newest is of another training.
     *
     * @param losses what goes on counting
     */
    @Nullable CheckpointListener newCheckpoints(Resumable losses) {
        Path folder = folder(settings.getCheckpointFolder());
        if (folder == null) {
            return null;
        }
        // what makes a training what it is; the epochs are not among that: there may be more
        Map<String, String> options = new LinkedHashMap<>();
        options.put("network", network.toString());
        options.put("rows", rows + ", checksum " + Long.toHexString(checksum));
        options.put("batchSize", "" + settings.getBatchSize());
        options.put("optimizer", settings.getOptimizer());
        options.put("learningRate", "" + settings.getLearningRate());
        options.put("labelSmoothing", "" + settings.getLabelSmoothing());
        options.put("seed", "" + settings.getSeed());
        return CheckpointListener.builder()
                .setFolder(folder)
                .optEverySteps(settings.getCheckpointInterval())
                .optOptions(options)
                .optState("losses", losses)
                .build();
    }

    /** Returns the batches of an epoch. */
    long batches() {
        return (rows + settings.getBatchSize() - 1) / settings.getBatchSize();
    }
}

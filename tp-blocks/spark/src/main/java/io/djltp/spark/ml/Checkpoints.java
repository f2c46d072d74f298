package io.djltp.spark.ml;

import io.djltp.checkpoint.CheckpointListener;

import java.io.Serializable;
import java.net.URI;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Where and when checkpoints of a training are taken.
 *
 * @param folder a folder that all executors see, or empty for none
 * @param interval after how many steps one is taken
 */
record Checkpoints(String folder, int interval) implements Serializable {

    Checkpoints {
        if (folder.matches("[A-Za-z][A-Za-z0-9+.-]+:.*") && !folder.startsWith("file:")) {
            throw new IllegalArgumentException(
                    "The checkpointFolder "
                            + folder
                            + " is no path of a file system that all executors have mounted, such"
                            + " as file:/mnt/shared/run: the ranks write their parts there"
                            + " themselves");
        }
    }

    /**
     * Returns what takes them, the last listener of a trainer; {@code null} if there are none.
     *
     * @param plan the training: a checkpoint of another one is refused
     * @param losses what goes on counting
     */
    CheckpointListener newListener(TrainingPlan plan, EpochLosses losses) {
        if (folder.isEmpty()) {
            return null;
        }
        Path path = folder.startsWith("file:") ? Path.of(URI.create(folder)) : Path.of(folder);
        return CheckpointListener.builder()
                .setFolder(path)
                .optEverySteps(interval)
                .optOptions(options(plan))
                .optState("losses", losses)
                .build();
    }

    /** What makes a training what it is. The epochs are not among that: there may be more. */
    private static Map<String, String> options(TrainingPlan plan) {
        Map<String, String> options = new LinkedHashMap<>();
        options.put("network", plan.network().toString());
        options.put("rows", plan.rows() + ", checksum " + Long.toHexString(plan.checksum()));
        options.put("batchSize", Integer.toString(plan.batchSize()));
        options.put("optimizer", plan.optimizer());
        options.put("learningRate", Float.toString(plan.learningRate()));
        options.put("labelSmoothing", Float.toString(plan.labelSmoothing()));
        options.put("seed", Long.toString(plan.seed()));
        return options;
    }
}

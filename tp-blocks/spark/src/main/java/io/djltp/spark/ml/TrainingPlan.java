package io.djltp.spark.ml;

import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.spark.ml.RankTrainer.EpochLosses;

import java.io.Serializable;
import java.net.URI;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * How a classifier is trained, the same in all tasks.
 *
 * @param network its network
 * @param rows the rows of an epoch
 * @param batchSize the rows of a step, over all ranks
 * @param epochs the passes over the rows
 * @param optimizer the name of the optimizer
 * @param learningRate its learning rate
 * @param labelSmoothing the smoothed part of the labels
 * @param seed the seed of first weights and of the order of rows
 * @param checksum tells the rows from others
 * @param checkpointFolder a folder for checkpoints that all executors see, or empty for none
 * @param checkpointInterval after how many steps one is taken
 */
record TrainingPlan(
        NetworkPlan network,
        long rows,
        int batchSize,
        int epochs,
        String optimizer,
        float learningRate,
        float labelSmoothing,
        long seed,
        long checksum,
        String checkpointFolder,
        int checkpointInterval)
        implements Serializable {

    TrainingPlan {
        if (checkpointFolder.matches("[A-Za-z][A-Za-z0-9+.-]+:.*")
                && !checkpointFolder.startsWith("file:")) {
            throw new IllegalArgumentException(
                    ("The checkpointFolder %s is no path of a file system that all executors have"
                                    + " mounted, such as file:/mnt/shared/run: the ranks write"
                                    + " their parts there themselves")
                            .formatted(checkpointFolder));
        }
    }

    /**
     * Returns what takes checkpoints, the last listener of a trainer; {@code null} if there are
     * none. It throws IllegalArgumentException where the newest is of another training.
     *
     * @param losses what goes on counting
     */
    CheckpointListener newCheckpoints(EpochLosses losses) {
        if (checkpointFolder.isEmpty()) {
            return null;
        }
        boolean uri = checkpointFolder.startsWith("file:");
        // what makes a training what it is; the epochs are not among that: there may be more
        Map<String, String> options = new LinkedHashMap<>();
        options.put("network", network.toString());
        options.put("rows", rows + ", checksum " + Long.toHexString(checksum));
        options.put("batchSize", Integer.toString(batchSize));
        options.put("optimizer", optimizer);
        options.put("learningRate", Float.toString(learningRate));
        options.put("labelSmoothing", Float.toString(labelSmoothing));
        options.put("seed", Long.toString(seed));
        return CheckpointListener.builder()
                .setFolder(uri ? Path.of(URI.create(checkpointFolder)) : Path.of(checkpointFolder))
                .optEverySteps(checkpointInterval)
                .optOptions(options)
                .optState("losses", losses)
                .build();
    }

    /** Returns the batches of an epoch. */
    long batches() {
        return (rows + batchSize - 1) / batchSize;
    }

    Optimizer newOptimizer() {
        Tracker rate = Tracker.fixed(learningRate);
        switch (optimizer) {
            case "adam":
                return Optimizer.adam().optLearningRateTracker(rate).build();
            case "adamw":
                return Optimizer.adamW().optLearningRateTracker(rate).build();
            case "sgd":
                return Optimizer.sgd().setLearningRateTracker(rate).build();
            default:
                throw new IllegalArgumentException(
                        "The optimizer '" + optimizer + "' is none of adam, adamw and sgd");
        }
    }
}

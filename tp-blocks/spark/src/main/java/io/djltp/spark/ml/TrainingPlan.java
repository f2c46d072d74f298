package io.djltp.spark.ml;

import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import java.io.Serializable;

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
 * @param checkpoints where and when checkpoints are taken
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
        Checkpoints checkpoints)
        implements Serializable {

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

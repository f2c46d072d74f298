package io.djltp.internal.forecast;

import ai.djl.training.loss.Loss;

import io.djltp.internal.Errors;

/** A loss that communicates, and can say what, from shapes alone. */
public interface ForecastLoss {

    /**
     * Notes what the loss will communicate.
     *
     * @param pass the pass of one rank
     * @param predictions the output of the network
     */
    void forecast(PassForecast pass, ForecastArray predictions);

    /**
     * Refuses predictions that a loss cannot be computed of, which knows nothing of ranks.
     *
     * @param loss the loss
     * @param predictions the output of the network
     * @throws IllegalArgumentException if a rank has a slice of the features
     */
    static void checkWhole(Loss loss, ForecastArray predictions) {
        Errors.check(
                !predictions.region().isShard(),
                "%s cannot be computed of slices of the features: use"
                        + " VocabParallelCrossEntropyLoss, or let a layer with"
                        + " optGatherOutput(true) be the last",
                loss.getName());
    }
}

package io.djltp.spark.ml;

import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;

import io.djltp.checkpoint.Resumable;
import io.djltp.spark.SparkRanks;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** Keeps the loss of each epoch, and tells the driver of it. */
final class EpochLosses extends TrainingListenerAdapter implements Resumable {

    private final List<Double> all = new ArrayList<>();
    private final SparkRanks ranks;
    private final int epochs;

    EpochLosses(SparkRanks ranks, int epochs) {
        this.ranks = ranks;
        this.epochs = epochs;
    }

    double[] all() {
        return all.stream().mapToDouble(Double::doubleValue).toArray();
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        double loss = trainer.getTrainingResult().getTrainLoss();
        all.add(loss);
        ranks.report(
                String.format(Locale.ROOT, "epoch %d of %d: loss %.5f", all.size(), epochs, loss));
    }

    /** {@inheritDoc} */
    @Override
    public JsonElement saveState() {
        JsonArray saved = new JsonArray();
        all.forEach(saved::add);
        return saved;
    }

    /** {@inheritDoc} */
    @Override
    public void restoreState(JsonElement state) {
        all.clear();
        state.getAsJsonArray().forEach(loss -> all.add(loss.getAsDouble()));
    }
}

package io.djltp.examples.train;

import com.google.gson.annotations.SerializedName;

import java.util.ArrayList;
import java.util.List;

/** The figures of a training run, as {@code --json} writes them. */
final class TrainReport {

    int classes;
    String languages;
    int ranks;
    String mode; // null on a mesh
    String mesh; // null in a mode
    String head;
    String optimizer;
    int dim;
    int batch;
    int seed;
    int steps;

    /** The loss of every step. */
    List<Float> loss = new ArrayList<>();

    /** The share of held-out words whose best lemma is right. */
    double top1;

    /** The share of held-out words with a right lemma among the five best. */
    double top5;

    @SerializedName("samples_per_second")
    double samplesPerSecond;

    @SerializedName("peak_rss_bytes")
    Long peakRssBytes;

    /** The time of the training steps. */
    double seconds;

    @SerializedName("total_seconds")
    double totalSeconds;
}

package io.djltp.examples.lm;

import com.google.gson.annotations.SerializedName;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The figures of a run, as {@code --json} writes them. */
final class LmReport {

    int ranks;
    String mesh; // null without --mesh

    @SerializedName("sequence_parallel")
    boolean sequenceParallel;

    int layers;
    int width;
    int heads;

    @SerializedName("kv_heads")
    int keyValueHeads;

    int context;
    int vocabulary;
    long parameters;
    int batch;
    int seed;
    int steps;

    /** The loss of every step. */
    List<Float> loss = new ArrayList<>();

    @SerializedName("held_out_loss")
    double heldOutLoss;

    /** What rank 0 calls in a step, by part of the step and operation; null in short runs. */
    Map<String, Map<String, Long>> collectives;

    String sample;

    @SerializedName("characters_per_second")
    double charactersPerSecond;

    @SerializedName("peak_rss_bytes")
    Long peakRssBytes;

    /** The time of the training steps. */
    double seconds;

    @SerializedName("total_seconds")
    double totalSeconds;

    /** Returns counts by the names of the operations. */
    static Map<String, Long> byName(CollectiveCounts counts) {
        Map<String, Long> named = new TreeMap<>();
        for (Collective collective : Collective.values()) {
            if (counts.get(collective) > 0) {
                named.put(collective.toString(), counts.get(collective));
            }
        }
        return named;
    }
}

package io.djltp.checkpoint;

import ai.djl.metric.Metric;
import ai.djl.metric.Metrics;
import ai.djl.metric.Unit;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.List;
import java.util.Map;

/**
 * The metrics of a run: of each name the newest values, as numbers of 64 bits in base 64, and their
 * unit. When they were measured, and other dimensions than the host's, are not kept.
 */
final class SavedMetrics {

    /** How many values of a name are kept: a checkpoint is written often, and a run may be long. */
    static final int MOST = 10_000;

    private SavedMetrics() {}

    static JsonObject of(Metrics metrics) {
        JsonObject all = new JsonObject();
        for (String name : metrics.getMetricNames()) {
            List<Metric> values = metrics.getMetric(name);
            int first = Math.max(0, values.size() - MOST);
            ByteBuffer bytes = ByteBuffer.allocate(Double.BYTES * (values.size() - first));
            values.subList(first, values.size()).forEach(each -> bytes.putDouble(each.getValue()));
            JsonObject saved = new JsonObject();
            saved.addProperty("unit", values.get(0).getUnit().name());
            saved.addProperty("values", Base64.getEncoder().encodeToString(bytes.array()));
            all.add(name, saved);
        }
        return all;
    }

    /** Adds what was saved to metrics. */
    static void restore(JsonObject all, Metrics metrics) {
        for (Map.Entry<String, JsonElement> each : all.entrySet()) {
            JsonObject saved = each.getValue().getAsJsonObject();
            Unit unit = Unit.valueOf(saved.get("unit").getAsString());
            byte[] bytes = Base64.getDecoder().decode(saved.get("values").getAsString());
            ByteBuffer values = ByteBuffer.wrap(bytes);
            while (values.hasRemaining()) {
                metrics.addMetric(each.getKey(), values.getDouble(), unit);
            }
        }
    }
}

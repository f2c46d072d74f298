package io.djltp.checkpoint;

import ai.djl.metric.Metric;
import ai.djl.metric.Metrics;
import ai.djl.metric.Unit;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.CheckpointException;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
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

    /**
     * The values of a metric.
     *
     * @param unit their unit
     * @param values the values, as numbers of 64 bits
     */
    record Values(Unit unit, ByteBuffer values) {}

    /** Reads what {@link #of} has returned. */
    static Map<String, Values> read(SavedMembers saved) throws CheckpointException {
        Map<String, Values> all = new LinkedHashMap<>();
        for (String name : saved.names()) {
            SavedMembers metric = saved.object(name);
            String unit = metric.text("unit");
            if (Arrays.stream(Unit.values()).noneMatch(each -> each.name().equals(unit))) {
                throw metric.wrong("unit", "is " + unit + ", which is no unit");
            }
            byte[] bytes = metric.bytes("values");
            if (bytes.length % Double.BYTES != 0) {
                throw metric.wrong("values", "are " + bytes.length + " bytes, not numbers of 8");
            }
            all.put(name, new Values(Unit.valueOf(unit), ByteBuffer.wrap(bytes)));
        }
        return all;
    }

    /** Adds what was read to metrics. */
    static void restore(Map<String, Values> all, Metrics metrics) {
        all.forEach(
                (name, saved) -> {
                    ByteBuffer values = saved.values();
                    while (values.hasRemaining()) {
                        metrics.addMetric(name, values.getDouble(), saved.unit());
                    }
                });
    }
}

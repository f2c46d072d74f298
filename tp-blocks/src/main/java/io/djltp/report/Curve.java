package io.djltp.report;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;

import java.util.Arrays;

/**
 * Values by step, in bounded memory: when there are too many points, each two neighbours become
 * their mean, and from then on a point is the mean of twice as many values.
 */
final class Curve {

    /** More points than pixels show nothing more. */
    static final int CAPACITY = 1024;

    private final String chart;
    private final String name;
    private final String unit;
    private final long[] steps = new long[CAPACITY];
    private final double[] values = new double[CAPACITY];
    private int size;
    private int perPoint = 1;
    private double sum; // of the values of the point that is not complete
    private int summed;
    private long lastStep;

    Curve(String chart, String name, String unit) {
        this.chart = chart;
        this.name = name;
        this.unit = unit;
    }

    void add(long step, double value) {
        sum += value;
        lastStep = step;
        if (++summed == perPoint) {
            steps[size] = step;
            values[size++] = sum / summed;
            sum = 0;
            summed = 0;
            if (size == CAPACITY) {
                halve();
            }
        }
    }

    private void halve() {
        for (int i = 0; i < CAPACITY / 2; i++) {
            values[i] = (values[2 * i] + values[2 * i + 1]) / 2;
            steps[i] = steps[2 * i + 1];
        }
        size = CAPACITY / 2;
        perPoint *= 2;
    }

    /** Returns the points so far; the last may be of fewer values. */
    JsonObject toJson() {
        JsonObject json = new JsonObject();
        json.addProperty("chart", chart);
        json.addProperty("name", name);
        json.addProperty("unit", unit);
        json.addProperty("mean", perPoint);
        JsonArray x = new JsonArray();
        JsonArray y = new JsonArray();
        Arrays.stream(steps, 0, size).forEach(x::add);
        Arrays.stream(values, 0, size).forEach(value -> addFinite(y, value));
        if (summed > 0) {
            x.add(lastStep);
            addFinite(y, sum / summed);
        }
        json.add("x", x);
        json.add("y", y);
        return json;
    }

    private static void addFinite(JsonArray array, double value) {
        if (Double.isFinite(value)) {
            array.add((float) value);
        } else {
            array.add((Number) null); // JSON has no NaN: a gap
        }
    }
}

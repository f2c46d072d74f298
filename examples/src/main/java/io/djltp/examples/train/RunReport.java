package io.djltp.examples.train;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.Resumable;
import io.djltp.examples.JsonFile;
import io.djltp.internal.report.SystemMemory;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Scanner;

/**
 * The figures of a run, as {@code --json} writes them. Losses and times go on after a checkpoint.
 */
public final class RunReport implements Resumable {

    /** The loss of every step. */
    public final List<Float> loss = new ArrayList<>();

    private final Map<String, Object> figures = new LinkedHashMap<>();
    private final long start = System.nanoTime();
    private double before; // seconds of the run before a checkpoint
    private double trainedBefore; // seconds of its steps
    private long begin = start; // of the steps, later by what was no step

    /** Begins a run. */
    public RunReport() {}

    /**
     * Adds a figure.
     *
     * @param name its name
     * @param value its value, or {@code null}: it is left out
     */
    public void put(String name, @Nullable Object value) {
        figures.put(name, value);
    }

    /** Begins the steps. */
    public void begin() {
        begin = System.nanoTime();
    }

    /**
     * Leaves time out that was not training.
     *
     * @param nanos the nanoseconds
     */
    public void skip(long nanos) {
        begin += nanos;
    }

    /**
     * Returns the time of the training steps so far, those before a checkpoint included.
     *
     * @return the seconds
     */
    public double seconds() {
        return trainedBefore + (System.nanoTime() - begin) / 1e9;
    }

    /**
     * Prints how fast the steps were.
     *
     * @param out where to print
     * @param batch the rows of a step
     * @param seconds how long the steps took
     */
    void printSteps(PrintStream out, int batch, double seconds) {
        int steps = loss.size();
        out.printf(
                Locale.ROOT,
                "%n%,d steps in %.0f s, %.0f rows/s, loss %.4f%n",
                steps,
                seconds,
                steps * (double) batch / seconds,
                steps == 0 ? Double.NaN : loss.get(steps - 1));
    }

    private double totalSeconds() {
        return before + (System.nanoTime() - start) / 1e9;
    }

    /**
     * Ends a run, and writes its figures.
     *
     * @param json the file, or {@code null}
     * @throws IOException if it cannot be written
     */
    public void write(@Nullable Path json) throws IOException {
        put("loss", loss);
        put("total_seconds", totalSeconds());
        SystemMemory.peakResident()
                .ifPresent(bytes -> figures.putIfAbsent("peak_rss_bytes", bytes));
        JsonFile.write(json, figures);
    }

    /** {@inheritDoc} */
    @Override
    public JsonElement saveState() {
        JsonObject state = new JsonObject();
        // as words: JSON has no NaN
        state.addProperty("loss", String.join(" ", loss.stream().map(String::valueOf).toList()));
        state.addProperty("seconds", seconds());
        state.addProperty("total_seconds", totalSeconds());
        return state;
    }

    /** {@inheritDoc} */
    @Override
    public void restoreState(JsonElement state) {
        JsonObject saved = state.getAsJsonObject();
        loss.clear();
        new Scanner(saved.get("loss").getAsString())
                .forEachRemaining(each -> loss.add(Float.valueOf(each)));
        trainedBefore = saved.get("seconds").getAsDouble();
        before = saved.get("total_seconds").getAsDouble();
        begin();
    }
}

package io.djltp.examples.train;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.annotations.SerializedName;

import io.djltp.checkpoint.Resumable;
import io.djltp.report.SystemMemory;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

/**
 * The figures of a run, as {@code --json} writes them. Losses and times go on after a checkpoint.
 */
public abstract class RunReport implements Resumable {

    /** The loss of every step. */
    public final List<Float> loss = new ArrayList<>();

    /** The time of the training steps. */
    public double seconds;

    /** The time of the run. */
    @SerializedName("total_seconds")
    public double totalSeconds;

    /** The largest resident memory, or {@code null} where nobody says it. */
    @SerializedName("peak_rss_bytes")
    public Long peakRssBytes;

    private final transient long start = System.nanoTime();
    private transient double before; // seconds of the run before a checkpoint
    private transient double trainedBefore; // seconds of its steps
    private transient long begin = start; // of the steps, later by what was no step

    /** Begins a run. */
    protected RunReport() {}

    /** Begins the steps. */
    public void begin() {
        begin = System.nanoTime();
    }

    /**
     * Leaves time out that was not training.
     *
     * @param nanos how long it was
     */
    void skip(long nanos) {
        begin += nanos;
    }

    /**
     * Takes the time of the training steps so far, those before a checkpoint included.
     *
     * @return the seconds
     */
    public double takeTime() {
        seconds = trainedBefore + (System.nanoTime() - begin) / 1e9;
        return seconds;
    }

    /** Takes the largest memory so far. */
    void takeMemory() {
        SystemMemory.peakResident().ifPresent(bytes -> peakRssBytes = bytes);
    }

    /** Ends a run. */
    public void finish() {
        if (peakRssBytes == null) {
            takeMemory();
        }
        totalSeconds = totalSoFar();
    }

    private double totalSoFar() {
        return before + (System.nanoTime() - start) / 1e9;
    }

    /** {@inheritDoc} */
    @Override
    public JsonElement saveState() {
        ByteBuffer bytes = ByteBuffer.allocate(Float.BYTES * loss.size());
        loss.forEach(bytes::putFloat);
        JsonObject state = new JsonObject();
        // there may be many
        state.addProperty("loss", Base64.getEncoder().encodeToString(bytes.array()));
        state.addProperty("seconds", takeTime());
        state.addProperty("total_seconds", totalSoFar());
        return state;
    }

    /** {@inheritDoc} */
    @Override
    public void restoreState(JsonElement state) {
        JsonObject saved = state.getAsJsonObject();
        ByteBuffer bytes =
                ByteBuffer.wrap(Base64.getDecoder().decode(saved.get("loss").getAsString()));
        loss.clear();
        while (bytes.hasRemaining()) {
            loss.add(bytes.getFloat());
        }
        trainedBefore = saved.get("seconds").getAsDouble();
        before = saved.get("total_seconds").getAsDouble();
        begin();
    }
}

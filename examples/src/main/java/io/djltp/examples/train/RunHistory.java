package io.djltp.examples.train;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.checkpoint.Resumable;

import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.List;

/** The losses of a run and the time that it took, which go on after a checkpoint. */
public class RunHistory implements Resumable {

    private final List<Float> losses;
    private final long start = System.nanoTime();
    private double before; // seconds of the run before a checkpoint
    private double trainedBefore; // seconds of its steps
    private long begin = start; // of the steps, later by what was no step

    /**
     * Begins a run.
     *
     * @param losses where the loss of every step goes
     */
    public RunHistory(List<Float> losses) {
        this.losses = losses;
    }

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
     * Returns the time of the training steps so far, those before a checkpoint included.
     *
     * @return the seconds
     */
    public double seconds() {
        return trainedBefore + (System.nanoTime() - begin) / 1e9;
    }

    /**
     * Returns the time of the run so far, that before a checkpoint included.
     *
     * @return the seconds
     */
    public double totalSeconds() {
        return before + (System.nanoTime() - start) / 1e9;
    }

    /** {@inheritDoc} */
    @Override
    public JsonElement saveState() {
        ByteBuffer bytes = ByteBuffer.allocate(Float.BYTES * losses.size());
        losses.forEach(bytes::putFloat);
        JsonObject state = new JsonObject();
        // there may be many
        state.addProperty("loss", Base64.getEncoder().encodeToString(bytes.array()));
        state.addProperty("seconds", seconds());
        state.addProperty("total_seconds", totalSeconds());
        return state;
    }

    /** {@inheritDoc} */
    @Override
    public void restoreState(JsonElement state) {
        JsonObject saved = state.getAsJsonObject();
        ByteBuffer bytes =
                ByteBuffer.wrap(Base64.getDecoder().decode(saved.get("loss").getAsString()));
        losses.clear();
        while (bytes.hasRemaining()) {
            losses.add(bytes.getFloat());
        }
        trainedBefore = saved.get("seconds").getAsDouble();
        before = saved.get("total_seconds").getAsDouble();
        begin();
    }
}

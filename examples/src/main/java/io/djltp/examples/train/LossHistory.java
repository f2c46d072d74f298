package io.djltp.examples.train;

import com.google.gson.JsonElement;
import com.google.gson.JsonPrimitive;

import java.nio.ByteBuffer;
import java.util.Base64;
import java.util.List;

/** The losses of a run in a checkpoint: numbers of 32 bits in base 64, as there may be many. */
public final class LossHistory {

    private LossHistory() {}

    /**
     * Returns losses for a checkpoint.
     *
     * @param losses the losses
     * @return a text
     */
    public static JsonElement encode(List<Float> losses) {
        ByteBuffer bytes = ByteBuffer.allocate(Float.BYTES * losses.size());
        losses.forEach(bytes::putFloat);
        return new JsonPrimitive(Base64.getEncoder().encodeToString(bytes.array()));
    }

    /**
     * Reads losses from a checkpoint.
     *
     * @param text what {@link #encode} returned
     * @param losses where they go
     */
    public static void decode(JsonElement text, List<Float> losses) {
        losses.clear();
        ByteBuffer bytes = ByteBuffer.wrap(Base64.getDecoder().decode(text.getAsString()));
        while (bytes.hasRemaining()) {
            losses.add(bytes.getFloat());
        }
    }
}

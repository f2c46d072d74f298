package io.djltp.checkpoint.store;

import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import java.util.ArrayList;
import java.util.List;

/** A tensor of a checkpoint in the words of the index. */
final class CutJson {

    private CutJson() {}

    /**
     * Returns a tensor as JSON: its ranges are {@code [[[begin, end], ..] of part 0, ..]} along the
     * axis.
     */
    static JsonObject toJson(CutTensor tensor) {
        JsonObject json = new JsonObject();
        json.addProperty("name", tensor.name());
        json.addProperty("dtype", tensor.type().asSafetensors());
        JsonArray shape = new JsonArray();
        for (long length : tensor.shape().getShape()) {
            shape.add(length);
        }
        json.add("shape", shape);
        if (!tensor.isWhole()) {
            json.addProperty("axis", tensor.axis());
            json.add("ranges", ranges(tensor.cut()));
        }
        return json;
    }

    private static JsonArray ranges(Cut cut) {
        JsonArray parts = new JsonArray();
        for (int part = 0; part < cut.getRanks(); part++) {
            JsonArray ranges = new JsonArray();
            for (ShardRange range : cut.getRanges(part)) {
                JsonArray bounds = new JsonArray();
                bounds.add(range.start());
                bounds.add(range.end());
                ranges.add(bounds);
            }
            parts.add(ranges);
        }
        return parts;
    }

    /**
     * Reads what {@link #toJson} returned.
     *
     * @throws RuntimeException if it is something else
     */
    static CutTensor of(JsonObject json) {
        String name = json.get("name").getAsString();
        DataType type = DataType.fromSafetensors(json.get("dtype").getAsString());
        JsonArray lengths = json.getAsJsonArray("shape");
        long[] shape = new long[lengths.size()];
        for (int i = 0; i < shape.length; i++) {
            shape[i] = lengths.get(i).getAsLong();
        }
        if (!json.has("axis")) {
            return CutTensor.whole(name, type, new Shape(shape));
        }
        int axis = json.get("axis").getAsInt();
        List<List<ShardRange>> ranges = new ArrayList<>();
        for (JsonElement part : json.getAsJsonArray("ranges")) {
            List<ShardRange> own = new ArrayList<>();
            for (JsonElement each : part.getAsJsonArray()) {
                long begin = each.getAsJsonArray().get(0).getAsLong();
                long end = each.getAsJsonArray().get(1).getAsLong();
                own.add(new ShardRange(begin, end - begin));
            }
            ranges.add(own);
        }
        Cut cut = Cut.of(shape[axis], ranges.size(), ranges::get);
        return new CutTensor(name, type, new Shape(shape), axis, cut);
    }
}

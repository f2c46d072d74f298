package io.djltp.checkpoint.store;

import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;

import java.io.IOException;
import java.nio.charset.StandardCharsets;

/**
 * What the index says of a file of tensors. The process that wrote the file tells that of rank 0 in
 * the same words, in a file of its own.
 *
 * @param file the name of the file
 * @param checksums its checksums
 */
record IndexedPart(String file, BlockChecksums checksums) {

    JsonObject toJson() {
        JsonObject json = new JsonObject();
        json.addProperty("file", file);
        json.addProperty("bytes", checksums.size());
        json.addProperty("block_bytes", BlockChecksums.BLOCK);
        json.addProperty("crc32c", checksums.encode());
        return json;
    }

    byte[] encode() {
        return (toJson() + "\n").getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Reads what {@link #toJson} returned.
     *
     * @throws CheckpointException if it is something else
     */
    static IndexedPart of(JsonObject json) throws CheckpointException {
        try {
            int block = json.get("block_bytes").getAsInt();
            if (block != BlockChecksums.BLOCK) {
                throw new CheckpointException("its checksums are those of " + block + " bytes");
            }
            return new IndexedPart(
                    json.get("file").getAsString(),
                    BlockChecksums.decode(
                            json.get("bytes").getAsLong(), json.get("crc32c").getAsString()));
        } catch (RuntimeException e) {
            throw new CheckpointException("it does not describe a file: " + e.getMessage(), e);
        }
    }

    static IndexedPart decode(byte[] text) throws IOException {
        try {
            return of(
                    JsonParser.parseString(new String(text, StandardCharsets.UTF_8))
                            .getAsJsonObject());
        } catch (JsonParseException | IllegalStateException e) {
            throw new CheckpointException("it does not describe a file: " + e.getMessage(), e);
        }
    }
}

package io.djltp.exchange;

import io.djltp.safetensors.StoredTensor;

import java.io.IOException;
import java.nio.ByteBuffer;

/** Compares tensors, a chunk at a time. */
final class EqualTensors {

    private static final int CHUNK = 1 << 20;

    private final WeightFiles files;

    EqualTensors(WeightFiles files) {
        this.files = files;
    }

    boolean areEqual(String one, String other) throws IOException {
        StoredTensor first = files.get(one);
        StoredTensor second = files.get(other);
        if (!first.type().equals(second.type()) || !first.shape().equals(second.shape())) {
            return false;
        }
        for (long at = 0; at < first.bytes(); at += CHUNK) {
            int count = (int) Math.min(CHUNK, first.bytes() - at);
            if (!read(first, at, count).equals(read(second, at, count))) {
                return false;
            }
        }
        return true;
    }

    private ByteBuffer read(StoredTensor tensor, long start, int count) throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate(count);
        files.fileOf(tensor.name()).read(tensor, start, bytes);
        return bytes.flip();
    }
}

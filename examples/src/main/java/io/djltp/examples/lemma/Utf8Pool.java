package io.djltp.examples.lemma;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * Many strings as UTF-8 in one growing array, each behind its length in two bytes. A string is
 * named by its offset, so ten million of them cost no object at all.
 */
final class Utf8Pool {

    private static final int PREFIX = 2;
    private static final int MAX_LENGTH = 0xffff;

    private byte[] bytes;
    private int size;

    Utf8Pool(int capacity) {
        bytes = new byte[capacity];
    }

    /** Appends a string in UTF-8, the first bytes of an array, and returns its offset. */
    int append(byte[] text, int length) {
        if (length > MAX_LENGTH) {
            throw new IllegalArgumentException("a word of " + length + " bytes is too long");
        }
        ensure(PREFIX + length);
        int offset = size;
        bytes[offset] = (byte) (length >> 8);
        bytes[offset + 1] = (byte) length;
        System.arraycopy(text, 0, bytes, offset + PREFIX, length);
        size += PREFIX + length;
        return offset;
    }

    /** Appends all of another pool and returns by how much its offsets moved. */
    int append(Utf8Pool other) {
        int shift = size;
        ensure(other.size);
        System.arraycopy(other.bytes, 0, bytes, size, other.size);
        size += other.size;
        return shift;
    }

    /** Drops the string at an offset and all that follow. */
    void truncate(int offset) {
        size = offset;
    }

    int size() {
        return size;
    }

    int length(int offset) {
        return (bytes[offset] & 0xff) << 8 | bytes[offset + 1] & 0xff;
    }

    String get(int offset) {
        return new String(bytes, offset + PREFIX, length(offset), StandardCharsets.UTF_8);
    }

    boolean equal(int a, int b) {
        return equal(a, this, b);
    }

    boolean equal(int offset, Utf8Pool other, int otherOffset) {
        int end = offset + PREFIX + length(offset);
        int otherEnd = otherOffset + PREFIX + other.length(otherOffset);
        return Arrays.equals(bytes, offset, end, other.bytes, otherOffset, otherEnd);
    }

    /** Returns 64 well mixed bits that depend on the string and the seed alone. */
    long hash(int offset, long seed) {
        long hash = seed ^ 0xcbf29ce484222325L;
        int end = offset + PREFIX + length(offset);
        for (int i = offset + PREFIX; i < end; i++) {
            hash = (hash ^ bytes[i]) * 0x100000001b3L;
        }
        hash = (hash ^ hash >>> 33) * 0xff51afd7ed558ccdL;
        hash = (hash ^ hash >>> 33) * 0xc4ceb9fe1a85ec53L;
        return hash ^ hash >>> 33;
    }

    private void ensure(long more) {
        long needed = size + more;
        if (needed <= bytes.length) {
            return;
        }
        if (needed > Integer.MAX_VALUE - 8) {
            throw new IllegalStateException("the words need more than 2 GiB");
        }
        long grown = Math.max(needed, bytes.length + (bytes.length >> 1));
        bytes = Arrays.copyOf(bytes, (int) Math.min(grown, Integer.MAX_VALUE - 8));
    }
}

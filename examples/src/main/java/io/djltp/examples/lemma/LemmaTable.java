package io.djltp.examples.lemma;

import java.util.Arrays;

/** The lemmas of one language, numbered in the order of their first appearance. */
final class LemmaTable {

    private final Utf8Pool pool = new Utf8Pool(1 << 16);
    private int[] offsets = new int[1 << 12];
    private int[] slots = new int[1 << 13];
    private int count;

    /** Returns the number of a lemma, a new one if it has not been seen before. */
    int intern(byte[] lemma, int length) {
        int offset = pool.append(lemma, length);
        int slot = slotOf(offset);
        if (slots[slot] != 0) {
            pool.truncate(offset);
            return slots[slot] - 1;
        }
        if (count == offsets.length) {
            offsets = Arrays.copyOf(offsets, count << 1);
        }
        offsets[count] = offset;
        slots[slot] = ++count;
        if (2 * count > slots.length) {
            grow();
        }
        return count - 1;
    }

    int count() {
        return count;
    }

    int offset(int number) {
        return offsets[number];
    }

    Utf8Pool pool() {
        return pool;
    }

    /** Returns the slot that holds the string at an offset, or the free slot where it belongs. */
    private int slotOf(int offset) {
        int mask = slots.length - 1;
        int slot = (int) pool.hash(offset, 0) & mask;
        while (slots[slot] != 0 && !pool.equal(offset, offsets[slots[slot] - 1])) {
            slot = slot + 1 & mask;
        }
        return slot;
    }

    private void grow() {
        slots = new int[slots.length << 1];
        for (int i = 0; i < count; i++) {
            slots[slotOf(offsets[i])] = i + 1;
        }
    }
}

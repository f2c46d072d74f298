package io.djltp.internal.files;

/**
 * A pseudo-random order of the numbers below a size that needs no memory: four rounds of a Feistel
 * network over the next power of four, walked until the result is in range.
 */
public final class Permutation {

    private static final int ROUNDS = 4;

    private final int size;
    private final long key;
    private final int halfBits;
    private final int mask;

    /**
     * Creates an order.
     *
     * @param size the number of numbers
     * @param key which order
     */
    public Permutation(int size, long key) {
        this.size = size;
        this.key = key;
        int bits = Integer.SIZE - Integer.numberOfLeadingZeros(Math.max(1, size - 1));
        halfBits = (bits + 1) / 2;
        mask = (1 << halfBits) - 1;
    }

    /**
     * Returns the number at a place of the order.
     *
     * @param place the place, from 0
     * @return the number, from 0
     */
    public int get(int place) {
        long number = place;
        do {
            number = encrypt(number);
        } while (number >= size);
        return (int) number;
    }

    /**
     * Returns a key that depends on a seed and a number.
     *
     * @param seed the seed
     * @param number the number, such as that of a pass
     * @return the key
     */
    public static long key(long seed, long number) {
        return mix(mix(seed + 0x9e3779b97f4a7c15L) + number);
    }

    private long encrypt(long number) {
        long left = number >>> halfBits;
        long right = number & mask;
        for (int round = 1; round <= ROUNDS; round++) {
            long mixed = mix(right + round * 0x9e3779b97f4a7c15L ^ key) & mask;
            long next = left ^ mixed;
            left = right;
            right = next;
        }
        return left << halfBits | right;
    }

    private static long mix(long bits) {
        long mixed = (bits ^ bits >>> 30) * 0xbf58476d1ce4e5b9L;
        mixed = (mixed ^ mixed >>> 27) * 0x94d049bb133111ebL;
        return mixed ^ mixed >>> 31;
    }
}

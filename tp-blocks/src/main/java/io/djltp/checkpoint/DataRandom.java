package io.djltp.checkpoint;

import ai.djl.util.RandomUtils;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Random;

/**
 * The random numbers from which DJL's samplers draw the order of an epoch, and its transforms what
 * they do to an image: {@link RandomUtils#RANDOM}, one generator for the process.
 *
 * <p>A {@link Random} says its state in one way alone, when it is serialized. Its last fields there
 * are {@code boolean haveNextNextGaussian, double nextNextGaussian, long seed} and an end mark. The
 * second number of a pair of normal ones is not restored: DJL's samplers draw none.
 */
final class DataRandom {

    /** What {@link Random#setSeed} adds to a seed: Knuth's multiplier. */
    private static final long SCRAMBLE = 0x5DEECE66DL;

    private static final int SEED_FROM_END = Long.BYTES + 1;

    private DataRandom() {}

    /** Returns the state of 48 bits. */
    static long state() {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
            out.writeObject(RandomUtils.RANDOM);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return ByteBuffer.wrap(bytes.toByteArray()).getLong(bytes.size() - SEED_FROM_END);
    }

    /** Goes on from a state. */
    static void restore(long state) {
        RandomUtils.RANDOM.setSeed(state ^ SCRAMBLE);
    }
}

package io.djltp.internal.head;

import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Arrays;
import java.util.BitSet;
import java.util.SplittableRandom;

/**
 * Draws the classes that a training step computes with: a random share of all classes, and the
 * labels of the batch. Which classes are drawn follows from the seed, the step and the number of
 * classes alone. So a step is over the same classes however these are cut over ranks, and a rank
 * draws no more than its own.
 *
 * <p>After Partial FC (An et al., 2022, <a
 * href="https://arxiv.org/abs/2203.15565">arXiv:2203.15565</a>), where random numbers of all
 * classes are sorted for it, and labels count as a part of the share; here they come on top, so
 * that each other class is drawn with the same probability whatever the labels are.
 *
 * <p>All classes are divided into blocks of consecutive ones, whose length follows from the share.
 * Of n drawn classes, block b has {@code floor(s * end(b) + u) - floor(s * start(b) + u)} with
 * {@code s = n / classes} and a {@code u} from 0 to below 1 that is random in each step: n in all,
 * and {@code s} times its length on average. Within a block each set of classes is as likely as any
 * other. A block that lies on several ranks is drawn by each of them.
 */
final class ClassSampler {

    /** About how many classes of a block are drawn, or left out if these are fewer. */
    private static final double OF_BLOCK = 32;

    private static final long SMALLEST_BLOCK = 64;
    private static final long LARGEST_BLOCK = 1 << 16;
    private static final long GAMMA = 0x9E3779B97F4A7C15L; // that of SplitMix64

    private final ClassShard shard;
    private final long classes;
    private final long count; // that is drawn of all classes
    private final long seed;
    private final int blockLength;
    private final BitSet block = new BitSet(); // which classes of a block are computed with

    /**
     * Creates the sampler of one rank.
     *
     * @param shard the classes of the rank
     * @param share the share of all classes that is drawn, above 0 and up to 1
     * @param seed the seed; draws also depend on the step
     * @throws IllegalArgumentException if the share is less than two classes
     */
    ClassSampler(ClassShard shard, float share, long seed) {
        this.shard = shard;
        this.seed = seed;
        classes = shard.total();
        count = count(share, classes);
        double rarer = Math.min(count, classes - count) / (double) classes;
        long wanted = rarer == 0 ? LARGEST_BLOCK : (long) (OF_BLOCK / rarer);
        wanted = Math.max(SMALLEST_BLOCK, Math.min(LARGEST_BLOCK, wanted));
        blockLength = (int) Long.highestOneBit(wanted);
    }

    /**
     * Returns how many classes a share is.
     *
     * @throws IllegalArgumentException if it is less than two
     */
    static long count(float share, long classes) {
        long count = Math.round((double) share * classes);
        if (count < HeadOptions.LEAST_CLASSES) {
            throw Errors.argument(
                    "A sample share of %s of %s classes leaves no negatives: it is %s. The least"
                            + " share is %s",
                    share, classes, count == 1 ? "1 class" : "no class", leastShare(classes));
        }
        return count;
    }

    /** Returns the least share, in three digits, that is rounded to enough classes. */
    private static BigDecimal leastShare(long classes) {
        double needed = 1.000001 * (HeadOptions.LEAST_CLASSES - 0.5) / Math.max(1, classes);
        return new BigDecimal(Math.min(1, needed)).round(new MathContext(3, RoundingMode.UP));
    }

    /** Returns how many classes of the rank a step of so many rows computes with at most. */
    long most(long rows) {
        long most = rows;
        for (ShardRange range : shard.ranges()) {
            for (long b = range.start() / blockLength; start(b) < range.end(); b++) {
                long inside = Math.min(range.end(), end(b)) - Math.max(range.start(), start(b));
                most += Math.max(0, Math.min(inside, 2 + count * (end(b) - start(b)) / classes));
            }
        }
        return Math.min(shard.length(), most);
    }

    /**
     * Returns how many classes all ranks compute with together.
     *
     * @param step the step
     * @param labels the labels of the batch that count, over all ranks
     * @return the number of classes
     */
    long countClasses(long step, long[] labels) {
        long[] distinct = Arrays.stream(labels).sorted().distinct().toArray();
        long added = 0;
        long drawn = -1;
        for (long label : distinct) {
            if (label / blockLength != drawn) {
                drawn = label / blockLength;
                drawBlock(step, drawn);
            }
            added += block.get((int) (label - start(drawn))) ? 0 : 1;
        }
        return count + added;
    }

    /**
     * Draws the classes of a step. The same step and labels have the same classes.
     *
     * @param step the step
     * @param labels the columns of the labels on this rank in ascending order, with or without
     *     repetitions
     * @return the columns of the rank's classes, in ascending order
     */
    long[] draw(long step, long[] labels) {
        long[] drawn = new long[(int) most(labels.length)];
        int size = 0;
        int next = 0; // label
        long column = 0; // of the range's first class
        for (ShardRange range : shard.ranges()) {
            long toClass = range.start() - column;
            for (long b = range.start() / blockLength; start(b) < range.end(); b++) {
                drawBlock(step, b);
                long end = Math.min(range.end(), end(b));
                for (; next < labels.length && labels[next] + toClass < end; next++) {
                    block.set((int) (labels[next] + toClass - start(b)));
                }
                int i = block.nextSetBit((int) Math.max(0, range.start() - start(b)));
                for (; i >= 0 && i < end - start(b); i = block.nextSetBit(i + 1)) {
                    drawn[size++] = start(b) - toClass + i;
                }
            }
            column += range.length();
        }
        return Arrays.copyOf(drawn, size);
    }

    private long start(long index) {
        return index * blockLength;
    }

    private long end(long index) {
        return Math.min(classes, start(index) + blockLength);
    }

    /** Draws the classes of a block, each set of them with the same probability. */
    private void drawBlock(long step, long index) {
        long ofStep = mix(mix(seed) + step);
        double u = new SplittableRandom(ofStep).nextDouble(); // from 0 to below 1
        int length = (int) (end(index) - start(index));
        int wanted = (int) (countBefore(end(index), u) - countBefore(start(index), u));
        SplittableRandom random = new SplittableRandom(mix(ofStep + GAMMA * (index + 1)));
        boolean leaves = 2L * wanted > length; // those that are left out are fewer
        block.clear();
        for (int left = leaves ? length - wanted : wanted; left > 0; ) {
            int next = (int) ((random.nextLong() >>> Integer.SIZE) * length >>> Integer.SIZE);
            left -= block.get(next) ? 0 : 1;
            block.set(next);
        }
        if (leaves) {
            block.flip(0, length);
        }
    }

    /** Returns how many classes with lower numbers are drawn. */
    private long countBefore(long classNumber, double u) {
        return classNumber == classes
                ? count
                : (long) Math.floor((double) count * classNumber / classes + u);
    }

    private static long mix(long value) {
        return new SplittableRandom(value).nextLong();
    }
}

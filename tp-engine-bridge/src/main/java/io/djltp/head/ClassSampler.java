package io.djltp.head;

import io.djltp.cut.ShardRange;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Arrays;

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
    private final long[] block; // a bit for each class of a block: whether it is computed with

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
        block = new long[blockLength / Long.SIZE];
    }

    /**
     * Returns how many classes a share is.
     *
     * @throws IllegalArgumentException if it is less than two
     */
    static long count(float share, long classes) {
        long count = Math.round((double) share * classes);
        if (count < HeadOptions.LEAST_CLASSES) {
            throw new IllegalArgumentException(
                    ("A sample share of %s of %s classes leaves no negatives: it is %s."
                                    + " The least share is %s")
                            .formatted(
                                    share,
                                    classes,
                                    count == 1 ? "1 class" : "no class",
                                    leastShare(classes)));
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
            if (range.length() > 0) {
                for (long b = range.start() / blockLength; start(b) < range.end(); b++) {
                    long inside = Math.min(range.end(), end(b)) - Math.max(range.start(), start(b));
                    most += Math.min(inside, 1 + count * (end(b) - start(b)) / classes + 1);
                }
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
            added += isIn((int) (label - start(drawn))) ? 0 : 1;
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
        int nextLabel = 0;
        long column = 0; // of the range's first class
        for (ShardRange range : shard.ranges()) {
            long toClass = range.start() - column;
            if (range.length() > 0) {
                for (long b = range.start() / blockLength; start(b) < range.end(); b++) {
                    drawBlock(step, b);
                    long end = Math.min(range.end(), end(b));
                    while (nextLabel < labels.length && labels[nextLabel] + toClass < end) {
                        include((int) (labels[nextLabel++] + toClass - start(b)));
                    }
                    int first = (int) Math.max(0, range.start() - start(b));
                    int last = (int) (end - start(b));
                    size = collect(first, last, start(b) - toClass, drawn, size);
                }
            }
            column += range.length();
        }
        return size == drawn.length ? drawn : Arrays.copyOf(drawn, size);
    }

    private long start(long index) {
        return index * blockLength;
    }

    private long end(long index) {
        return Math.min(classes, start(index) + blockLength);
    }

    /** Draws the classes of a block, from all of its classes. */
    private void drawBlock(long step, long index) {
        long ofStep = mix(mix(seed) + step);
        double u = unit(mix(ofStep));
        int length = (int) (end(index) - start(index));
        int wanted = (int) (countBefore(end(index), u) - countBefore(start(index), u));
        long state = mix(ofStep + GAMMA * (index + 1));
        Arrays.fill(block, 0);
        if (2L * wanted <= length) {
            pick(wanted, length, state);
        } else {
            pick(length - wanted, length, state);
            for (int i = 0; i < block.length; i++) {
                block[i] = ~block[i];
            }
        }
    }

    /** Returns how many classes with lower numbers are drawn. */
    private long countBefore(long classNumber, double u) {
        return classNumber == classes
                ? count
                : (long) Math.floor((double) count * classNumber / classes + u);
    }

    /** Sets so many bits of a block, each set of bits with the same probability. */
    private void pick(int wanted, int length, long state) {
        long next = state;
        for (int left = wanted; left > 0; ) {
            next += GAMMA;
            int index = (int) ((finish(next) >>> Integer.SIZE) * length >>> Integer.SIZE);
            long bit = 1L << index;
            long word = block[index >> 6];
            left -= (word & bit) == 0 ? 1 : 0;
            block[index >> 6] = word | bit;
        }
    }

    private boolean isIn(int index) {
        return (block[index >> 6] & 1L << index) != 0;
    }

    private void include(int index) {
        block[index >> 6] |= 1L << index;
    }

    /** Adds the classes of a part of the block, in ascending order. */
    private int collect(int first, int last, long offset, long[] target, int from) {
        int size = from;
        for (int i = first >> 6; i << 6 < last; i++) {
            long word = block[i];
            if (i == first >> 6) {
                word &= -1L << first;
            }
            if (last - (i << 6) < Long.SIZE) {
                word &= (1L << last) - 1;
            }
            while (word != 0) {
                target[size++] = offset + (i << 6) + Long.numberOfTrailingZeros(word);
                word &= word - 1;
            }
        }
        return size;
    }

    /** Returns a number from 0 to below 1. */
    private static double unit(long random) {
        return (random >>> 11) * 0x1.0p-53;
    }

    private static long mix(long value) {
        return finish(value + GAMMA);
    }

    /** Makes neighbouring numbers unlike each other: the finalizer of SplitMix64. */
    private static long finish(long value) {
        long z = value;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }
}

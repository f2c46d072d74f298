package io.djltp.head;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.math.BigDecimal;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.Arrays;
import java.util.BitSet;
import java.util.SplittableRandom;

/**
 * Draws the classes that one rank computes a training step with: the labels of the batch that are
 * its own, and random others up to a share of its classes. If the labels alone are more, it is the
 * labels.
 *
 * <p>As in Partial FC (An et al., 2022, <a
 * href="https://arxiv.org/abs/2203.15565">arXiv:2203.15565</a>), where random numbers of all
 * classes are sorted for it; here a draw costs a bit for each class and a random number for each
 * class that is drawn or, if these are more than half, left out.
 */
final class ClassSampler {

    private static final Logger logger = LoggerFactory.getLogger(ClassSampler.class);

    private final long total;
    private final int ranks;
    private final int rank;
    private final float share;
    private final long seed;
    private final int classes; // of this rank
    private final BitSet drawn;
    private boolean warned;

    /**
     * Creates the sampler of one rank. The classes are cut into balanced ranges.
     *
     * @param total the number of classes of all ranks
     * @param rank the rank
     * @param ranks the number of ranks
     * @param share the share, above 0 and up to 1
     * @param seed the seed; draws also depend on the rank and the step
     * @throws IllegalArgumentException if the share is less than a class on some rank, or one class
     *     in all
     */
    ClassSampler(long total, int rank, int ranks, float share, long seed) {
        this.total = total;
        this.ranks = ranks;
        this.rank = rank;
        this.share = share;
        this.seed = seed;
        long least = ranks == 1 ? 2 : 1;
        long fewest = total / ranks;
        if (budget(fewest) < least) {
            throw new IllegalArgumentException(
                    "A sample share of "
                            + share
                            + " of "
                            + total
                            + " classes leaves no negatives: it is "
                            + budget(fewest)
                            + " of the "
                            + fewest
                            + " classes of a rank, of "
                            + ranks
                            + ". The least share is "
                            + leastShare(fewest, least));
        }
        classes = Math.toIntExact(Cut.balanced(total, ranks).getRange(rank).length());
        drawn = new BitSet(classes);
    }

    /** Returns the least share, in three digits, that is rounded to so many classes. */
    private static BigDecimal leastShare(long classes, long least) {
        double needed = 1.000001 * (least - 0.5) / Math.max(1, classes);
        return new BigDecimal(Math.min(1, needed)).round(new MathContext(3, RoundingMode.UP));
    }

    private long budget(long ofClasses) {
        return Math.round((double) share * ofClasses);
    }

    /** Returns how many classes are drawn at most of a batch of so many rows. */
    long most(long rows) {
        return Math.max(budget(classes), Math.min(rows, classes));
    }

    /**
     * Returns how many classes all ranks compute with together: each rank knows all labels.
     *
     * @param labels the labels that count, over all ranks
     * @return the number of classes
     */
    long countClasses(long[] labels) {
        long[] distinct = Arrays.stream(labels).sorted().distinct().toArray();
        long sum = 0;
        int next = 0;
        for (int i = 0; i < ranks; i++) {
            ShardRange range = Cut.balanced(total, ranks).getRange(i);
            int first = next;
            while (next < distinct.length && distinct[next] < range.end()) {
                next++;
            }
            sum += Math.max(budget(range.length()), next - first);
        }
        if (sum == distinct.length && sum < total) {
            warn(distinct.length);
        }
        return sum;
    }

    private void warn(int labels) {
        if (!warned) {
            logger.warn(
                    "A sample share of {} of {} classes leaves no place for negatives in a batch of"
                            + " {} labels: its classes are told apart from each other only. Set a"
                            + " share of more than {}",
                    share,
                    total,
                    labels,
                    (float) labels / total);
            warned = true;
        }
    }

    /**
     * Draws the classes of a step. The same step and labels have the same classes.
     *
     * @param step the step
     * @param positives the labels on this rank, counted from its first class, with or without
     *     repetitions
     * @return the classes in ascending order, counted from the first class of the rank
     */
    long[] draw(long step, long[] positives) {
        drawn.clear();
        for (long positive : positives) {
            drawn.set((int) positive);
        }
        int count = (int) Math.max(budget(classes), drawn.cardinality());
        SplittableRandom random = new SplittableRandom(mix(mix(mix(seed) + rank) + step));
        if (2L * count <= classes) {
            add(random, count - drawn.cardinality());
        } else {
            leaveOut(random, (BitSet) drawn.clone(), classes - count);
        }
        return drawn.stream().asLongStream().toArray();
    }

    private void add(SplittableRandom random, int count) {
        for (int left = count; left > 0; ) {
            int next = random.nextInt(classes);
            if (!drawn.get(next)) {
                drawn.set(next);
                left--;
            }
        }
    }

    private void leaveOut(SplittableRandom random, BitSet positives, int count) {
        drawn.set(0, classes);
        for (int left = count; left > 0; ) {
            int next = random.nextInt(classes);
            if (drawn.get(next) && !positives.get(next)) {
                drawn.clear(next);
                left--;
            }
        }
    }

    /** Makes neighbouring numbers unlike each other: the finalizer of SplitMix64. */
    private static long mix(long value) {
        long z = value + 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }
}

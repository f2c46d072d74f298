package io.djltp.conformance;

import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;

import java.util.List;
import java.util.SplittableRandom;

/**
 * Draws what a network of {@link RandomSweepTest} is made of.
 *
 * @param random the numbers
 * @param ranks the tensor-parallel ranks, which a cut axis has to be as long as
 * @param tokens the tokens of a row, [rows, tokens, features], or 0 of [rows, features]
 */
record Draws(SplittableRandom random, int ranks, int tokens) {

    /** Draws a number from one range, both ends included. */
    int between(int least, int most) {
        return random.nextInt(least, most + 1);
    }

    boolean coin() {
        return random.nextBoolean();
    }

    <T> T of(List<T> values) {
        return values.get(random.nextInt(values.size()));
    }

    /** Draws the length of an axis that is cut. */
    int cutLength(int more) {
        return between(ranks, ranks + more);
    }

    /**
     * Draws a number of classes that are cut, and of more than one: of one alone DJL's loss is 0,
     * and that of a fused head what is left of summands that cancel, which Adam makes as large as
     * any other gradient.
     */
    int classes(int more) {
        return Math.max(2, cutLength(more));
    }

    /** Draws lengths of one or more for each rank, or {@code null}: balanced. */
    Cut cut(long length) {
        if (coin() || ranks == 1) {
            return null;
        }
        long[] lengths = new long[ranks];
        long rest = length - ranks;
        for (int rank = 0; rank < ranks; rank++) {
            long more = rank == ranks - 1 ? rest : random.nextLong(rest + 1);
            lengths[rank] = 1 + more;
            rest -= more;
        }
        return Cut.ofLengths(lengths);
    }

    /** Returns the shape of a row with these features. */
    Shape row(long features) {
        return tokens == 0 ? new Shape(features) : new Shape(tokens, features);
    }
}

package io.djltp.conformance;

import ai.djl.nn.Block;

import io.djltp.cut.Cut;

import java.util.SplittableRandom;

/**
 * A kind of networks for {@link RandomSweepTest}: what is drawn once is made twice, of DJL's own
 * layers and of ours. A new family of blocks is one more class.
 */
interface SweptNetwork {

    /** The features of the input. */
    long inputs();

    /** The features of the output. */
    long outputs();

    /** The network of DJL's layers, or of ours: with the same parameters in the same order. */
    Block create(boolean cut);

    /** Draws a number from one range, both ends included. */
    static int draw(SplittableRandom random, int least, int most) {
        return random.nextInt(least, most + 1);
    }

    /** Draws lengths of one or more for each rank. */
    static Cut drawCut(SplittableRandom random, long length, int ranks) {
        long[] lengths = new long[ranks];
        long rest = length - ranks;
        for (int rank = 0; rank < ranks; rank++) {
            long more = rank == ranks - 1 ? rest : random.nextLong(rest + 1);
            lengths[rank] = 1 + more;
            rest -= more;
        }
        return Cut.ofLengths(lengths);
    }
}

package io.djltp.conformance;

import ai.djl.nn.Block;

/**
 * A part of a network of {@link RandomSweepTest}: what is drawn once is made twice, for DJL's own
 * trainer and for ranks, with the same parameters in the same order. For DJL it is of DJL's layers
 * where DJL has such layers; else it is the same block, which is unsharded there.
 */
interface SweptPart {

    /** How the input lies over the tensor-parallel ranks, and the output after it. */
    enum Layout {
        /** The same on all. */
        WHOLE,
        /** Each has its tokens: sequence parallelism. */
        TOKENS_CUT,
        /** Each has its rows of the batch: the body in MIXED mode. */
        ROWS_CUT
    }

    /** A kind of parts. */
    @FunctionalInterface
    interface Kind {

        /** Draws a part that takes so many features and leaves the layout as it is. */
        SweptPart draw(Draws draws, Layout layout, long inputs);
    }

    /** The features of the output. */
    long outputs();

    /** The part for DJL's trainer, or for ranks. */
    Block create(boolean cut);
}

package io.djltp.internal.parameters;

import ai.djl.nn.Parameter;

/**
 * A low-rank update of a weight: {@code W + scale B A}. Where the weight is several layers, one
 * below the other, of as many rows each, so are A and B: part i of B is multiplied by part i of A.
 */
public interface LowRank {

    /** {@return the weight W, [out, in]} */
    Parameter weight();

    /** {@return the parameter A, [parts * rank, in]} */
    Parameter a();

    /** {@return the parameter B, [out, rank]} */
    Parameter b();

    /** {@return what the product is multiplied by} */
    float scale();

    /** {@return the number of layers that are one} */
    int parts();
}

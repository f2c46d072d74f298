package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;

import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region;

/**
 * What a router has computed in a training pass, for the losses that are to balance it.
 *
 * @param logits the logits of this rank's tokens, [tokens, experts]
 * @param probabilities their softmax
 * @param shares the share of all tokens' choices that each expert has
 * @param tokens the number of tokens of all ranks
 * @param region how the tokens lie over the ranks
 * @param pass the pass on this rank, or {@code null} without ranks
 */
record RouterPass(
        NDArray logits,
        NDArray probabilities,
        double[] shares,
        long tokens,
        Region region,
        ForwardPass pass) {}

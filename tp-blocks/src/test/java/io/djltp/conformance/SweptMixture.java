package io.djltp.conformance;

import ai.djl.nn.Activation;
import ai.djl.nn.Block;

import io.djltp.nn.moe.MixtureOfExperts;
import io.djltp.sharding.ShardingStrategy;

/** A mixture of experts: whole experts on each rank, or a slice of the hidden features of all. */
record SweptMixture(
        long outputs,
        boolean expertParallel,
        int experts,
        long hidden,
        int topK,
        double capacity,
        boolean gated,
        boolean bias,
        boolean exchanged)
        implements SweptPart {

    static SweptMixture draw(Draws draws, Layout layout, long inputs) {
        boolean expertParallel = draws.coin();
        int experts = expertParallel ? draws.cutLength(2) : draws.between(2, 4);
        return new SweptMixture(
                inputs,
                expertParallel,
                experts,
                expertParallel ? draws.between(2, 5) : draws.cutLength(3),
                draws.between(1, Math.min(3, experts)),
                draws.coin() ? 0 : draws.between(6, 14) / 10.0,
                draws.coin(),
                draws.coin(),
                expertParallel && layout == Layout.WHOLE && draws.coin());
    }

    @Override
    public Block create(boolean cut) {
        MixtureOfExperts.Builder options =
                MixtureOfExperts.builder()
                        .setExperts(experts)
                        .setHiddenFeatures(hidden)
                        .optTopK(topK)
                        .optGated(gated)
                        .optRouterBias(bias)
                        .optActivation(Activation::gelu)
                        .optExchangeTokens(exchanged)
                        .optStrategy(
                                expertParallel
                                        ? ShardingStrategy.expertParallel()
                                        : ShardingStrategy.tensorParallel());
        return (capacity == 0 ? options : options.optCapacityFactor(capacity)).build();
    }
}

package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.nn.core.Linear;

import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TorchOperations;

/**
 * What a router has computed of some tokens: probabilities of the experts in float32, the choices,
 * and the weight of each choice.
 *
 * @param logits the logits, [tokens, experts], float32
 * @param probabilities their softmax
 * @param routing the choices
 * @param weights the weight of each choice, [tokens * k], in the type of the tokens
 */
record Router(NDArray logits, NDArray probabilities, Routing routing, NDArray weights) {

    /**
     * Routes tokens.
     *
     * @param x the tokens, [tokens, features]
     * @param weight the router's weight, [experts, features]
     * @param bias the router's bias, [experts], or {@code null}
     * @param topK the number of choices
     * @param normalized whether the weights of a token's choices add up to 1, dropped ones included
     * @return the result, attached to the manager of the tokens
     */
    static Router of(NDArray x, NDArray weight, NDArray bias, int topK, boolean normalized) {
        int experts = (int) weight.getShape().get(0);
        long tokens = x.getShape().get(0);
        NDArray logits =
                TorchOperations.toFloat32(Linear.linear(x, weight, bias).singletonOrThrow());
        NDArray probabilities = logits.softmax(1);
        Routing routing = Routing.of(HostReads.floats(logits), experts, topK);
        // the numbers stay open as long as the graph
        NDArray places = Numbers.create(x, routing.places());
        NDArray flat = probabilities.reshape(tokens * experts);
        NDArray weights = TorchOperations.takeRows(flat, places).reshape(tokens, topK);
        if (normalized) {
            weights = weights.div(weights.sum(new int[] {1}, true));
        }
        weights = TorchOperations.inTypeOf(weights.reshape(tokens * topK), x, weights.getManager());
        return new Router(logits, probabilities, routing, weights);
    }
}

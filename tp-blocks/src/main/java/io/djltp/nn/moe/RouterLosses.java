package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.loss.Loss;

import io.djltp.internal.torch.Autograd;
import io.djltp.layout.ForwardPass;
import io.djltp.rank.ParallelContext;

import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * The load-balancing loss and the z-loss of the routers of a network, see {@link RouterLoss}, in
 * the pass that has computed the predictions.
 *
 * <p>Both are means over all tokens of a function of one token, given the shares of the experts. So
 * where each rank has its rows, it computes its tokens' part, and one all-reduce of one number adds
 * the parts; backward, each rank has the gradient of its tokens.
 */
final class RouterLosses extends Loss {

    private final Supplier<List<MixtureOfExperts>> blocks;
    private final float balancing;
    private final float z;

    RouterLosses(Supplier<List<MixtureOfExperts>> blocks, float balancing, float z) {
        super("RouterLosses");
        this.blocks = blocks;
        this.balancing = balancing;
        this.z = z;
    }

    /** {@inheritDoc} */
    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        ParallelContext context = ParallelContext.current();
        ForwardPass pass = context == null ? null : context.getPass();
        NDArray whole = predictions.head().getManager().create(0f);
        NDArray parts = null; // of this rank's tokens
        for (RouterPass router : routersOf(pass, predictions)) {
            NDArray value = value(router);
            if (router.region().isRowsCut()) {
                parts = parts == null ? value : parts.add(value);
            } else {
                whole = whole.add(value);
            }
        }
        if (parts == null) {
            return whole;
        }
        NDArray sum = context.getBatchMappings().reduceFromRegion(parts);
        sum = pass.gathered(sum, sum);
        return whole.add(sum);
    }

    /** Returns what the routers have computed on the way to the predictions. */
    private List<RouterPass> routersOf(ForwardPass pass, NDList predictions) {
        Set<Long> graph = pass == null ? Autograd.nodesOf(predictions) : Set.of();
        Predicate<RouterPass> own =
                pass == null
                        ? router -> graph.contains(Autograd.nodeOf(router.probabilities()))
                        : router -> router.pass() == pass;
        List<MixtureOfExperts> network = blocks.get();
        List<RouterPass> routers =
                network.stream()
                        .flatMap(block -> block.getRouterPasses().stream())
                        .filter(own)
                        .toList();
        boolean trained = pass == null ? !graph.isEmpty() : pass.isTraining();
        if (trained
                && routers.isEmpty()
                && network.stream().anyMatch(MixtureOfExperts::isRouterTrained)) {
            throw new IllegalArgumentException(
                    "No MixtureOfExperts of the network that RouterLoss was given has computed"
                            + " these predictions, so it would balance nothing. Give setNetwork"
                            + " the block that is trained, model.getBlock(), and not another one"
                            + " built alike");
        }
        return routers;
    }

    /** Returns the losses of a router, or what this rank's tokens add to them. */
    private NDArray value(RouterPass router) {
        NDArray logits = router.logits();
        NDManager manager = logits.getManager();
        int experts = router.shares().length;
        float[] weights = new float[experts];
        for (int e = 0; e < experts; e++) {
            weights[e] = (float) (balancing * experts * router.shares()[e] / router.tokens());
        }
        // arrays of the pass: the graph does not keep alive what comes from Java memory
        NDArray value = router.probabilities().mul(manager.create(weights)).sum();
        if (z == 0) {
            return value;
        }
        NDArray most = logits.max(new int[] {1}, true).stopGradient();
        NDArray logSum = logits.sub(most).exp().sum(new int[] {1}, true).log().add(most);
        NDArray factor = manager.create((float) (z / (double) router.tokens()));
        return value.add(logSum.mul(logSum).sum().mul(factor));
    }

    /** Returns whether the arrays of a pass are gone. */
    static boolean isOver(RouterPass router) {
        return router.probabilities().isReleased();
    }
}

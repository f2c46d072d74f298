package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.loss.AbstractCompositeLoss;
import ai.djl.training.loss.Loss;
import ai.djl.util.Pair;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastLoss;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.parameters.BlockWalk;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.torch.Autograd;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.function.Predicate;

/**
 * A loss, and with it in training the losses of the routers of all {@link MixtureOfExperts} of the
 * network, so that the tokens are spread over the experts:
 *
 * <pre>
 *   loss + sum over the routers of  balancing * E * sum_e f_e P_e  +  z * mean_n (logsumexp_e l_ne)^2
 * </pre>
 *
 * <p>Of {@code E} experts, {@code f_e} is the share of all choices that expert e has, before any is
 * dropped, which has no gradient, and {@code P_e} the mean over the tokens n of its probability: 1
 * where all experts have as much (Switch Transformers, Fedus et al., 2021, <a
 * href="https://arxiv.org/abs/2101.03961">arXiv:2101.03961</a>, for one choice). The z-loss keeps
 * the logits {@code l} small (ST-MoE, Zoph et al., 2022, <a
 * href="https://arxiv.org/abs/2202.08906">arXiv:2202.08906</a>). Both are of the tokens of the
 * whole batch, under every trainer. An evaluation is that of the loss alone.
 *
 * <p>The loss of the network is computed of all rows on each rank, which are gathered where they
 * are cut. One all-reduce of one number is added to that, whatever the number of routers.
 */
public final class RouterLoss extends AbstractCompositeLoss implements ForecastLoss {

    private final Block network;
    private @Nullable List<MixtureOfExperts> found;

    private RouterLoss(Loss loss, Block network, Builder builder) {
        super(loss.getName());
        this.network = network;
        components = List.of(loss, new Balance(builder.balancing, builder.z));
    }

    /** Finds the blocks when the network is complete. */
    private synchronized List<MixtureOfExperts> routers() {
        if (found == null) {
            List<MixtureOfExperts> all = new ArrayList<>();
            BlockWalk.of(
                    network,
                    (block, path, certain) -> {
                        if (block instanceof MixtureOfExperts) {
                            all.add((MixtureOfExperts) block);
                        }
                    });
            Errors.check(
                    !all.isEmpty(),
                    "RouterLoss needs a network with a MixtureOfExperts, and has found none in %s",
                    network.getClass().getSimpleName());
            found = all;
        }
        return found;
    }

    /** {@inheritDoc} */
    @Override
    protected Pair<NDList, NDList> inputForComponent(
            int component, NDList labels, NDList predictions) {
        return new Pair<>(labels, predictions);
    }

    /** {@inheritDoc} */
    @Override
    public void forecast(PassForecast pass, ForecastArray predictions) {
        if (components.get(0) instanceof ForecastLoss) {
            ((ForecastLoss) components.get(0)).forecast(pass, predictions);
        } else {
            ForecastLoss.checkWhole(components.get(0), predictions);
        }
        boolean cut =
                routers().stream()
                        .anyMatch(
                                block ->
                                        block.getDirectParameters().values().stream()
                                                .anyMatch(each -> pass.isUsedWithCutRows(each)));
        if (cut) {
            pass.add(
                    "the rows of the batch",
                    Direction.FORWARD,
                    Collective.ALL_REDUCE,
                    pass.getDataSize(),
                    Float.BYTES);
        }
    }

    /**
     * The load-balancing loss and the z-loss of the routers in the pass that has computed the
     * predictions.
     *
     * <p>Both are means over all tokens of a function of one token, given the shares of the
     * experts. So where each rank has its rows, it computes its tokens' part, and one all-reduce of
     * one number adds the parts; backward, each rank has the gradient of its tokens.
     */
    private final class Balance extends Loss {

        private final float balancing;
        private final float z;

        Balance(float balancing, float z) {
            super("RouterLosses");
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
            for (Pass router : routersOf(pass, predictions)) {
                NDArray value = value(router);
                if (router.region().isRowsCut()) {
                    parts = parts == null ? value : parts.add(value);
                } else {
                    whole = whole.add(value);
                }
            }
            if (parts == null || context == null || pass == null) {
                return whole;
            }
            NDArray sum = context.getBatchMappings().reduceFromRegion(parts);
            sum = pass.gathered(sum, sum);
            return whole.add(sum);
        }

        /** Returns what the routers have computed on the way to the predictions. */
        private List<Pass> routersOf(@Nullable ForwardPass pass, NDList predictions) {
            Set<Long> graph = pass == null ? Autograd.nodesOf(predictions) : Set.of();
            Predicate<Pass> own =
                    pass == null
                            ? router ->
                                    graph.contains(Autograd.nodeOf(router.router().probabilities()))
                            : router -> router.pass() == pass;
            List<MixtureOfExperts> network = routers();
            List<Pass> routers =
                    network.stream()
                            .flatMap(block -> block.getRouterPasses().stream())
                            .filter(own)
                            .toList();
            boolean trained = pass == null ? !graph.isEmpty() : pass.isTraining();
            Errors.check(
                    !trained
                            || !routers.isEmpty()
                            || network.stream().noneMatch(MixtureOfExperts::isRouterTrained),
                    "No MixtureOfExperts of the network that RouterLoss was given has computed"
                            + " these predictions, so it would balance nothing. Give setNetwork"
                            + " the block that is trained, model.getBlock(), and not another one"
                            + " built alike");
            return routers;
        }

        /** Returns the losses of a router, or what this rank's tokens add to them. */
        private NDArray value(Pass router) {
            NDArray logits = router.router().logits();
            NDManager manager = logits.getManager();
            int experts = router.counts().experts();
            double[] shares = router.counts().shares();
            float[] weights = new float[experts];
            for (int e = 0; e < experts; e++) {
                weights[e] = (float) (balancing * experts * shares[e] / router.counts().tokens());
            }
            // arrays of the pass: the graph does not keep alive what comes from Java memory
            NDArray value = router.router().probabilities().mul(manager.create(weights)).sum();
            if (z == 0) {
                return value;
            }
            NDArray most = logits.max(new int[] {1}, true).stopGradient();
            NDArray logSum = logits.sub(most).exp().sum(new int[] {1}, true).log().add(most);
            NDArray factor = manager.create((float) (z / (double) router.counts().tokens()));
            return value.add(logSum.mul(logSum).sum().mul(factor));
        }
    }

    /**
     * What a router has computed in a training pass.
     *
     * @param router the logits and probabilities of this rank's tokens
     * @param counts what the tokens of all ranks have chosen
     * @param region the placement of the tokens
     * @param pass the pass on this rank, or {@code null} without ranks
     */
    record Pass(
            Router router, Router.TokenCounts counts, Region region, @Nullable ForwardPass pass) {

        /** Returns whether the arrays of the pass are gone. */
        boolean isOver() {
            return router.probabilities().isReleased();
        }
    }

    /**
     * Creates a builder to build a {@code RouterLoss}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link RouterLoss}. */
    public static final class Builder {

        private @Nullable Loss loss;
        private @Nullable Block network;
        private float balancing = 0.01f;
        private float z;

        private Builder() {}

        /**
         * Sets the loss of the network.
         *
         * @param loss the loss
         * @return this builder
         */
        public Builder setLoss(Loss loss) {
            this.loss = loss;
            return this;
        }

        /**
         * Sets the network whose routers are balanced.
         *
         * @param network the block of the model
         * @return this builder
         */
        public Builder setNetwork(Block network) {
            this.network = network;
            return this;
        }

        /**
         * Sets the factor of the load-balancing loss. Default: 0.01, as in Switch Transformers.
         *
         * @param balancing the factor, 0 or more
         * @return this builder
         */
        public Builder optLoadBalancing(float balancing) {
            this.balancing = balancing;
            return this;
        }

        /**
         * Sets the factor of the z-loss. Default: 0. ST-MoE takes 0.001.
         *
         * @param z the factor, 0 or more
         * @return this builder
         */
        public Builder optZLoss(float z) {
            this.z = z;
            return this;
        }

        /**
         * Builds the loss.
         *
         * @return the loss
         * @throws IllegalArgumentException if a factor is negative, or the loss or the network is
         *     missing
         */
        public RouterLoss build() {
            String needs = "RouterLoss needs setLoss and setNetwork";
            Loss given = Errors.given(loss, needs);
            Block routed = Errors.given(network, needs);
            Errors.check(
                    balancing >= 0 && z >= 0,
                    "The factors of a RouterLoss must be 0 or more, not %s and %s",
                    balancing,
                    z);
            return new RouterLoss(given, routed, this);
        }
    }
}

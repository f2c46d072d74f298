package io.djltp.nn.moe;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.training.loss.AbstractCompositeLoss;
import ai.djl.training.loss.Loss;
import ai.djl.util.Pair;
import ai.djl.util.Preconditions;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastLoss;
import io.djltp.forecast.PassForecast;
import io.djltp.parameters.BlockWalk;

import java.util.ArrayList;
import java.util.List;

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
    private List<MixtureOfExperts> found;

    private RouterLoss(Builder builder) {
        super(builder.loss.getName());
        network = builder.network;
        components =
                List.of(
                        builder.loss,
                        new RouterLosses(this::routers, builder.balancing, builder.z));
    }

    /** Finds the blocks when the network is complete. */
    private synchronized List<MixtureOfExperts> routers() {
        if (found == null) {
            found = new ArrayList<>();
            BlockWalk.of(
                    network,
                    (block, path, certain) -> {
                        if (block instanceof MixtureOfExperts) {
                            found.add((MixtureOfExperts) block);
                        }
                    });
            Preconditions.checkArgument(
                    !found.isEmpty(),
                    "RouterLoss needs a network with a MixtureOfExperts, and has found none in "
                            + network.getClass().getSimpleName());
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
     * Creates a builder to build a {@code RouterLoss}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct a {@link RouterLoss}. */
    public static final class Builder {

        private Loss loss;
        private Block network;
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
            Preconditions.checkArgument(
                    loss != null && network != null, "RouterLoss needs setLoss and setNetwork");
            Preconditions.checkArgument(
                    balancing >= 0 && z >= 0,
                    "The factors of a RouterLoss must be 0 or more, not "
                            + balancing
                            + " and "
                            + z);
            return new RouterLoss(this);
        }
    }
}

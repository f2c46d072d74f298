package io.djltp.nn.moe;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Activation;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.training.initializer.Initializer;
import ai.djl.util.PairList;

import io.djltp.collective.Collective;
import io.djltp.collective.Communicator;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.Errors;
import io.djltp.internal.forecast.ForecastArray;
import io.djltp.internal.forecast.ForecastBlock;
import io.djltp.internal.forecast.ForecastMappings;
import io.djltp.internal.forecast.PassForecast;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region;
import io.djltp.internal.parameters.HeldParameters;
import io.djltp.internal.parameters.RankParameterStore;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.region.RegionMappings;
import io.djltp.internal.torch.TensorView;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.nn.moe.Router.Choices;
import io.djltp.nn.moe.Router.TokenCounts;
import io.djltp.nn.moe.TokenDispatch.Experts;
import io.djltp.sharding.ShardedBlock;
import io.djltp.sharding.ShardingStrategy;

import org.jspecify.annotations.Nullable;

import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;

/**
 * A mixture of experts: a router sends each token to the {@code k} of {@code E} feed-forward blocks
 * with the largest logits, and adds up what they answer.
 *
 * <pre>
 *   p = softmax(x Wr^T)                                    [tokens, E], in float32
 *   y = sum over the k chosen experts e of  w_e expert_e(x)
 *   w_e = p_e, or p_e / (sum of the k chosen p)            see optNormalizeWeights
 *   expert_e(x) = act(x W1_e^T) W2_e^T,  gated: (act(x Wg_e^T) * (x W1_e^T)) W2_e^T
 * </pre>
 *
 * <p>Shapes: the input [x1, .., xn, features], each of whose last axes is a token, and the output
 * the same. Router weight [E, features]; W1 and Wg [E, hidden, features], W2 [E, features, hidden].
 * Of equal logits the expert with the lower number is chosen. With a capacity factor, an expert
 * takes {@code ceil(factor * tokens * k / E)} tokens of the whole batch, first choices before
 * second ones, then in the order of the batch, as in GShard (Lepikhin et al., 2020, <a
 * href="https://arxiv.org/abs/2006.16668">arXiv:2006.16668</a>); a choice that is dropped adds
 * zero, for a residual around the block.
 *
 * <p>On ranks, what is computed is that of the unsharded block, dropping included. {@code
 * expertParallel} gives each rank whole experts, {@code tensorParallel} a slice of the hidden
 * features of all. Collectives, forward and then backward:
 *
 * <ul>
 *   <li>tokens that all ranks of the group have: one all-reduce; one all-reduce. With {@code
 *       optExchangeTokens} two all-to-alls and an all-gather; the same
 *   <li>rows that are cut over the ranks of whole experts (MIXED mode): two all-to-alls; two
 *   <li>rows that are cut over the ranks of slices of the experts: an all-gather of the tokens, one
 *       of {@code k} numbers a token, and a reduce-scatter; a reduce-scatter and an all-gather
 *   <li>rows that are cut over other ranks or replicated experts (DATA mode): none beside the above
 *   <li>and wherever rows are cut, one all-gather of {@code k E + 2} numbers of each rank
 * </ul>
 *
 * <p>{@link RouterLoss} adds the load-balancing loss and the z-loss to a loss.
 */
public class MixtureOfExperts extends AbstractBlock implements ShardedBlock, ForecastBlock {

    private static final byte VERSION = 1;

    private final int experts;
    private final long hiddenFeatures;
    private final int topK;
    private final double capacityFactor;
    private final boolean normalized;
    private final boolean exchangeTokens;
    private final boolean expertParallel;
    private final Function<NDArray, NDArray> activation;
    private final Parameter routerWeight;
    private final @Nullable Parameter routerBias;
    private final Parameter hidden;
    private final @Nullable Parameter gate;
    private final Parameter output;
    private final List<RouterLoss.Pass> passes = new ArrayList<>(); // of all ranks of this process

    @SuppressWarnings("this-escape") // as in all of DJL's blocks: the parameters are complete
    private MixtureOfExperts(Builder builder) {
        super(VERSION);
        experts = builder.experts;
        hiddenFeatures = builder.hiddenFeatures;
        topK = builder.topK;
        capacityFactor = builder.capacityFactor;
        normalized = builder.normalized == null ? topK > 1 : builder.normalized;
        exchangeTokens = builder.exchangeTokens;
        expertParallel = builder.strategy.isExpertParallel();
        activation = builder.activation;
        Parameter.Type type = Parameter.Type.WEIGHT;
        routerWeight = add("routerWeight", type, null);
        routerBias = builder.routerBias ? add("routerBias", Parameter.Type.BIAS, null) : null;
        hidden = add("hiddenWeight", type, MixtureOfExperts::drawExperts);
        gate = builder.gated ? add("gateWeight", type, MixtureOfExperts::drawExperts) : null;
        output = add("outputWeight", type, MixtureOfExperts::drawExperts);
    }

    private Parameter add(String name, Parameter.Type type, @Nullable Initializer initializer) {
        Parameter.Builder builder = Parameter.builder().setName(name).setType(type);
        return addParameter(
                (initializer == null ? builder : builder.optInitializer(initializer)).build());
    }

    /**
     * Initializes the stacked weights of experts, [experts, outputs, inputs], as DJL initializes
     * each one by default: a normal distribution with the deviation sqrt(2 / inputs). DJL would
     * take the last axis for that of a convolution.
     */
    private static NDArray drawExperts(NDManager manager, Shape shape, DataType type) {
        float deviation = (float) Math.sqrt(2.0 / shape.get(shape.dimension() - 1));
        return manager.randomNormal(0, deviation, shape, type);
    }

    /**
     * Creates a builder to build a {@code MixtureOfExperts}.
     *
     * @return a new builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        if (parameter == routerWeight || parameter == routerBias) {
            return ShardingStrategy.replicate();
        }
        if (expertParallel) {
            return ShardingStrategy.rowwise(); // the experts
        }
        return ShardingStrategy.axiswise(parameter == output ? 2 : 1); // the hidden features
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore store, NDList inputs, boolean training, PairList<String, Object> args) {
        NDArray input = inputs.singletonOrThrow();
        Device device = input.getDevice();
        ParallelContext context = RankParameterStore.contextOf(store);
        ForwardPass pass = context == null ? null : context.getPass();
        Region region = pass == null ? Region.WHOLE : pass.regionOf(input);
        if (pass == null) {
            HeldParameters.checkWhole(hidden, "MixtureOfExperts");
        } else {
            pass.checkKeeps("A MixtureOfExperts");
        }
        NDArray weight = store.getValue(routerWeight, device, training);
        NDArray bias = store.getValue(routerBias, device, training);
        Experts own =
                new Experts(
                        RankParameterStore.shardOf(store, hidden, device, training),
                        RankParameterStore.optionalShardOf(store, gate, device, training),
                        RankParameterStore.shardOf(store, output, device, training),
                        activation);
        if (pass != null) {
            pass.use(hidden, region);
            pass.use(output, region);
            pass.use(gate, region);
        }
        checkInput(input.getShape(), region);

        boolean spare = pass != null && region.isRowsCut() && pass.getRows() == 0; // no row counts
        long features = weight.getShape().get(1);
        NDArray taken = pass == null ? input : pass.takeRows(input);
        NDArray all = taken.reshape(input.size() / features, features);
        NDArray x = spare ? all.get(new NDIndex().addSliceDim(0, 0)) : all;
        Router router = Router.of(x, weight, bias, topK, normalized);
        Communicator group = context != null && region.isRowsCut() ? context.getDataGroup() : null;
        TokenCounts counts =
                TokenCounts.gather(
                        group, router.logits().getManager(), router.routing(), capacityFactor);
        if (training && TensorView.of(router.probabilities()).requiresGradient()) {
            note(new RouterLoss.Pass(router, counts, region, pass));
        }
        int place = group == null ? 0 : group.getRank();
        Choices choices = new Choices(router.routing(), counts.isKept(router.routing(), place));
        TokenDispatch dispatch = new TokenDispatch(x, router.weights(), choices, own, pass);
        NDArray y = dispatch(context, region, dispatch, counts);
        if (spare && y.getShape().get(0) == 0) { // and was not scattered
            // a row for what follows; the empty one keeps the ranks' backward passes alike
            y = TorchOperations.concat(new NDList(y, all.zerosLike()), 0);
        }
        NDArray result = y.reshape(input.getShape());
        return new NDList(pass == null ? result : pass.enterLike(result, input));
    }

    private NDArray dispatch(
            @Nullable ParallelContext context,
            Region region,
            TokenDispatch dispatch,
            TokenCounts counts) {
        int ranks = context == null ? 1 : context.getTensorGroup().getSize();
        if (context == null || ranks == 1) {
            return dispatch.local();
        }
        RegionMappings mappings = context.getMappings(this);
        List<int[]> owners = owners(ranks);
        int rank = context.getTensorGroup().getRank();
        if (region.isRowsCut() && context.getPass().isOverlaid()) {
            ShardRange all = new ShardRange(0, dispatch.choices().routing().tokens());
            return expertParallel
                    ? dispatch.exchanged(mappings, rank, owners, counts.kept(), all)
                    : dispatch.gathered(context, mappings, counts.tokens());
        }
        return exchangeTokens
                ? dispatch.scattered(mappings, rank, owners)
                : dispatch.replicated(mappings, owners.get(rank));
    }

    /** Returns the experts of which each rank has something, in the order of its shard. */
    private List<int[]> owners(int size) {
        Cut cut =
                expertParallel
                        ? getShardingStrategy(hidden).cut(hidden.getShape(), size)
                        : Cut.replicated(experts, size);
        return IntStream.range(0, size)
                .mapToObj(
                        rank ->
                                cut.getRanges(rank).stream()
                                        .flatMapToInt(
                                                range ->
                                                        IntStream.range(
                                                                (int) range.start(),
                                                                (int) range.end()))
                                        .toArray())
                .toList();
    }

    /** Keeps what a {@link RouterLoss} is computed of. */
    private void note(RouterLoss.Pass pass) {
        synchronized (passes) {
            passes.removeIf(RouterLoss.Pass::isOver);
            passes.add(pass);
        }
    }

    /** Returns whether every training pass is noted, as the router has a gradient in each. */
    boolean isRouterTrained() {
        return routerWeight.requiresGradient();
    }

    /** Returns the training passes whose arrays are still there. */
    List<RouterLoss.Pass> getRouterPasses() {
        synchronized (passes) {
            passes.removeIf(RouterLoss.Pass::isOver);
            return List.copyOf(passes);
        }
    }

    private void checkInput(Shape shape, Region region) {
        long features = hidden.getShape().get(2);
        String block = "MixtureOfExperts of " + experts + " experts";
        if (region.isShard()) {
            throw Errors.argument(
                    "%s needs tokens with all features, and gets a slice of them, %s: build the"
                            + " layer before it with optGatherOutput(true), or let a"
                            + " RowParallelLinear take the slice",
                    block, shape);
        }
        if (region.isTokensCut()) {
            throw Errors.argument(
                    "%s needs all tokens of a rank's rows, and gets this rank's tokens of a"
                            + " sequence-parallel region, %s: put a SequenceGather before it, and a"
                            + " SequenceScatter behind it if the region goes on",
                    block, shape);
        }
        if (shape.dimension() == 0 || shape.get(shape.dimension() - 1) != features) {
            throw Errors.argument(
                    "%s needs an input whose last axis has length %s, but the input is %s",
                    block, features, shape);
        }
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        checkInput(input.shape(), input.region());
        pass.use(this, input);
        boolean cut = input.region().isRowsCut();
        if (cut) { // TokenCounts
            int size = pass.getDataSize();
            long bytes = size * ((long) topK * experts + 2) * Long.BYTES;
            pass.add("MixtureOfExperts", Direction.FORWARD, Collective.ALL_GATHER, size, bytes);
        }
        boolean routed =
                input.differentiated()
                        || routerWeight.requiresGradient()
                        || routerBias != null && routerBias.requiresGradient();
        if (pass.getTensorSize() > 1) {
            ForecastMappings mappings = pass.getMappings(this);
            Shape local = pass.local(input);
            long features = local.get(local.dimension() - 1);
            long tokens = local.size() / features;
            Shape outputs = new Shape(tokens, features);
            Shape both = new Shape(tokens, features + topK); // tokens and weights
            if (cut && pass.getMesh().isOverlaid()) {
                long all = input.shape().size() / features;
                forecastExchange(pass, input.differentiated(), tokens, all, features);
            } else if (exchangeTokens) {
                if (routed) {
                    mappings.add(Direction.BACKWARD, Collective.ALL_GATHER, both);
                }
                Cut shares = Cut.balanced(tokens, pass.getTensorSize());
                long own = shares.getShardLength(pass.getTensorRank());
                forecastExchange(pass, routed, own, tokens, features);
                mappings.add(Direction.FORWARD, Collective.ALL_GATHER, outputs);
            } else {
                if (routed) {
                    mappings.add(Direction.BACKWARD, Collective.ALL_REDUCE, both);
                }
                mappings.add(Direction.FORWARD, Collective.ALL_REDUCE, outputs);
            }
        }
        return input.with(isTrained());
    }

    /** Notes the ways of rows to experts and back, of which all shapes are known. */
    private void forecastExchange(
            PassForecast pass, boolean differentiated, long own, long all, long features) {
        double capacity = Math.ceil(capacityFactor * all * topK / experts);
        if (topK < experts || capacity < all) {
            throw Errors.argument(
                    "How many bytes a MixtureOfExperts of %s experts exchanges follows from which"
                            + " %s of them the tokens choose, and not from shapes: with"
                            + " optExchangeTokens(false) on a mesh of data and tensor it is known,"
                            + " or count a step with CommunicationCounter",
                    experts, topK);
        }
        ForecastMappings mappings = pass.getMappings(this);
        Shape there = new Shape(own * experts, features);
        int here = owners(pass.getTensorSize()).get(pass.getTensorRank()).length;
        Shape back = new Shape(all * here, features);
        mappings.add(Direction.FORWARD, Collective.ALL_TO_ALL, there);
        mappings.add(Direction.FORWARD, Collective.ALL_TO_ALL, back);
        if (differentiated) {
            mappings.add(Direction.BACKWARD, Collective.ALL_TO_ALL, back);
        }
        if (differentiated || isTrained()) {
            mappings.add(Direction.BACKWARD, Collective.ALL_TO_ALL, there);
        }
    }

    private boolean isTrained() {
        return getDirectParameters().values().stream().anyMatch(Parameter::requiresGradient);
    }

    /** {@inheritDoc} */
    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        return inputShapes;
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Shape[] inputShapes) {
        long features = inputShapes[0].get(inputShapes[0].dimension() - 1);
        routerWeight.setShape(new Shape(experts, features));
        if (routerBias != null) {
            routerBias.setShape(new Shape(experts));
        }
        hidden.setShape(new Shape(experts, hiddenFeatures, features));
        if (gate != null) {
            gate.setShape(new Shape(experts, hiddenFeatures, features));
        }
        output.setShape(new Shape(experts, features, hiddenFeatures));
    }

    /**
     * {@inheritDoc}
     *
     * <p>Rows that are cut may come in: the block takes their tokens to the experts.
     */
    @Override
    public boolean isBatchShardedInput() {
        return true;
    }

    /** {@inheritDoc} */
    @Override
    public void saveParameters(DataOutputStream os) throws IOException {
        os.write(version);
        saveMetadata(os);
        HeldParameters.save(this, os);
    }

    /** The builder to construct a {@link MixtureOfExperts}. */
    public static final class Builder {

        private int experts;
        private long hiddenFeatures;
        private int topK = 2;
        private double capacityFactor = Double.POSITIVE_INFINITY;
        private Function<NDArray, NDArray> activation = Activation::relu;
        private boolean gated;
        private boolean routerBias;
        private boolean exchangeTokens;
        private ShardingStrategy strategy = ShardingStrategy.expertParallel();
        private @Nullable Boolean normalized; // null: if there are several choices

        private Builder() {}

        /**
         * Sets the number of experts.
         *
         * @param experts the number, 1 or more
         * @return this builder
         */
        public Builder setExperts(int experts) {
            this.experts = experts;
            return this;
        }

        /**
         * Sets the width of each expert.
         *
         * @param hiddenFeatures the number of features between its two layers
         * @return this builder
         */
        public Builder setHiddenFeatures(long hiddenFeatures) {
            this.hiddenFeatures = hiddenFeatures;
            return this;
        }

        /**
         * Sets how many experts each token is sent to. Default: 2.
         *
         * @param topK the number of choices, from 1 to the number of experts
         * @return this builder
         */
        public Builder optTopK(int topK) {
            this.topK = topK;
            return this;
        }

        /**
         * Sets how many tokens an expert takes: {@code ceil(factor * tokens * k / experts)} of the
         * batch; what is more is dropped. Default: all that choose it.
         *
         * @param capacityFactor the factor, greater than 0
         * @return this builder
         */
        public Builder optCapacityFactor(double capacityFactor) {
            this.capacityFactor = capacityFactor;
            return this;
        }

        /**
         * Sets whether the weights of a token's choices add up to 1. Default: yes for more than one
         * choice; of a single one the weight would be 1, and the router learn nothing from the
         * loss.
         *
         * @param normalized whether they do, dropped choices included
         * @return this builder
         */
        public Builder optNormalizeWeights(boolean normalized) {
            this.normalized = normalized;
            return this;
        }

        /**
         * Sets the activation between the layers of an expert. Default: ReLU.
         *
         * @param activation an elementwise function
         * @return this builder
         */
        public Builder optActivation(Function<NDArray, NDArray> activation) {
            this.activation = activation;
            return this;
        }

        /**
         * Sets whether experts have a gate: a third layer, whose activation is multiplied with the
         * first. Default: false.
         *
         * @param gated whether they have
         * @return this builder
         */
        public Builder optGated(boolean gated) {
            this.gated = gated;
            return this;
        }

        /**
         * Sets whether the router has a bias. Default: false.
         *
         * @param routerBias whether it has
         * @return this builder
         */
        public Builder optRouterBias(boolean routerBias) {
            this.routerBias = routerBias;
            return this;
        }

        /**
         * Sets what is cut over the ranks: {@code ShardingStrategy.expertParallel()}, whole
         * experts, or {@code tensorParallel()}, the hidden features of all experts. Default:
         * expertParallel.
         *
         * @param strategy the strategy
         * @return this builder
         */
        public Builder optStrategy(ShardingStrategy strategy) {
            this.strategy = strategy;
            return this;
        }

        /**
         * Sets whether tokens that all ranks have are divided over them and exchanged, instead of
         * each rank taking those of its experts and one sum of the outputs: for {@code p} ranks,
         * {@code n} tokens and {@code k} choices, a rank sends about {@code (2 k + p) n / p} rows
         * forward instead of {@code 2 n}. Default: false.
         *
         * @param exchangeTokens whether they are exchanged
         * @return this builder
         */
        public Builder optExchangeTokens(boolean exchangeTokens) {
            this.exchangeTokens = exchangeTokens;
            return this;
        }

        /**
         * Builds the block.
         *
         * @return the block
         * @throws IllegalArgumentException if an option does not fit
         */
        public MixtureOfExperts build() {
            Errors.check(
                    experts >= 1 && hiddenFeatures >= 1,
                    "MixtureOfExperts needs setExperts and setHiddenFeatures of 1 or more, not %s"
                            + " and %s",
                    experts,
                    hiddenFeatures);
            Errors.check(
                    topK >= 1 && topK <= experts,
                    "Each token can be sent to 1 to %1$s of %1$s experts, not to %2$s: set optTopK,"
                            + " or more experts",
                    experts,
                    topK);
            Errors.check(
                    capacityFactor > 0,
                    "The capacity factor must be greater than 0, not %s: 1 is room for all tokens if"
                            + " they are spread evenly; without optCapacityFactor nothing is"
                            + " dropped",
                    capacityFactor);
            Errors.check(
                    strategy.isExpertParallel() || strategy.isTensorParallel(),
                    "MixtureOfExperts cannot take the strategy %s: give optStrategy"
                            + " expertParallel() or tensorParallel()",
                    strategy);
            Errors.check(
                    !exchangeTokens || strategy.isExpertParallel(),
                    "Tokens are exchanged between whole experts: optExchangeTokens(true) needs the"
                            + " strategy expertParallel()");
            return new MixtureOfExperts(this);
        }
    }
}

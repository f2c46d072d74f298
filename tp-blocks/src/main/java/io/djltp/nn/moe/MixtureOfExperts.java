package io.djltp.nn.moe;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import ai.djl.util.PairList;

import io.djltp.collective.Collective;
import io.djltp.collective.TrafficTable.Direction;
import io.djltp.cut.Cut;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastBlock;
import io.djltp.forecast.PassForecast;
import io.djltp.internal.torch.TensorView;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region;
import io.djltp.parameters.HeldParameters;
import io.djltp.parameters.RankParameterStore;
import io.djltp.parameters.ShardedBlock;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;
import io.djltp.sharding.ShardingStrategy;

import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
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

    private final MixtureOptions options;
    private final Parameter routerWeight;
    private final Parameter routerBias; // or null
    private final Parameter hidden;
    private final Parameter gate; // or null
    private final Parameter output;
    private final List<RouterPass> passes = new ArrayList<>(); // of all ranks of this process

    /**
     * Creates a block.
     *
     * @param options the options
     */
    MixtureOfExperts(MixtureOptions options) {
        super(VERSION);
        this.options = options;
        Parameter.Type type = Parameter.Type.WEIGHT;
        routerWeight = addParameter(options.parameter("routerWeight", type));
        routerBias =
                options.routerBias
                        ? addParameter(options.parameter("routerBias", Parameter.Type.BIAS))
                        : null;
        hidden = addParameter(options.parameter("hiddenWeight", type));
        gate = options.gated ? addParameter(options.parameter("gateWeight", type)) : null;
        output = addParameter(options.parameter("outputWeight", type));
    }

    /**
     * Creates a builder to build a {@code MixtureOfExperts}.
     *
     * @return a new builder
     */
    public static MixtureOptions builder() {
        return new MixtureOptions();
    }

    /** {@inheritDoc} */
    @Override
    public ShardingStrategy getShardingStrategy(Parameter parameter) {
        if (parameter == routerWeight || parameter == routerBias) {
            return ShardingStrategy.replicate();
        }
        if (options.strategy.isExpertParallel()) {
            return ShardingStrategy.rowwise(); // the experts
        }
        return ShardingStrategy.axiswise(parameter == output ? 2 : 1); // the hidden features
    }

    /** {@inheritDoc} */
    @Override
    protected NDList forwardInternal(
            ParameterStore parameterStore,
            NDList inputs,
            boolean training,
            PairList<String, Object> params) {
        NDArray input = inputs.singletonOrThrow();
        ParallelContext context = RankParameterStore.contextOf(parameterStore);
        if (context == null) {
            HeldParameters.checkWhole(hidden, "MixtureOfExperts");
        } else {
            context.getPass().checkKeeps("A MixtureOfExperts");
        }
        ParallelContext ranks = context == null || context.getSize() == 1 ? null : context;
        Region region = context == null ? Region.WHOLE : context.getPass().regionOf(input);
        NDArray weight = parameterStore.getValue(routerWeight, input.getDevice(), training);
        NDArray bias = parameterStore.getValue(routerBias, input.getDevice(), training);
        ExpertLayers experts = experts(parameterStore, input.getDevice(), training);
        if (context != null) {
            for (Parameter each : List.of(hidden, output)) {
                context.getPass().use(each, region);
            }
            context.getPass().use(gate, region);
        }
        ForwardPass pass = context == null ? null : context.getPass();
        options.checkInput(input.getShape(), region, weight.getShape().get(1));

        boolean spare = region.isRowsCut() && context.getPass().getRows() == 0; // no row counts
        long features = weight.getShape().get(1);
        NDArray taken = pass == null ? input : pass.takeRows(input);
        NDArray all = taken.reshape(input.size() / features, features);
        NDArray x = spare ? all.get(new NDIndex().addSliceDim(0, 0)) : all;
        Router router = Router.of(x, weight, bias, options.topK, options.isNormalized());
        TokenCounts counts = counts(ranks, region, router);
        if (training && TensorView.of(router.probabilities()).requiresGradient()) {
            note(router, counts, region, context);
        }
        NDArray y = dispatch(ranks, region, x, router, counts, experts, pass);
        if (spare && y.getShape().get(0) == 0) { // and was not scattered
            // a row for what follows; the empty one keeps the ranks' backward passes alike
            y = NDArrays.concat(new NDList(y, all.zerosLike()));
        }
        NDArray output = y.reshape(input.getShape());
        return new NDList(pass == null ? output : pass.enterLike(output, input));
    }

    private TokenCounts counts(ParallelContext context, Region region, Router router) {
        return TokenCounts.gather(
                region.isRowsCut() ? context.getDataGroup() : null,
                router.logits().getManager(),
                router.routing(),
                options.capacityFactor);
    }

    private ExpertLayers experts(ParameterStore store, Device device, boolean training) {
        return new ExpertLayers(
                RankParameterStore.shardOf(store, hidden, device, training),
                RankParameterStore.shardOf(store, gate, device, training),
                RankParameterStore.shardOf(store, output, device, training),
                options.activation);
    }

    /** Keeps what a {@link RouterLoss} is computed of. */
    private void note(Router router, TokenCounts counts, Region region, ParallelContext context) {
        add(
                new RouterPass(
                        router.logits(),
                        router.probabilities(),
                        counts.shares(),
                        counts.getTokens(),
                        region,
                        context == null ? null : context.getPass()));
    }

    private NDArray dispatch(
            ParallelContext context,
            Region region,
            NDArray x,
            Router router,
            TokenCounts counts,
            ExpertLayers experts,
            ForwardPass pass) {
        boolean cut = region.isRowsCut();
        int place = cut ? context.getDataGroup().getRank() : 0;
        boolean[] kept = counts.isKept(router.routing(), place);
        TokenDispatch dispatch = new TokenDispatch(x, router, kept, experts, pass);
        if (context == null || context.getTensorGroup().getSize() == 1) {
            return dispatch.local();
        }
        RegionMappings mappings = context.getMappings(this);
        List<int[]> owners = owners(context.getTensorGroup().getSize());
        int rank = context.getTensorGroup().getRank();
        if (cut && context.getPass().isOverlaid()) {
            return options.strategy.isExpertParallel()
                    ? dispatch.exchanged(mappings, rank, owners, counts.kept())
                    : dispatch.gathered(context, mappings, counts.getTokens());
        }
        return options.exchangeTokens
                ? dispatch.scattered(context, mappings, owners)
                : dispatch.replicated(context, mappings, owners.get(rank));
    }

    /** Returns the experts of which each rank has something, in the order of its shard. */
    private List<int[]> owners(int size) {
        if (!options.strategy.isExpertParallel()) {
            int[] all = IntStream.range(0, options.experts).toArray();
            return IntStream.range(0, size).mapToObj(rank -> all).toList();
        }
        Cut cut = getShardingStrategy(hidden).cut(hidden.getShape(), size);
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

    private void add(RouterPass pass) {
        synchronized (passes) {
            passes.removeIf(RouterLosses::isOver);
            passes.add(pass);
        }
    }

    /** Returns whether every training pass is noted, as the router has a gradient in each. */
    boolean isRouterTrained() {
        return routerWeight.requiresGradient();
    }

    /** Returns the training passes whose arrays are still there. */
    List<RouterPass> getRouterPasses() {
        synchronized (passes) {
            passes.removeIf(RouterLosses::isOver);
            return List.copyOf(passes);
        }
    }

    /** {@inheritDoc} */
    @Override
    public ForecastArray forecast(PassForecast pass, ForecastArray input) {
        return new MixtureForecast(pass).forward(input);
    }

    /** {@inheritDoc} */
    @Override
    public String getEquation() {
        return "y = Σ weight[e] expert[e](x), the sum over the chosen experts";
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
        routerWeight.setShape(new Shape(options.experts, features));
        if (routerBias != null) {
            routerBias.setShape(new Shape(options.experts));
        }
        hidden.setShape(new Shape(options.experts, options.hiddenFeatures, features));
        if (gate != null) {
            gate.setShape(new Shape(options.experts, options.hiddenFeatures, features));
        }
        output.setShape(new Shape(options.experts, features, options.hiddenFeatures));
    }

    /**
     * {@inheritDoc}
     *
     * <p>Rows that are cut over the ranks of the experts are exchanged or gathered: the block may
     * be anywhere in the data-parallel body.
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

    /**
     * What a {@link MixtureOfExperts} will communicate, from shapes. Where all ranks have the
     * tokens, that is known. How many rows an all-to-all takes to which rank follows from what the
     * routers choose; it is known only where each token goes to all experts, and none of them is
     * full.
     */
    private final class MixtureForecast {

        private final PassForecast pass;

        MixtureForecast(PassForecast pass) {
            this.pass = pass;
        }

        /** Returns the output: {@link TokenDispatch}. */
        ForecastArray forward(ForecastArray input) {
            options.checkInput(input.shape(), input.region(), hidden.getShape().get(2));
            pass.use(MixtureOfExperts.this, input);
            boolean cut = input.region().isRowsCut();
            if (cut) { // TokenCounts
                int size = pass.getDataSize();
                long numbers = (long) options.topK * options.experts + 2;
                pass.add(
                        "MixtureOfExperts",
                        Direction.FORWARD,
                        Collective.ALL_GATHER,
                        size,
                        size * numbers * Long.BYTES);
            }
            ForecastArray x = input.with(isTrained("router"));
            ForecastArray y = x.with(isTrained(""));
            Shape local = pass.local(input);
            long features = local.get(local.dimension() - 1);
            long tokens = local.size() / features;
            if (pass.getTensorSize() == 1) {
                return y;
            }
            if (cut && pass.getMesh().isOverlaid()) {
                long all = input.shape().size() / features;
                exchange(input.differentiated(), tokens, all, features);
            } else if (options.exchangeTokens) {
                scattered(x.differentiated(), tokens, features);
            } else {
                if (x.differentiated()) {
                    add(Direction.BACKWARD, Collective.ALL_REDUCE, tokens, features + options.topK);
                }
                add(Direction.FORWARD, Collective.ALL_REDUCE, tokens, features);
            }
            return y;
        }

        /** The tokens are divided over the ranks, exchanged, and put together. */
        private void scattered(boolean differentiated, long tokens, long features) {
            if (differentiated) {
                add(Direction.BACKWARD, Collective.ALL_GATHER, tokens, features + options.topK);
            }
            long own =
                    Cut.balanced(tokens, pass.getTensorSize()).getShardLength(pass.getTensorRank());
            exchange(differentiated, own, tokens, features);
            add(Direction.FORWARD, Collective.ALL_GATHER, tokens, features);
        }

        /**
         * Two all-to-alls each way. The payload of one is what the rank sends: to the experts each
         * of its tokens once for each expert, and back each token once for each expert of the rank.
         */
        private void exchange(boolean differentiated, long own, long all, long features) {
            double capacity =
                    Math.ceil(options.capacityFactor * all * options.topK / options.experts);
            if (options.topK < options.experts || capacity < all) {
                throw new IllegalArgumentException(
                        "How many bytes a MixtureOfExperts of "
                                + options.experts
                                + " experts exchanges follows from which "
                                + options.topK
                                + " of them the tokens choose, and not from shapes: with"
                                + " optExchangeTokens(false) on a mesh of data and tensor it is"
                                + " known, or count a step with CommunicationCounter");
            }
            long there = own * options.experts;
            int experts = owners(pass.getTensorSize()).get(pass.getTensorRank()).length;
            long back = all * experts;
            add(Direction.FORWARD, Collective.ALL_TO_ALL, there, features);
            add(Direction.FORWARD, Collective.ALL_TO_ALL, back, features);
            if (differentiated) {
                add(Direction.BACKWARD, Collective.ALL_TO_ALL, back, features);
            }
            if (differentiated || isTrained("")) {
                add(Direction.BACKWARD, Collective.ALL_TO_ALL, there, features);
            }
        }

        private boolean isTrained(String name) {
            return getDirectParameters().values().stream()
                    .filter(each -> each.getName().startsWith(name))
                    .anyMatch(Parameter::requiresGradient);
        }

        private void add(Direction direction, Collective collective, long rows, long features) {
            pass.getMappings(MixtureOfExperts.this)
                    .add(direction, collective, new Shape(rows, features));
        }
    }
}

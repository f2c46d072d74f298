package io.djltp.nn.moe;

import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.collective.Collective;
import io.djltp.collective.Direction;
import io.djltp.cut.Cut;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastMappings;
import io.djltp.forecast.PassForecast;

/**
 * What a {@link MixtureOfExperts} will communicate, from shapes. Where all ranks have the tokens,
 * that is known. How many rows an all-to-all takes to which rank follows from what the routers
 * choose; it is known only where each token goes to all experts, and none of them is full.
 */
final class MixtureForecast {

    private final MixtureOfExperts block;
    private final PassForecast pass;
    private final MixtureOptions options;
    private final long ownExperts;
    private final ForecastMappings mappings;

    /**
     * Creates a forecast.
     *
     * @param block the block
     * @param pass the pass of one rank
     * @param options the options of the block
     * @param ownExperts the number of experts of which the rank has something
     */
    MixtureForecast(
            MixtureOfExperts block, PassForecast pass, MixtureOptions options, long ownExperts) {
        this.block = block;
        this.pass = pass;
        this.options = options;
        this.ownExperts = ownExperts;
        mappings = pass.getMappings(block);
    }

    /** Returns the output: {@link TokenDispatch}. */
    ForecastArray forward(ForecastArray input) {
        check(input);
        pass.use(block, input);
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
        long own = Cut.balanced(tokens, pass.getTensorSize()).getShardLength(pass.getTensorRank());
        exchange(differentiated, own, tokens, features);
        add(Direction.FORWARD, Collective.ALL_GATHER, tokens, features);
    }

    /**
     * Two all-to-alls each way. The payload of one is what the rank sends: to the experts each of
     * its tokens once for each expert, and back each token once for each expert of the rank.
     */
    private void exchange(boolean differentiated, long own, long all, long features) {
        double capacity = Math.ceil(options.capacityFactor * all * options.topK / options.experts);
        if (options.topK < options.experts || capacity < all) {
            throw new IllegalArgumentException(
                    "How many bytes a MixtureOfExperts of "
                            + options.experts
                            + " experts exchanges follows from which "
                            + options.topK
                            + " of them the tokens choose, and not from shapes: with"
                            + " optExchangeTokens(false) on a mesh of data and tensor it is known,"
                            + " or count a step with CommunicationCounter");
        }
        long there = own * options.experts;
        long back = all * ownExperts;
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
        return block.getDirectParameters().values().stream()
                .filter(each -> each.getName().startsWith(name))
                .anyMatch(Parameter::requiresGradient);
    }

    private void add(Direction direction, Collective collective, long rows, long features) {
        mappings.add(direction, collective, new Shape(rows, features));
    }

    private void check(ForecastArray input) {
        boolean shard = input.region().isShard();
        if (shard || input.region().isTokensCut()) {
            throw new IllegalArgumentException(
                    "MixtureOfExperts of "
                            + options.experts
                            + " experts needs whole tokens, and all of a rank's rows, and gets "
                            + (shard
                                    ? "a slice of the features: build the layer before it with"
                                            + " optGatherOutput(true)"
                                    : "a rank's tokens of a sequence-parallel region: put a"
                                            + " SequenceGather before it"));
        }
    }
}

package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.index.NDIndex;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.layout.ForwardPass;
import io.djltp.layout.Region.Features;
import io.djltp.rank.ParallelContext;
import io.djltp.region.RegionMappings;

import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Takes tokens to the experts and their outputs back. What a token gets is the sum over its choices
 * of the expert's output times the choice's weight; a choice that was dropped adds nothing.
 */
final class TokenDispatch {

    private final NDArray tokens; // [tokens, features]
    private final NDArray weights; // [tokens * k]
    private final Routing routing;
    private final boolean[] kept;
    private final ExpertLayers experts;
    private final ForwardPass pass; // or null

    /**
     * Prepares a dispatch.
     *
     * @param tokens the tokens of this rank, [tokens, features]
     * @param router what was computed of them
     * @param kept which of their choices are kept
     * @param experts the experts of this rank
     * @param pass the pass, or {@code null} outside of ranks
     */
    TokenDispatch(
            NDArray tokens, Router router, boolean[] kept, ExpertLayers experts, ForwardPass pass) {
        this(tokens, router.weights(), router.routing(), kept, experts, pass);
    }

    private TokenDispatch(
            NDArray tokens,
            NDArray weights,
            Routing routing,
            boolean[] kept,
            ExpertLayers experts,
            ForwardPass pass) {
        this.pass = pass;
        this.tokens = tokens;
        this.weights = weights;
        this.routing = routing;
        this.kept = kept;
        this.experts = experts;
    }

    /** Returns the output of experts that are all on this rank, without communication. */
    NDArray local() {
        return ofOwn(tokens, weights, allExperts());
    }

    /**
     * Returns the output where all ranks of the tensor-parallel group have the tokens: each
     * computes what its experts, or its slices of all experts, add to it, and one all-reduce sums.
     * That is right because the output of a token is a sum, of which each summand is on one rank.
     * Backward, one all-reduce sums the gradients of tokens and weights.
     *
     * @param context the rank
     * @param mappings the mappings of the block
     * @param own the experts of which this rank has something
     */
    NDArray replicated(ParallelContext context, RegionMappings mappings, int[] own) {
        NDArray both = pass.enter(mappings.copyToRegion(together()), Features.SHARD);
        NDArray y = ofOwn(tokensOf(both), weightsOf(both), own);
        NDArray sum = mappings.reduceFromRegion(y, true);
        return pass.enter(sum, Features.REPLICATED);
    }

    /**
     * Returns the output where the group's ranks have other tokens each: an all-to-all takes rows
     * to the ranks of their experts, another one takes them back. Backward, the same.
     *
     * @param mappings the mappings of the block
     * @param rank this rank
     * @param owners the experts of each rank
     * @param counts how many tokens of each rank each expert takes
     */
    NDArray exchanged(RegionMappings mappings, int rank, List<int[]> owners, long[][] counts) {
        ShardRange all = new ShardRange(0, routing.tokens());
        return exchanged(mappings, rank, owners, counts, tokens, weights, all);
    }

    /**
     * Returns the output where all ranks have the tokens, which are divided over them first: own
     * slice forward, all-gather of the gradients backward; an all-gather puts the outputs together.
     *
     * @param context the rank
     * @param mappings the mappings of the block
     * @param owners the experts of each rank
     */
    NDArray scattered(ParallelContext context, RegionMappings mappings, List<int[]> owners) {
        int rank = context.getTensorGroup().getRank();
        Cut cut = Cut.balanced(routing.tokens(), owners.size());
        NDArray both = mappings.scatterToSequenceRegion(together(), cut);
        both = pass.enter(both, Features.SHARD);
        long[][] counts = new long[owners.size()][routing.experts()];
        for (int r = 0; r < counts.length; r++) {
            int topK = routing.topK();
            int end = (int) cut.getRange(r).end() * topK;
            for (int i = (int) cut.getRange(r).start() * topK; i < end; i++) {
                counts[r][routing.chosen()[i]] += kept[i] ? 1 : 0;
            }
        }
        NDArray y =
                exchanged(
                        mappings,
                        rank,
                        owners,
                        counts,
                        tokensOf(both),
                        weightsOf(both),
                        cut.getRange(rank));
        NDArray whole = mappings.gatherFromSequenceRegion(y, cut, false);
        return pass.enter(whole, Features.REPLICATED);
    }

    /**
     * Returns the output where the group's ranks have other tokens each, and a slice of every
     * expert, as in Megatron-LM with tensor-parallel experts: an all-gather puts the tokens of all
     * ranks together, and a reduce-scatter gives each rank the sums of its own. Backward, the
     * reduce-scatter of the gradients of tokens and weights, and an all-gather.
     *
     * @param context the rank
     * @param mappings the mappings of the block
     * @param all the number of tokens of all ranks
     */
    NDArray gathered(ParallelContext context, RegionMappings mappings, long all) {
        Cut cut = tokensOfRanks(pass, context.getDataGroup().getSize(), all);
        NDArray both = mappings.gatherFromSequenceRegion(together(), cut, true);
        both = pass.enterGathered(both);
        Choices choices = Choices.gather(context.getDataGroup(), both, routing, kept, cut);
        NDArray x = tokensOf(both);
        TokenDispatch whole =
                new TokenDispatch(
                        x, weightsOf(both), choices.routing(), choices.kept(), experts, pass);
        NDArray y = whole.ofOwn(x, whole.weights, allExperts());
        return pass.enterScattered(mappings.reduceScatterToSequenceRegion(y, cut), all);
    }

    /** Returns which tokens each rank has; a row of the batch may have become several. */
    private static Cut tokensOfRanks(ForwardPass pass, int ranks, long all) {
        long[] lengths = pass.getBatchCut(ranks).getShardLengths();
        long each = all / Math.max(1, pass.getGlobalRows());
        return Cut.ofLengths(Arrays.stream(lengths).map(rows -> rows * each).toArray());
    }

    private int[] allExperts() {
        return IntStream.range(0, routing.experts()).toArray();
    }

    private NDArray ofOwn(NDArray x, NDArray factors, int[] own) {
        DispatchPlan plan = new DispatchPlan(routing, kept, 0, routing.tokens(), own);
        NDArray numbers = Numbers.create(x, plan.getTokens());
        NDArray y = experts.forward(TorchOperations.takeRows(x, numbers), plan.getCounts());
        return sum(y, factors, plan, numbers, routing.tokens());
    }

    private NDArray sum(NDArray y, NDArray factors, DispatchPlan plan, NDArray numbers, long rows) {
        NDArray slots = Numbers.create(y, plan.getSlots());
        NDArray weights = TorchOperations.takeRows(factors, slots);
        return pass == null
                ? TorchOperations.sumRows(y, weights, numbers, rows)
                : pass.join(TorchOperations.sumRows(y, weights, numbers, rows), weights);
    }

    private NDArray exchanged(
            RegionMappings mappings,
            int rank,
            List<int[]> owners,
            long[][] counts,
            NDArray x,
            NDArray factors,
            ShardRange range) {
        int[] order = owners.stream().flatMapToInt(Arrays::stream).toArray();
        DispatchPlan plan =
                new DispatchPlan(routing, kept, (int) range.start(), (int) range.end(), order);
        ArrivalOrder arrival = new ArrivalOrder(counts, owners.get(rank));
        long[] sent = new long[owners.size()];
        for (int r = 0; r < sent.length; r++) {
            for (int e : owners.get(r)) {
                sent[r] += counts[rank][e];
            }
        }
        NDArray numbers = Numbers.create(x, plan.getTokens());
        NDArray arrived =
                mappings.exchange(
                        TorchOperations.takeRows(x, numbers), sent, arrival.getReceived());
        NDArray sorted =
                TorchOperations.takeRows(arrived, Numbers.create(x, arrival.getByExpert()));
        NDArray y = experts.forward(sorted, arrival.getCounts());
        NDArray back = TorchOperations.takeRows(y, Numbers.create(x, arrival.getByRank()));
        NDArray home = mappings.exchange(back, arrival.getReceived(), sent);
        return sum(home, factors, plan, numbers, range.length());
    }

    /** Returns tokens and weights side by side, for one operation: [tokens, features + k]. */
    private NDArray together() {
        return tokens.concat(weights.reshape(routing.tokens(), routing.topK()), 1);
    }

    private NDArray tokensOf(NDArray both) {
        long features = tokens.getShape().get(1);
        return both.get(new NDIndex().addAllDim().addSliceDim(0, features));
    }

    private NDArray weightsOf(NDArray both) {
        long features = tokens.getShape().get(1);
        NDIndex last = new NDIndex().addAllDim();
        return both.get(last.addSliceDim(features, features + routing.topK()))
                .reshape(both.getShape().get(0) * routing.topK());
    }
}

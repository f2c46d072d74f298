package io.djltp.nn.moe;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.internal.layout.ForwardPass;
import io.djltp.internal.layout.Region.Features;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.internal.region.RegionMappings;
import io.djltp.internal.torch.TorchOperations;
import io.djltp.nn.moe.Router.Choices;
import io.djltp.nn.moe.Router.Routing;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;

/**
 * Takes tokens to the experts and their outputs back. What a token gets is the sum over its choices
 * of the expert's output times the choice's weight; a choice that was dropped adds nothing.
 *
 * @param tokens the tokens of this rank, [tokens, features]
 * @param weights the weight of each of their choices, [tokens * k]
 * @param choices the choices
 * @param experts the experts of this rank
 * @param pass the pass, or {@code null} outside of ranks
 */
record TokenDispatch(
        NDArray tokens,
        NDArray weights,
        Choices choices,
        Experts experts,
        @Nullable ForwardPass pass) {

    private ForwardPass ofRank() {
        if (pass == null) {
            throw new IllegalStateException("There are no ranks to dispatch tokens to");
        }
        return pass;
    }

    /** Returns the output of experts that are all on this rank, without communication. */
    NDArray local() {
        return ofOwn(IntStream.range(0, choices.routing().experts()).toArray());
    }

    /**
     * Returns the output where all ranks of the tensor-parallel group have the tokens: each
     * computes what its experts, or its slices of all experts, add to it, and one all-reduce sums.
     * That is right because the output of a token is a sum, of which each summand is on one rank.
     * Backward, one all-reduce sums the gradients of tokens and weights.
     *
     * @param mappings the mappings of the block
     * @param own the experts of which this rank has something
     */
    NDArray replicated(RegionMappings mappings, int[] own) {
        NDArray both = ofRank().enter(mappings.copyToRegion(together()), Features.SHARD);
        NDArray sum = mappings.reduceFromRegion(of(both, choices).ofOwn(own), true);

        return ofRank().enter(sum, Features.REPLICATED);
    }

    /**
     * Returns the output where all ranks have the tokens, which are divided over them first: own
     * slice forward, all-gather of the gradients backward; an all-gather puts the outputs together.
     *
     * @param mappings the mappings of the block
     * @param rank this rank
     * @param owners the experts of each rank
     */
    NDArray scattered(RegionMappings mappings, int rank, List<int[]> owners) {
        Routing routing = choices.routing();
        Cut cut = Cut.balanced(routing.tokens(), owners.size());
        NDArray both = mappings.scatterToSequenceRegion(together(), cut);
        both = ofRank().enter(both, Features.SHARD);
        long[][] counts = new long[owners.size()][routing.experts()];
        for (int r = 0; r < counts.length; r++) {
            int end = (int) cut.getRange(r).end() * routing.topK();
            for (int i = (int) cut.getRange(r).start() * routing.topK(); i < end; i++) {
                counts[r][routing.chosen()[i]] += choices.kept()[i] ? 1 : 0;
            }
        }
        NDArray y = of(both, choices).exchanged(mappings, rank, owners, counts, cut.getRange(rank));
        NDArray whole = mappings.gatherFromSequenceRegion(y, cut, false);

        return ofRank().enter(whole, Features.REPLICATED);
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
        Cut cut = ofRank().getRowCut(context.getDataGroup().getSize(), all);
        NDArray both = mappings.gatherFromSequenceRegion(together(), cut, true);
        both = ofRank().enterGathered(both);
        Choices ofAll = choices.ofAllRanks(context.getDataGroup(), both.getManager(), cut);
        NDArray y = of(both, ofAll).local();

        return ofRank().enterScattered(mappings.reduceScatterToSequenceRegion(y, cut), all);
    }

    /**
     * Returns the output where the group's ranks have other tokens each: an all-to-all takes rows
     * to the ranks of their experts, another one takes them back. Backward, the same.
     *
     * @param mappings the mappings of the block
     * @param rank this rank
     * @param owners the experts of each rank
     * @param counts how many tokens of each rank each expert takes
     * @param range which of the tokens that were routed the rank has
     */
    NDArray exchanged(
            RegionMappings mappings,
            int rank,
            List<int[]> owners,
            long[][] counts,
            ShardRange range) {
        int[] order = owners.stream().flatMapToInt(Arrays::stream).toArray();
        Plan plan = Plan.of(choices, (int) range.start(), (int) range.end(), order);
        Arrival arrival = Arrival.of(counts, owners.get(rank));
        long[] sent = new long[owners.size()];
        for (int r = 0; r < sent.length; r++) {
            for (int e : owners.get(r)) {
                sent[r] += counts[rank][e];
            }
        }
        NDArray numbers = numbers(tokens, plan.tokens());
        NDArray rows = TorchOperations.takeRows(tokens, numbers);
        NDArray arrived = mappings.exchange(rows, sent, arrival.received());
        NDArray sorted = TorchOperations.takeRows(arrived, numbers(tokens, arrival.byExpert()));
        NDArray y = experts.forward(sorted, arrival.counts());
        NDArray back = TorchOperations.takeRows(y, numbers(tokens, arrival.byRank()));
        NDArray home = mappings.exchange(back, arrival.received(), sent);
        return sum(home, plan, numbers, range.length());
    }

    private NDArray ofOwn(int[] own) {
        int all = choices.routing().tokens();
        Plan plan = Plan.of(choices, 0, all, own);
        NDArray numbers = numbers(tokens, plan.tokens());
        NDArray y = experts.forward(TorchOperations.takeRows(tokens, numbers), plan.counts());
        return sum(y, plan, numbers, all);
    }

    private NDArray sum(NDArray y, Plan plan, NDArray numbers, long rows) {
        NDArray factors = TorchOperations.takeRows(weights, numbers(y, plan.slots()));
        NDArray sum = TorchOperations.sumRows(y, factors, numbers, rows);
        return pass == null ? sum : pass.join(sum, factors);
    }

    /** Returns tokens and weights side by side, for one operation: [tokens, features + k]. */
    private NDArray together() {
        Routing routing = choices.routing();
        return tokens.concat(weights.reshape(routing.tokens(), routing.topK()), 1);
    }

    /** Returns the dispatch of tokens and weights that are side by side. */
    private TokenDispatch of(NDArray both, Choices chosen) {
        long features = tokens.getShape().get(1);
        long topK = chosen.routing().topK();
        NDArray x = both.get(new NDIndex().addAllDim().addSliceDim(0, features));
        NDIndex last = new NDIndex().addAllDim().addSliceDim(features, features + topK);
        NDArray factors = both.get(last).reshape(both.getShape().get(0) * topK);
        return new TokenDispatch(x, factors, chosen, experts, pass);
    }

    /** Returns numbers of rows as an array of the pass. */
    static NDArray numbers(NDArray like, long[] numbers) {
        return numbers.length == 0 // of which DJL would make a scalar
                ? like.getManager().create(new Shape(0), DataType.INT64)
                : like.getManager().create(numbers);
    }

    /** Returns where each of several lists begins that lie one behind the other. */
    private static int[] starts(long[] counts) {
        int[] starts = new int[counts.length];
        for (int i = 1; i < starts.length; i++) {
            starts[i] = starts[i - 1] + (int) counts[i - 1];
        }
        return starts;
    }

    /**
     * The rows that tokens send to experts, in the order of the experts: a row for each choice that
     * is kept.
     *
     * @param tokens the token of each row, from 0 for the first of them
     * @param slots the place of each row's weight, in [tokens, k]
     * @param counts the number of rows of each expert, in the order that was given
     */
    record Plan(long[] tokens, long[] slots, long[] counts) {

        /**
         * Makes a plan for some consecutive tokens.
         *
         * @param choices the choices
         * @param first the first token
         * @param end the token after the last one
         * @param order the experts, in the order in which their rows come; what has chosen another
         *     expert sends nothing
         */
        static Plan of(Choices choices, int first, int end, int[] order) {
            Routing routing = choices.routing();
            int topK = routing.topK();
            int[] places = new int[routing.experts()];
            Arrays.fill(places, -1);
            for (int i = 0; i < order.length; i++) {
                places[order[i]] = i;
            }
            int[] sent =
                    IntStream.range(first * topK, end * topK)
                            .filter(i -> choices.kept()[i] && places[routing.chosen()[i]] >= 0)
                            .toArray();
            long[] counts = new long[order.length];
            for (int i : sent) {
                counts[places[routing.chosen()[i]]]++;
            }
            int[] next = starts(counts);
            long[] tokens = new long[sent.length];
            long[] slots = new long[sent.length];
            for (int i : sent) {
                int row = next[places[routing.chosen()[i]]]++;
                tokens[row] = i / topK - first;
                slots[row] = i - first * topK;
            }
            return new Plan(tokens, slots, counts);
        }
    }

    /**
     * The order of rows that arrive at the rank of their experts: those of rank 0 first, and of one
     * rank those for the first expert first. The experts need them by expert.
     *
     * @param received how many rows come from each rank
     * @param counts how many rows each expert gets
     * @param byExpert in the order of the experts, which row of those that have arrived it is
     * @param byRank in the order of arrival, which row of those by expert it is
     */
    record Arrival(long[] received, long[] counts, long[] byExpert, long[] byRank) {

        /**
         * Works the order out.
         *
         * @param rows how many rows of each rank are for each expert
         * @param own the experts of this rank
         */
        static Arrival of(long[][] rows, int[] own) {
            long[] received = new long[rows.length];
            long[] counts = new long[own.length];
            for (int r = 0; r < rows.length; r++) {
                for (int i = 0; i < own.length; i++) {
                    received[r] += rows[r][own[i]];
                    counts[i] += rows[r][own[i]];
                }
            }
            int all = (int) Arrays.stream(received).sum();
            long[] byExpert = new long[all];
            long[] byRank = new long[all];
            int[] next = starts(counts);
            int arrived = 0;
            for (long[] row : rows) {
                for (int i = 0; i < own.length; i++) {
                    for (long n = 0; n < row[own[i]]; n++) {
                        byExpert[next[i]] = arrived;
                        byRank[arrived++] = next[i]++;
                    }
                }
            }
            return new Arrival(received, counts, byExpert, byRank);
        }
    }

    /**
     * The experts of a rank: two linear layers each, with an activation between them.
     *
     * <pre>
     *   y = act(x W1^T) W2^T                plain
     *   y = (act(x Wg^T) * (x W1^T)) W2^T   gated
     * </pre>
     *
     * @param hidden W1 of each expert, [experts, hidden, features]
     * @param gate Wg of each expert, the same shape, or {@code null}
     * @param output W2 of each expert, [experts, features, hidden]
     * @param activation the activation, elementwise
     */
    record Experts(
            NDArray hidden,
            @Nullable NDArray gate,
            NDArray output,
            Function<NDArray, NDArray> activation) {

        /**
         * Computes the experts. One without a row takes part with none, so that all passes have the
         * same operations, and its gradient is zero.
         *
         * @param rows the rows, those of the first expert first, [rows, features]
         * @param counts the number of rows of each expert
         * @return the outputs, in the same order
         */
        NDArray forward(NDArray rows, long[] counts) {
            NDList parts = TorchOperations.split(rows, counts);
            NDList first = TorchOperations.unstack(hidden, rows.getManager());
            NDList gates = gate == null ? null : TorchOperations.unstack(gate, rows.getManager());
            NDList last = TorchOperations.unstack(output, rows.getManager());
            NDList outputs = new NDList();
            for (int e = 0; e < counts.length; e++) {
                NDArray x = parts.get(e);
                NDArray h = linear(x, first.get(e)); // [rows of e, hidden]
                h =
                        gates == null
                                ? activation.apply(h)
                                : activation.apply(linear(x, gates.get(e))).mul(h);
                outputs.add(linear(h, last.get(e)));
            }
            return TorchOperations.concat(outputs, 0);
        }

        private static NDArray linear(NDArray x, NDArray weight) {
            return Linear.linear(x, weight).singletonOrThrow();
        }
    }
}

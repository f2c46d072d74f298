package io.djltp.llm;

import io.djltp.internal.decode.RankRows;

import java.util.Arrays;
import java.util.BitSet;

/**
 * Chooses tokens by logits of which each rank has its part. Between ranks go their best tokens and
 * some sums, never all logits: all ranks see the same numbers, and choose the same token.
 *
 * <p>A drawn token is the one at which the sum of probabilities, in the order of ids, reaches a
 * number in [0, 1) that follows from the seed and the number of the token. So it depends on how the
 * ids are cut over the ranks by no more than the last bits of sums.
 */
final class TokenSampler {

    private static final int CANDIDATES = 64; // of a rank, at first

    private final RankRows group;
    private final int rank;
    private final int ranks;
    private final int firstId;
    private final int ids; // of this rank
    private final int mostIds; // of any
    private final float[] sent;
    private final float[] received;
    private final BitSet seen = new BitSet();

    // the best tokens of all ranks, the best first
    private float[] values = {};
    private int[] tokens = {};
    private int found;

    TokenSampler(RankRows group, int rank, int ranks, int firstId, int ids, int mostIds) {
        this.group = group;
        this.rank = rank;
        this.ranks = ranks;
        this.firstId = firstId;
        this.ids = ids;
        this.mostIds = mostIds;
        sent = new float[2 * mostIds + 2];
        received = new float[ranks * sent.length];
    }

    /**
     * Chooses a token.
     *
     * @param logits logits, those of the rank from the offset; changed by a penalty
     * @param offset where they begin
     * @param sampling how it is chosen
     * @return the id, the same on all ranks
     */
    int choose(float[] logits, int offset, DecoderStep.Sampling sampling) {
        GenerationOptions options = sampling.options();
        if (options.getRepetitionPenalty() != 1) {
            penalize(logits, offset, sampling.context(), options.getRepetitionPenalty());
        }
        if (options.isGreedy() || options.getTopK() == 1) {
            gatherBest(logits, offset, 1);
            return tokens[0];
        }
        double chance = chance(options.getSeed(), sampling.number());
        if (options.getTopK() > 0) {
            gatherBest(logits, offset, Math.min(options.getTopK(), ranks * mostIds));
            double all = 0;
            for (int i = 0; i < found; i++) {
                all += weight(values[i], values[0], options);
            }
            keepLikeliest(options, all);
            return draw(options, chance);
        }
        if (options.getTopP() < 1) {
            double all = sum(logits, offset, Float.NEGATIVE_INFINITY, options);
            for (int count = CANDIDATES; ; count *= 4) {
                gatherBest(logits, offset, Math.min(count, ranks * mostIds));
                if (keepLikeliest(options, all) || count >= ranks * mostIds) {
                    return draw(options, chance);
                }
            }
        }
        return drawOfAll(logits, offset, options, chance);
    }

    private void penalize(float[] logits, int offset, int[] context, float penalty) {
        seen.clear();
        for (int id : context) {
            int own = id - firstId;
            if (own >= 0 && own < ids && !seen.get(own)) {
                seen.set(own);
                float logit = logits[offset + own];
                logits[offset + own] = logit > 0 ? logit / penalty : logit * penalty;
            }
        }
    }

    /** Returns a number in [0, 1): two rounds of SplitMix64. */
    static double chance(long seed, long number) {
        long bits = mix(mix(seed) + (number + 1) * 0x9E3779B97F4A7C15L);
        return (bits >>> 11) * 0x1p-53;
    }

    private static long mix(long seed) {
        long bits = seed + 0x9E3779B97F4A7C15L;
        bits = (bits ^ bits >>> 30) * 0xBF58476D1CE4E5B9L;
        bits = (bits ^ bits >>> 27) * 0x94D049BB133111EBL;
        return bits ^ bits >>> 31;
    }

    private static double weight(float logit, float best, GenerationOptions options) {
        return Math.exp(((double) logit - best) / options.getTemperature());
    }

    /** Finds so many of the best tokens, or all if there are not so many. */
    private void gatherBest(float[] logits, int offset, int count) {
        int each = Math.min(count, mostIds);
        int own = best(logits, offset, Math.min(each, ids));
        for (int i = own; i < each; i++) { // a rank may have fewer ids
            sent[2 * i] = Float.NEGATIVE_INFINITY;
            sent[2 * i + 1] = -1;
        }
        group.gather(sent, 2 * each, received);
        if (tokens.length != count) {
            tokens = new int[count];
            values = new float[count];
        }
        int[] next = new int[ranks]; // merges what is in order
        for (found = 0; found < count; found++) {
            int from = -1;
            for (int i = 0; i < ranks; i++) {
                if (next[i] < each && received[2 * (i * each + next[i]) + 1] >= 0) {
                    // of equal ones that of the lower rank, which has the lower id
                    if (from < 0 || value(i, next[i], each) > value(from, next[from], each)) {
                        from = i;
                    }
                }
            }
            if (from < 0) {
                break;
            }
            values[found] = value(from, next[from], each);
            tokens[found] = (int) received[2 * (from * each + next[from]) + 1];
            next[from]++;
        }
    }

    private float value(int from, int index, int each) {
        return received[2 * (from * each + index)];
    }

    /** Puts the best tokens of this rank in order into what is sent, and returns how many. */
    private int best(float[] logits, int offset, int count) {
        if (count == 1) {
            int best = 0;
            for (int i = 1; i < ids; i++) {
                if (logits[offset + i] > logits[offset + best]) {
                    best = i;
                }
            }
            check(logits[offset + best]);
            sent[0] = logits[offset + best];
            sent[1] = firstId + best;
            return 1;
        }
        // a heap of keys, the least first: the value, then the id from above
        long[] heap = new long[count];
        int size = 0;
        for (int i = 0; i < ids; i++) {
            long key = key(logits[offset + i], i);
            if (size < count) {
                heap[size] = key;
                for (int at = size++; at > 0 && heap[(at - 1) / 2] > heap[at]; at = (at - 1) / 2) {
                    swap(heap, at, (at - 1) / 2);
                }
            } else if (key > heap[0]) {
                heap[0] = key;
                sink(heap, size);
            }
        }
        Arrays.sort(heap);
        for (int i = 0; i < count; i++) {
            int own = Integer.MAX_VALUE - (int) heap[count - 1 - i];
            sent[2 * i] = logits[offset + own];
            sent[2 * i + 1] = firstId + own;
        }
        check(sent[0]);
        return count;
    }

    private static void check(float best) {
        if (!(Math.abs(best) <= Float.MAX_VALUE)) {
            throw new IllegalStateException(
                    "The largest logit is "
                            + best
                            + ": the weights of the model have numbers that are not finite, or"
                            + " too large ones");
        }
    }

    /** Returns a number in whose order values go up, and of equal ones the ids go down. */
    private static long key(float value, int id) {
        int bits = Float.floatToIntBits(value + 0f); // -0 is 0
        int ordered = bits >= 0 ? bits : bits ^ 0x7fffffff;
        return (long) ordered << 32 | Integer.MAX_VALUE - id;
    }

    private static void sink(long[] heap, int size) {
        int at = 0;
        while (true) {
            int least = 2 * at + 1;
            if (least >= size) {
                return;
            }
            if (least + 1 < size && heap[least + 1] < heap[least]) {
                least++;
            }
            if (heap[at] <= heap[least]) {
                return;
            }
            swap(heap, at, least);
            at = least;
        }
    }

    private static void swap(long[] heap, int one, int other) {
        long kept = heap[one];
        heap[one] = heap[other];
        heap[other] = kept;
    }

    /**
     * Keeps the likeliest tokens that have the wanted share of the probability, and those of them
     * that have the wanted share of the best one's.
     *
     * @return whether the share is reached by the tokens that are known
     */
    private boolean keepLikeliest(GenerationOptions options, double all) {
        boolean reached = options.getTopP() == 1;
        double sum = 0;
        int kept = 0;
        while (kept < found && !(reached && options.getTopP() < 1)) {
            double weight = weight(values[kept], values[0], options);
            if (weight < options.getMinP()) {
                reached = true; // those that follow are less likely
                break;
            }
            sum += weight;
            kept++;
            if (options.getTopP() < 1) {
                reached = sum >= options.getTopP() * all;
            }
        }
        if (reached) {
            found = Math.max(1, kept);
        }
        return reached;
    }

    /** Draws one of the tokens that are kept, in the order of their ids. */
    private int draw(GenerationOptions options, double chance) {
        float best = values[0];
        Integer[] order = new Integer[found];
        Arrays.setAll(order, i -> i);
        Arrays.sort(order, (a, b) -> Integer.compare(tokens[a], tokens[b]));
        double all = 0;
        for (int i : order) {
            all += weight(values[i], best, options);
        }
        double sum = 0;
        for (int i : order) {
            sum += weight(values[i], best, options);
            if (sum > chance * all) {
                return tokens[i];
            }
        }
        return tokens[order[found - 1]];
    }

    /**
     * Returns the sum over all ranks relative to the best token, whose logit is the first value.
     */
    private double sum(float[] logits, int offset, float least, GenerationOptions options) {
        gatherBest(logits, offset, 1);
        double own = ownSum(logits, offset, least, options);
        double all = 0;
        for (double each : gather(own)) {
            all += each;
        }
        return all;
    }

    private double ownSum(float[] logits, int offset, float least, GenerationOptions options) {
        double sum = 0;
        for (int i = offset; i < offset + ids; i++) {
            if (logits[i] >= least) {
                sum += weight(logits[i], values[0], options);
            }
        }
        return sum;
    }

    /** Gathers a number of each rank, in two parts. */
    private double[] gather(double own) {
        sent[0] = (float) own;
        sent[1] = (float) (own - sent[0]);
        group.gather(sent, 2, received);
        double[] all = new double[ranks];
        Arrays.setAll(all, i -> (double) received[2 * i] + received[2 * i + 1]);
        return all;
    }

    private int drawOfAll(float[] logits, int offset, GenerationOptions options, double chance) {
        gatherBest(logits, offset, 1);
        float least = Float.NEGATIVE_INFINITY;
        if (options.getMinP() > 0) {
            double below = options.getTemperature() * Math.log(options.getMinP());
            least = (float) Math.min(values[0], values[0] + below);
        }
        double[] sums = gather(ownSum(logits, offset, least, options));
        double wanted = chance * Arrays.stream(sums).sum();
        int owner = 0;
        int last = 0; // of those that have a token
        for (int i = 0; i < ranks; i++) {
            last = sums[i] > 0 ? i : last;
        }
        while (owner < last && wanted >= sums[owner]) {
            wanted -= sums[owner++];
        }
        sent[0] = rank == owner ? firstId + find(logits, offset, least, options, wanted) : -1;
        group.gather(sent, 1, received);
        return (int) received[owner];
    }

    private int find(
            float[] logits, int offset, float least, GenerationOptions options, double wanted) {
        double sum = 0;
        int last = 0;
        for (int i = 0; i < ids; i++) {
            if (logits[offset + i] >= least) {
                double weight = weight(logits[offset + i], values[0], options);
                sum += weight;
                last = weight > 0 ? i : last;
                if (sum > wanted) {
                    return i;
                }
            }
        }
        return last;
    }
}

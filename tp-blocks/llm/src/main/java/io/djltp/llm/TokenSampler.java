package io.djltp.llm;

import io.djltp.internal.decode.RankRows;
import io.djltp.llm.GeneratedToken.LogProbability;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.PriorityQueue;

/**
 * Chooses tokens by logits of which each rank has its part. Between ranks go their best tokens and
 * some sums, never all logits: all ranks see the same numbers, and choose the same token.
 *
 * <p>A drawn token is the one whose logit, divided by the temperature, is the largest with noise
 * added to each: of Gumbel's distribution, so that probabilities are those of the softmax (Maddison
 * et al., 2014, <a href="https://arxiv.org/abs/1411.0030">arXiv:1411.0030</a>). The noise follows
 * from the seed, the number of the token and the id. So a token depends on how the ids are cut over
 * the ranks only if two are equal up to rounding.
 */
final class TokenSampler {

    private static final int CANDIDATES = 64; // of a rank, at first

    private final RankRows group;
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

    TokenSampler(RankRows group, int ranks, int firstId, int ids, int mostIds) {
        this.group = group;
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
     * @return the token, the same on all ranks
     */
    DecoderStep.Choice choose(float[] logits, int offset, DecoderStep.Sampling sampling)
            throws IOException {
        if (sampling.logits()) {
            float[] own = Arrays.copyOfRange(logits, offset, offset + ids);
            return new DecoderStep.Choice(chooseId(logits, offset, sampling), List.of(), own);
        }
        int likeliest = sampling.options().getLogProbabilities();
        if (likeliest < 0) {
            int id = chooseId(logits, offset, sampling);
            return new DecoderStep.Choice(id, List.of(), null);
        }
        float[] before = Arrays.copyOfRange(logits, offset, offset + ids);
        double all = sum(before, 0, 1);
        double shift = values[0] + Math.log(all);
        gatherBest(before, 0, Math.min(Math.max(1, likeliest), ranks * mostIds));
        List<LogProbability> probabilities = new ArrayList<>();
        for (int i = 0; i < Math.min(likeliest, found); i++) {
            probabilities.add(new LogProbability(tokens[i], values[i] - shift));
        }
        int id = chooseId(logits, offset, sampling);
        boolean isOwn = id >= firstId && id < firstId + ids;
        sent[0] = isOwn ? before[id - firstId] : Float.NEGATIVE_INFINITY;
        group.gather(sent, 1, received);
        float logit = received[0];
        for (int i = 1; i < ranks; i++) {
            logit = Math.max(logit, received[i]);
        }
        probabilities.add(0, new LogProbability(id, logit - shift));
        return new DecoderStep.Choice(id, List.copyOf(probabilities), null);
    }

    private int chooseId(float[] logits, int offset, DecoderStep.Sampling sampling)
            throws IOException {
        GenerationOptions options = sampling.options();
        if (options.getRepetitionPenalty() != 1) {
            penalize(logits, offset, sampling.context(), options.getRepetitionPenalty());
        }
        if (options.isGreedy() || options.getTopK() == 1) {
            gatherBest(logits, offset, 1);
            return tokens[0];
        }
        long key = key(options.getSeed(), sampling.sample(), sampling.number());
        if (options.getTopK() > 0) {
            gatherBest(logits, offset, Math.min(options.getTopK(), ranks * mostIds));
            double all = 0;
            for (int i = 0; i < found; i++) {
                all += weight(values[i], values[0], options.getTemperature());
            }
            keepLikeliest(options, all);
            return draw(options, key);
        }
        if (options.getTopP() < 1) {
            double all = sum(logits, offset, options.getTemperature());
            for (int count = CANDIDATES; ; count *= 4) {
                gatherBest(logits, offset, Math.min(count, ranks * mostIds));
                if (keepLikeliest(options, all) || count >= ranks * mostIds) {
                    return draw(options, key);
                }
            }
        }
        return drawOfAll(logits, offset, options, key);
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

    /** Returns what the noise of all ids follows from. */
    static long key(long seed, int sample, int number) {
        long mixed = mix(seed);
        return mix((sample == 0 ? mixed : mix(mixed - sample)) + number);
    }

    /** Returns the noise of an id. */
    static double noise(long key, int id) {
        return -Math.log(-Math.log(chance(key, id)));
    }

    /** Returns a number between 0 and 1: SplitMix64. */
    private static double chance(long key, int id) {
        return ((mix(key + id * 0x9E3779B97F4A7C15L) >>> 11) + 0.5) * 0x1p-53;
    }

    private static long mix(long seed) {
        long bits = seed + 0x9E3779B97F4A7C15L;
        bits = (bits ^ bits >>> 30) * 0xBF58476D1CE4E5B9L;
        bits = (bits ^ bits >>> 27) * 0x94D049BB133111EBL;
        return bits ^ bits >>> 31;
    }

    private static double weight(float logit, float best, float temperature) {
        return Math.exp(((double) logit - best) / temperature);
    }

    /** Finds so many of the best tokens, or all if there are not so many. */
    private void gatherBest(float[] logits, int offset, int count) throws IOException {
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
    private int best(float[] logits, int offset, int count) throws IOException {
        if (count == 1) {
            int best = 0;
            for (int i = 1; i < ids; i++) {
                if (logits[offset + i] > logits[offset + best]) {
                    best = i;
                }
            }
            RankWeights.checkFinite("The largest logit", logits[offset + best]);
            sent[0] = logits[offset + best];
            sent[1] = firstId + best;
            return 1;
        }
        PriorityQueue<Long> keys = new PriorityQueue<>(count); // the least first
        for (int i = 0; i < ids; i++) {
            long key = order(logits[offset + i], i);
            if (keys.size() == count && key > keys.element()) {
                keys.remove();
            }
            if (keys.size() < count) {
                keys.add(key);
            }
        }
        for (int i = count - 1; i >= 0; i--) {
            int own = Integer.MAX_VALUE - (int) (long) keys.remove();
            sent[2 * i] = logits[offset + own];
            sent[2 * i + 1] = firstId + own;
        }
        RankWeights.checkFinite("The largest logit", sent[0]);
        return count;
    }

    /** Returns a number in whose order values go up, and of equal ones the ids go down. */
    private static long order(float value, int id) {
        int bits = Float.floatToIntBits(value + 0f); // -0 is 0
        int ordered = bits >= 0 ? bits : bits ^ 0x7fffffff;
        return (long) ordered << 32 | Integer.MAX_VALUE - id;
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
            double weight = weight(values[kept], values[0], options.getTemperature());
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

    /** Draws one of the tokens that are kept. */
    private int draw(GenerationOptions options, long key) {
        int best = 0;
        double most = Double.NEGATIVE_INFINITY;
        for (int i = 0; i < found; i++) {
            double sum = (double) values[i] / options.getTemperature() + noise(key, tokens[i]);
            if (sum > most || sum == most && tokens[i] < tokens[best]) {
                best = i;
                most = sum;
            }
        }
        return tokens[best];
    }

    /**
     * Returns the sum over all ranks relative to the best token, whose logit is the first value.
     */
    private double sum(float[] logits, int offset, float temperature) throws IOException {
        gatherBest(logits, offset, 1);
        double own = 0;
        for (int i = offset; i < offset + ids; i++) {
            own += weight(logits[i], values[0], temperature);
        }
        return Arrays.stream(gather(own)).sum();
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

    private int drawOfAll(float[] logits, int offset, GenerationOptions options, long key)
            throws IOException {
        gatherBest(logits, offset, 1);
        double temperature = options.getTemperature();
        double best = values[0] / temperature;
        double least = Double.NEGATIVE_INFINITY;
        if (options.getMinP() > 0) {
            least = best + Math.log(options.getMinP());
        }
        int own = -1;
        double most = Double.NEGATIVE_INFINITY;
        double bound = best + noise(key, tokens[0]); // what a token must reach to win
        for (int i = 0; i < ids; i++) {
            double value = logits[offset + i] / temperature;
            // -log(-log(u)) >= b - v needs 1 - u <= exp(v - b), which is at most 1 / (1 + b - v)
            double behind = Math.max(0, bound - value);
            boolean possible = (1 - chance(key, firstId + i)) * (1 + behind) <= 1;
            if (possible && value >= least) {
                double sum = value + noise(key, firstId + i);
                if (sum > most) {
                    own = i;
                    most = sum;
                    bound = Math.max(bound, sum);
                }
            }
        }
        double[] sums = gather(own < 0 ? 0 : most - best);
        sent[0] = own < 0 ? -1 : firstId + own;
        group.gather(sent, 1, received);
        int winner = -1;
        for (int i = 0; i < ranks; i++) {
            if (received[i] >= 0 && (winner < 0 || sums[i] > sums[winner])) {
                winner = i;
            }
        }
        return (int) received[winner];
    }
}

package io.djltp.nn.moe;

import java.util.Arrays;

/**
 * The rows that tokens send to experts, in the order of the experts: a row for each choice that is
 * kept.
 */
final class DispatchPlan {

    private final long[] tokens;
    private final long[] slots;
    private final long[] counts;

    /**
     * Makes a plan for some consecutive tokens.
     *
     * @param routing the choices
     * @param kept which of them are kept
     * @param first the first token
     * @param end the token after the last one
     * @param order the experts, in the order in which their rows come; what has chosen another
     *     expert sends nothing
     */
    DispatchPlan(Routing routing, boolean[] kept, int first, int end, int[] order) {
        int[] places = new int[routing.experts()];
        Arrays.fill(places, -1);
        for (int i = 0; i < order.length; i++) {
            places[order[i]] = i;
        }
        int topK = routing.topK();
        counts = new long[order.length];
        for (int i = first * topK; i < end * topK; i++) {
            int place = places[routing.chosen()[i]];
            if (place >= 0 && kept[i]) {
                counts[place]++;
            }
        }
        int rows = (int) Arrays.stream(counts).sum();
        tokens = new long[rows];
        slots = new long[rows];
        int[] next = new int[order.length];
        for (int i = 1; i < next.length; i++) {
            next[i] = next[i - 1] + (int) counts[i - 1];
        }
        for (int i = first * topK; i < end * topK; i++) {
            int place = places[routing.chosen()[i]];
            if (place >= 0 && kept[i]) {
                int row = next[place]++;
                tokens[row] = i / topK - first;
                slots[row] = i - first * topK;
            }
        }
    }

    /** Returns the token of each row, from 0 for the first of them. */
    long[] getTokens() {
        return tokens;
    }

    /** Returns the place of each row's weight, in [tokens, k]. */
    long[] getSlots() {
        return slots;
    }

    /** Returns the number of rows of each expert, in the order that was given. */
    long[] getCounts() {
        return counts;
    }
}

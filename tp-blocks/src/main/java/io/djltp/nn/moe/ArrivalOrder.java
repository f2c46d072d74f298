package io.djltp.nn.moe;

import java.util.Arrays;

/**
 * The order of rows that arrive at the rank of their experts: those of rank 0 first, and of one
 * rank those for the first expert first. The experts need them by expert.
 */
final class ArrivalOrder {

    private final long[] received;
    private final long[] counts;
    private final long[] byExpert;
    private final long[] byRank;

    /**
     * Works the order out.
     *
     * @param rows how many rows of each rank are for each expert
     * @param own the experts of this rank
     */
    ArrivalOrder(long[][] rows, int[] own) {
        received = new long[rows.length];
        counts = new long[own.length];
        for (int r = 0; r < rows.length; r++) {
            for (int i = 0; i < own.length; i++) {
                received[r] += rows[r][own[i]];
                counts[i] += rows[r][own[i]];
            }
        }
        int all = (int) Arrays.stream(received).sum();
        byExpert = new long[all];
        byRank = new long[all];
        int[] next = new int[own.length];
        for (int i = 1; i < next.length; i++) {
            next[i] = next[i - 1] + (int) counts[i - 1];
        }
        int arrived = 0;
        for (long[] row : rows) {
            for (int i = 0; i < own.length; i++) {
                for (long n = 0; n < row[own[i]]; n++) {
                    byExpert[next[i]] = arrived;
                    byRank[arrived++] = next[i]++;
                }
            }
        }
    }

    /** Returns how many rows come from each rank. */
    long[] getReceived() {
        return received;
    }

    /** Returns how many rows each expert gets. */
    long[] getCounts() {
        return counts;
    }

    /** Returns, in the order of the experts, which row of those that have arrived it is. */
    long[] getByExpert() {
        return byExpert;
    }

    /** Returns, in the order of arrival, which row of those by expert it is. */
    long[] getByRank() {
        return byRank;
    }
}

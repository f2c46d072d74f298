package io.djltp.collective;

import java.util.Arrays;
import java.util.StringJoiner;

/**
 * The shares of an operation in words. Of many ranks, equal neighbours are counted: the text goes
 * with each message to each peer, and into every rank's last calls. Different shares still have
 * different texts.
 */
final class SharesText {

    private static final int EACH = 8; // as many are listed one by one

    private SharesText() {}

    /**
     * Describes shares.
     *
     * @param shares the shares
     * @return such as {@code [4, 4, 4]}, or {@code [3 x 5, 61 x 4]}
     */
    static String of(long[] shares) {
        if (shares.length <= EACH) {
            return Arrays.toString(shares);
        }
        StringJoiner text = new StringJoiner(", ", "[", "]");
        int first = 0;
        for (int i = 1; i <= shares.length; i++) {
            if (i == shares.length || shares[i] != shares[first]) {
                int count = i - first;
                text.add((count == 1 ? "" : count + " x ") + shares[first]);
                first = i;
            }
        }
        return text.toString();
    }
}

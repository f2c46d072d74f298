package io.djltp.zoo;

import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.stream.Collectors;

/** Over how many ranks the parameters of a network can be cut. */
final class CutLimit {

    private static final int SEARCHED = 1024; // numbers of ranks that are tried

    private final List<StoredNetwork.Entry> cut;

    CutLimit(StoredNetwork network) {
        cut =
                network.getEntries().stream()
                        .filter(StoredNetwork.Entry::isCut)
                        .collect(Collectors.toList());
    }

    /** Returns whether no parameter can be cut. */
    boolean isOne() {
        return cut.isEmpty();
    }

    /** Returns the greatest number of ranks, up to a limit, over which all can be cut. */
    int most(int limit) {
        int ranks = isOne() ? 1 : Math.min(limit, SEARCHED);
        while (ranks > 1 && refusal(ranks) != null) {
            ranks--;
        }
        return ranks;
    }

    /** Returns why a network cannot be cut over so many ranks, or {@code null} if it can. */
    String refusal(int ranks) {
        for (StoredNetwork.Entry entry : cut) {
            long longest = Arrays.stream(entry.shape().getShape()).max().orElse(0);
            if (ranks > Math.max(longest, SEARCHED)) { // before a cut of so many parts is made
                return String.format(
                        Locale.ROOT,
                        "Parameter %s %s cannot be cut over %d ranks.",
                        entry.name(),
                        entry.shape(),
                        ranks);
            }
            try {
                entry.strategy().checkSplit(entry.name(), entry.shape(), ranks);
            } catch (IllegalArgumentException e) {
                return e.getMessage();
            }
        }
        return null;
    }
}

package io.djltp.collective.nccl;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCall;
import io.djltp.collective.DifferentCalls;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.SortedMap;

/**
 * Finds out whether ranks of this process are in calls that do not fit each other: NCCL does not
 * look, and what comes of it is a time-out or an error that names no operation.
 */
final class Disagreement {

    private Disagreement() {}

    /**
     * Compares calls.
     *
     * @param calls the call that each rank is in
     * @return in what they differ, or {@code null}
     */
    static String find(SortedMap<Integer, CollectiveCall> calls) {
        if (calls.isEmpty()) {
            return null;
        }
        CollectiveCall first = calls.get(calls.firstKey());
        boolean same = true;
        for (CollectiveCall call : calls.values()) {
            if (call.getSequence() != first.getSequence()) {
                return null; // one is on its way: that is no disagreement yet
            }
            same &= call.getAgreement().equals(first.getAgreement());
        }
        if (same) {
            return first.getCollective() == Collective.ALL_TO_ALL ? findShares(calls) : null;
        }
        List<String> texts = new ArrayList<>();
        calls.forEach((rank, call) -> texts.add("rank " + rank + " " + call));
        return DifferentCalls.describe(texts);
    }

    private static String findShares(SortedMap<Integer, CollectiveCall> calls) {
        for (Map.Entry<Integer, CollectiveCall> from : calls.entrySet()) {
            for (Map.Entry<Integer, CollectiveCall> to : calls.entrySet()) {
                long sent = from.getValue().getShares()[to.getKey()];
                long expected = to.getValue().getReceivedShares()[from.getKey()];
                if (sent != expected) {
                    return from.getValue().describe()
                            + ": rank "
                            + from.getKey()
                            + " sends "
                            + sent
                            + " elements to rank "
                            + to.getKey()
                            + ", which expects "
                            + expected;
                }
            }
        }
        return null;
    }
}

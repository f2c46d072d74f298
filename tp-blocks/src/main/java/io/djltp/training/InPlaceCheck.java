package io.djltp.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.util.NativeResource;

import io.djltp.internal.torch.Autograd;
import io.djltp.rank.RankPool;

import java.util.List;

/**
 * Whether arrays are changed in place. A block or a loss may not change those that a rank has got
 * of a batch: the ranks of a process share the caller's arrays, and what one makes of them another
 * may compute with, or not.
 *
 * @param kind what the arrays are to the network
 * @param arrays the arrays
 * @param versions how often each had been changed when the watch began
 */
record InPlaceCheck(String kind, NDList arrays, long[] versions) {

    /** Begins to watch what was or is computed with. */
    static InPlaceCheck begin(String kind, NDList arrays) {
        NDList watched = new NDList(arrays); // a block may change the list
        return new InPlaceCheck(
                kind, watched, watched.stream().mapToLong(Autograd::version).toArray());
    }

    /**
     * Checks a pass or a loss. A rank that has no other in its process may change what it has got,
     * as under DJL's own trainer.
     *
     * @param ranks the ranks
     * @param parts what they have computed
     * @throws IllegalArgumentException if one of them has found a change
     */
    static void check(RankPool ranks, List<RankOutput> parts) {
        for (RankOutput part : parts) {
            if (part.inPlace != null && ranks.size() > 1) {
                parts.forEach(RankOutput::closeScopes);
                throw part.inPlace;
            }
        }
    }

    /** Returns whether an array was closed: it has no version then. */
    private static boolean isClosed(NDArray array) {
        return array instanceof NativeResource<?> own && own.isReleased(); // a stand-in is none
    }

    /** Returns the number of the first array that was changed, or -1. */
    int changed() {
        for (int i = 0; i < versions.length; i++) {
            NDArray array = arrays.get(i);
            boolean closed = isClosed(array); // a block may
            if (!closed && Autograd.version(array) != versions[i]) {
                return i;
            }
        }
        return -1;
    }

    /** Returns what is to be refused, with the remedy, or {@code null}. */
    IllegalArgumentException refusal() {
        int changed = changed();
        return changed < 0
                ? null
                : new IllegalArgumentException(
                        "A block or a loss has changed "
                                + kind
                                + " "
                                + changed
                                + " of the batch in place, "
                                + arrays.get(changed).getShape()
                                + " on this rank. The ranks share the caller's array, and compute"
                                + " with what others have made of it. Let it compute a new array,"
                                + " such as x.mul(2) in the place of x.muli(2), or change a copy:"
                                + " x.duplicate(). The array of the batch may hold other values"
                                + " now");
    }

    /** Returns the refusal in the place of what has come of the change, or the exception itself. */
    RuntimeException explained(RuntimeException e) {
        IllegalArgumentException refusal = refusal();
        return refusal == null ? e : new IllegalArgumentException(refusal.getMessage(), e);
    }
}

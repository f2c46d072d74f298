package io.djltp.gradient;

import io.djltp.layout.DeferredHead;
import io.djltp.layout.PassTrace;
import io.djltp.layout.PassTrace.Boundary;

import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Set;

/** Refuses a loss of two outputs of one fused head, which keeps the gradient of one. */
final class HeadUses {

    private HeadUses() {}

    /**
     * Checks the graph of a loss.
     *
     * @param trace what the pass has left behind
     * @param reached the nodes that the loss was computed of
     * @throws IllegalArgumentException if it was computed of two outputs of one head
     */
    static void check(PassTrace trace, Set<Long> reached) {
        Set<DeferredHead> used = Collections.newSetFromMap(new IdentityHashMap<>());
        trace.getSlices()
                .forEach(
                        (address, slice) -> {
                            Boundary boundary = trace.getBoundaries().get(address);
                            // else the rows of the same output, gathered
                            boolean output =
                                    boundary != null
                                            && boundary.above().rows() == boundary.below().rows();
                            boolean head = slice.head() != null && reached.contains(address);
                            if (head && output && !used.add(slice.head())) {
                                throw twice(slice.head());
                            }
                        });
    }

    private static IllegalArgumentException twice(DeferredHead head) {
        return new IllegalArgumentException(
                "The loss takes two outputs of the fused head with the weight "
                        + head.getShape()
                        + ", which keeps the gradient of one. Build it with optFusedLoss(false), or"
                        + " put the features together before the head, as rows that lie together:"
                        + " x.stack(y, 1)");
    }
}

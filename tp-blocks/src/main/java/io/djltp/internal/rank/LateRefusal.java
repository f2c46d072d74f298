package io.djltp.internal.rank;

import io.djltp.cut.ShardRange;

import org.jspecify.annotations.Nullable;

/**
 * What a rank alone refuses of its rows of a batch, such as an id out of range. If it threw at
 * once, the others would wait for it in the next collective operation, and the trainer would be
 * lost. So it goes on with other numbers, to the end of the forward pass like all ranks; then the
 * caller gets the exception, and none of what was computed.
 *
 * <p>That is for ranks of one process. Of several, the others would not learn of it in time: there
 * the rank throws, and the job ends with its exception.
 */
public final class LateRefusal {

    private static final ThreadLocal<LateRefusal> CURRENT = new ThreadLocal<>();

    private @Nullable RuntimeException first;

    private LateRefusal() {}

    /**
     * Begins a pass of this thread's rank, after which refusals can be thrown.
     *
     * @return what is refused in it
     */
    public static LateRefusal begin() {
        LateRefusal refusal = new LateRefusal();
        CURRENT.set(refusal);
        return refusal;
    }

    /**
     * Refuses something of a rank's rows.
     *
     * @param context the rank
     * @param e why
     * @throws IllegalArgumentException at once, where it cannot be thrown later
     */
    public static void refuse(ParallelContext context, IllegalArgumentException e) {
        LateRefusal pass = CURRENT.get();
        if (pass == null) {
            throw e;
        }
        if (pass.first == null) {
            int data = context.getDataGroup().getRank();
            int ranks = context.getDataGroup().getSize();
            ShardRange rows = context.getPass().getBatchCut(ranks).getRange(data);
            String whose =
                    rows.length() == 0
                            ? ""
                            : String.format(
                                    ". It is in the rows %d to %d of the batch, which rank %d has",
                                    rows.start(), rows.end() - 1, context.getRank());
            pass.first = new IllegalArgumentException(e.getMessage() + whose, e);
        }
    }

    /**
     * Ends the pass. To be called by the thread that began it.
     *
     * @return what was refused first, or {@code null}
     */
    public @Nullable RuntimeException end() {
        CURRENT.remove();
        return first;
    }
}

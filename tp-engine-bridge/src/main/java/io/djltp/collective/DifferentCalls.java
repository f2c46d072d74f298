package io.djltp.collective;

import java.util.List;

/**
 * What is said of ranks that called different operations: what each called, and what to look at.
 */
public final class DifferentCalls {

    /** The issuer of what a trainer's close calls: it may meet a step of the other ranks. */
    public static final String CLOSE = "the close of the trainer";

    /** What comes between a call and what the rank has said with it. */
    static final String WITH = ", with ";

    /** What is said of a rank whose call is not known. */
    public static final String NOT_YET = "not yet";

    private DifferentCalls() {}

    /** Returns whether it is a trainer's close that has issued a call. */
    static boolean isClose(String issuer) {
        return issuer != null && issuer.startsWith(CLOSE);
    }

    /**
     * Returns the message.
     *
     * @param calls what each rank called, such as {@code rank 0 barrier #3}
     * @return the calls, and what may have led to them
     */
    public static String describe(List<String> calls) {
        String all = String.join("; ", calls);
        return "the ranks called different operations: "
                + all
                + ". Do all ranks have as many batches, of the same size, as many epochs, and the"
                + " same settings?"
                + (termsDiffer(calls)
                        ? " Freeze and thaw the same parameters on all processes, before the same"
                                + " step."
                        : "")
                + (all.contains(CLOSE)
                        ? " One in "
                                + CLOSE
                                + " has come to its end before the others, or an exception in the"
                                + " caller's code has led it there: see the output of its process"
                        : "");
    }

    private static boolean termsDiffer(List<String> calls) {
        return calls.stream()
                        .filter(call -> !call.endsWith(NOT_YET))
                        .map(DifferentCalls::terms)
                        .distinct()
                        .count()
                > 1;
    }

    private static String terms(String call) {
        int begin = call.lastIndexOf(WITH);
        return begin < 0 ? "" : call.substring(begin);
    }
}

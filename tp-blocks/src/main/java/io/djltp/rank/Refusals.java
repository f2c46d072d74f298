package io.djltp.rank;

import ai.djl.util.Preconditions;

import io.djltp.collective.CollectiveException;

import java.util.List;

/**
 * What ranks have refused in one task, such as a label that is no class. If all of them refuse, and
 * none is left waiting for another, then nothing is lost: the caller gets the exception, and the
 * ranks go on with the next task.
 */
final class Refusals {

    private final List<ParallelContext> contexts;
    private final Throwable[] causes;
    private final long[] calls; // collective operations that the rank had called by then

    Refusals(List<ParallelContext> contexts) {
        this.contexts = contexts;
        causes = new Throwable[contexts.size()];
        calls = new long[contexts.size()];
    }

    /** Returns whether an exception is about the input, not about the job. */
    static boolean isRefusal(Throwable cause) {
        return cause instanceof RuntimeException
                && !(cause instanceof CollectiveException)
                && !(cause instanceof RankFailedException);
    }

    /** Notes that a rank has refused. */
    synchronized void add(ParallelContext context, Throwable cause) {
        causes[context.getLocalIndex()] = cause;
        calls[context.getLocalIndex()] = context.getWorld().getRecorder().getCalls();
    }

    /** Returns a rank that has refused, or -1. */
    synchronized int first() {
        for (int i = 0; i < causes.length; i++) {
            if (causes[i] != null) {
                return i;
            }
        }
        return -1;
    }

    synchronized Throwable cause(int index) {
        return causes[index];
    }

    /**
     * Returns whether a rank has called an operation that one that has refused will never call: it
     * waits in vain.
     */
    synchronized boolean leavesRankWaiting() {
        int first = first();
        if (first < 0) {
            return false;
        }
        for (int i = 0; i < causes.length; i++) {
            long called =
                    causes[i] == null
                            ? contexts.get(i).getWorld().getRecorder().getCalls()
                            : calls[i];
            if (called > calls[first]) {
                return true;
            }
        }
        return false;
    }

    /** Returns the exception for the caller, when all ranks have refused alike. */
    RuntimeException toThrow() {
        RuntimeException cause = (RuntimeException) cause(first());
        Preconditions.checkArgument(cause != null, "No rank has refused");
        return cause instanceof IllegalArgumentException
                ? new IllegalArgumentException(cause.getMessage(), cause)
                : cause;
    }

    /** Returns whether all ranks have refused after the same operations. */
    synchronized boolean isUnanimous() {
        for (int i = 0; i < causes.length; i++) {
            if (causes[i] == null || calls[i] != calls[0]) {
                return false;
            }
        }
        return true;
    }
}

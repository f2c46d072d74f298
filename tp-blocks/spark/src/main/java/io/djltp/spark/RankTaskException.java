package io.djltp.spark;

import java.util.stream.Stream;

/** A task of a job that failed, as its executor tells it. */
final class RankTaskException extends RuntimeException {

    private static final long serialVersionUID = 1L;

    private final boolean own;
    private final Throwable thrown;

    /**
     * Creates an exception.
     *
     * @param message who failed, and why
     * @param own whether it was the task itself, and not another one that it learned of
     * @param thrown what was thrown
     */
    RankTaskException(String message, boolean own, Throwable thrown) {
        super(message, endsExecutors(thrown) ? null : thrown);
        this.own = own;
        this.thrown = thrown;
    }

    /**
     * Returns whether Spark ends an executor, and in local mode the driver, that has this among the
     * causes of an exception ({@code spark.executor.killOnFatalErrorDepth}). The next run would
     * find it in its shutdown.
     */
    static boolean endsExecutors(Throwable thrown) {
        return Stream.iterate(thrown, each -> each != null, Throwable::getCause)
                .anyMatch(each -> each instanceof VirtualMachineError);
    }

    boolean isOwn() {
        return own;
    }

    /** Returns what was thrown, which is the cause unless Spark must not see it. */
    Throwable thrown() {
        return thrown;
    }
}

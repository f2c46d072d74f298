package io.djltp.rank;

import io.djltp.job.Job;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.List;
import java.util.concurrent.atomic.AtomicReference;

/** What ended the ranks of a process: the first failure, which every later task is told, too. */
final class PoolFailure {

    private static final Logger logger = LoggerFactory.getLogger(RankPool.class);

    private final List<ParallelContext> contexts;
    private final Job job; // or null
    private final AtomicReference<RuntimeException> first = new AtomicReference<>();
    private volatile Exception closing; // why a task was aborted that no rank has failed

    PoolFailure(List<ParallelContext> contexts, Job job) {
        this.contexts = contexts;
        this.job = job;
    }

    /** Returns the failure, or {@code null}. */
    RuntimeException get() {
        return first.get();
    }

    /** Throws the failure, if there was one, to who runs a task after it. */
    void check() {
        RuntimeException before = first.get();
        if (before instanceof RankFailedException) {
            throw ((RankFailedException) before).again();
        }
        if (before != null) {
            throw new IllegalStateException(before.getMessage(), before.getCause());
        }
    }

    /** A rank has thrown: no other rank waits for it. */
    void thrown(ParallelContext context, Throwable cause) {
        RankFailedException failed = RankFailedException.of(context.getRank(), cause);
        if (first.compareAndSet(null, failed)) {
            if (isCausedBy(closing, cause)) {
                logger.debug("{}", failed.getMessage());
            } else {
                logger.error("{}{}", failed.getMessage(), LastOperations.of(contexts));
            }
            if (job != null && !failed.isRemote()) {
                job.fail(context.getRank(), cause);
            }
        }
        contexts.forEach(each -> each.abort(cause));
    }

    /** Some ranks have refused what others have not. */
    void refused(Refusals refusals) {
        int rank = refusals.first();
        thrown(contexts.get(rank), refusals.cause(rank));
    }

    /** Who waits for the ranks was interrupted, which ends them. */
    void interrupted(InterruptedException e) {
        String message =
                "Interrupted while the ranks were running, which has ended them: make a new"
                        + " trainer or predictor";
        first.compareAndSet(null, new IllegalStateException(message, e));
        contexts.forEach(context -> context.abort(e));
        if (job != null) {
            job.fail(-1, first.get());
        }
    }

    /** The ranks are closed while a task runs. */
    void closing() {
        closing = new IllegalStateException("the ranks were closed");
        contexts.forEach(context -> context.abort(closing));
    }

    private static boolean isCausedBy(Exception origin, Throwable cause) {
        Throwable t = cause;
        while (t != null && t != origin) {
            t = t.getCause();
        }
        return t != null;
    }
}

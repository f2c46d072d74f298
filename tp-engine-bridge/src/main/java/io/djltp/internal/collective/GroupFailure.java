package io.djltp.internal.collective;

import io.djltp.collective.CollectiveException;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.List;

/**
 * What has ended a group: the first failure counts, whoever reports it. A group that was split and
 * its parts share one.
 */
public final class GroupFailure {

    private static final Logger logger = LoggerFactory.getLogger(GroupFailure.class);

    private final List<Runnable> listeners = new ArrayList<>();
    private volatile @Nullable CollectiveException first;

    /** Creates the state of a group that has not failed. */
    public GroupFailure() {}

    /**
     * Ends the group, unless it has ended before.
     *
     * @param failure what went wrong
     */
    public void set(CollectiveException failure) {
        List<Runnable> told;
        synchronized (listeners) {
            if (first != null) {
                return;
            }
            first = failure;
            told = new ArrayList<>(listeners);
        }
        for (Runnable listener : told) {
            try {
                listener.run();
            } catch (RuntimeException e) {
                logger.warn("A listener of the failure of a group failed itself", e);
            }
        }
    }

    /**
     * Returns whether the group has ended.
     *
     * @return whether there is a failure
     */
    public boolean isSet() {
        return first != null;
    }

    /**
     * Returns the failure.
     *
     * @return the failure, or {@code null}
     */
    public @Nullable CollectiveException get() {
        return first;
    }

    /**
     * Throws the failure, if there is one.
     *
     * @param rank the rank that asks
     * @param size the number of ranks in its group
     */
    public void check(int rank, int size) {
        CollectiveException reason = first;
        if (reason != null) {
            // a new one: a shared one would carry another thread's stack trace
            throw new CollectiveException(
                    "rank %s of %s: %s".formatted(rank, size, reason.getMessage()),
                    reason.getCause() == null ? reason : reason.getCause());
        }
    }

    /**
     * Forgets what was to be run when the group fails.
     *
     * @param listener what was given to {@link #onSet(Runnable)}
     */
    public void forget(Runnable listener) {
        synchronized (listeners) {
            listeners.remove(listener);
        }
    }

    /**
     * Returns how many listeners wait for a failure.
     *
     * @return the number
     */
    public int countListeners() {
        synchronized (listeners) {
            return listeners.size();
        }
    }

    /**
     * Runs something when the group fails, at once if it has.
     *
     * @param listener wakes those that wait
     */
    public void onSet(Runnable listener) {
        synchronized (listeners) {
            if (first == null) {
                listeners.add(listener);
                return;
            }
        }
        listener.run();
    }
}

package io.djltp.checkpoint;

import io.djltp.internal.collective.GatheredNumbers;
import io.djltp.internal.job.SignalListener;
import io.djltp.internal.rank.RankPool;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * When a checkpoint is due: after so many steps, after so much time, when the user says so, and
 * when a signal asks the training to stop. All processes of a job decide alike: steps are the same
 * in all, the time is that of the process of rank 0, and a signal counts whichever process gets it.
 *
 * <p>The first signal is noted, for the training to look at after its step; the second one ends the
 * process at once, with the exit status that it would have had.
 */
final class SaveSchedule implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(SaveSchedule.class);

    private static final int SIGNALED = 128; // what a shell adds to the number of a signal

    private final long everySteps; // 0 for never
    private final long everyNanos; // 0 for never
    private final BooleanSupplier when;
    private final List<String> signalNames;
    private final List<StopSignal> signals = new ArrayList<>();
    private final List<SignalListener> listeners = new ArrayList<>();
    private volatile @Nullable StopSignal first;
    private long begin = System.nanoTime(); // of the interval

    SaveSchedule(long everySteps, long everyNanos, BooleanSupplier when, List<String> signalNames) {
        this.everySteps = everySteps;
        this.everyNanos = everyNanos;
        this.when = when;
        this.signalNames = signalNames;
    }

    /**
     * A signal that ends the training.
     *
     * @param name its name, such as SIGTERM
     * @param exitStatus the exit status of a process that it ends, such as 143
     */
    record StopSignal(String name, int exitStatus) {}

    /**
     * What is to be done after a step.
     *
     * @param save whether a checkpoint is due
     * @param stop the signal that ends the training, or {@code null}
     */
    record Decision(boolean save, @Nullable StopSignal stop) {}

    /** Begins to listen to signals and to measure the time. */
    void start() {
        close(); // what a resume that has thrown has begun
        restart();
        try {
            for (String name : signalNames) {
                SignalListener listener =
                        new SignalListener(name, number -> onSignal(stopSignal(name, number)));
                listeners.add(listener);
                signals.add(stopSignal(name, listener.number()));
            }
        } catch (IllegalArgumentException e) {
            close();
            throw e;
        }
    }

    private static StopSignal stopSignal(String name, int number) {
        return new StopSignal("SIG" + name, SIGNALED + number);
    }

    private synchronized void onSignal(StopSignal signal) {
        StopSignal before = first;
        if (before != null) {
            logger.warn("{} after {}: the process ends at once", signal.name(), before.name());
            Runtime.getRuntime().halt(signal.exitStatus());
        }
        first = signal;
        logger.warn(
                "{}: training ends after this step, with a checkpoint. Another signal ends it at"
                        + " once",
                signal.name());
    }

    /** Begins the next interval of time. */
    void restart() {
        begin = System.nanoTime();
    }

    /** Decides after a step. All processes call it. */
    Decision afterStep(ParallelTrainer trainer, long step) {
        boolean asked = when.getAsBoolean();
        boolean save = asked || everySteps > 0 && step % everySteps == 0;
        if (everyNanos == 0 && !isStoppable()) {
            return new Decision(save, null);
        }
        boolean zero = trainer.getRanks().getContext(0).getRank() == 0;
        boolean late = zero && everyNanos > 0 && System.nanoTime() - begin >= everyNanos;
        long[] agreed = largest(trainer, late ? 1 : 0);
        StopSignal stop = stopOf(agreed[0]);
        return new Decision(save || agreed[1] > 0 || stop != null, stop);
    }

    /** Returns the signal that has come to any process, or {@code null}. All processes call it. */
    @Nullable StopSignal stop(ParallelTrainer trainer) {
        return isStoppable() ? stopOf(largest(trainer, 0)[0]) : null;
    }

    /** Returns whether there is anything to decide after a step, which has to be told of then. */
    boolean isAfterSteps() {
        return everySteps > 0 || everyNanos > 0 || isStoppable();
    }

    /** Returns whether a signal can end the training. */
    boolean isStoppable() {
        return !signalNames.isEmpty();
    }

    /** Returns the signal by which a process of the job ends with a status. */
    private @Nullable StopSignal stopOf(long status) {
        return signals.stream()
                .filter(each -> each.exitStatus() == status)
                .findFirst()
                .orElse(null);
    }

    /** Returns the largest status of a signal, and the largest of a number, of all processes. */
    private long[] largest(ParallelTrainer trainer, long number) {
        StopSignal signal = first;
        long[] own = {signal == null ? 0 : signal.exitStatus(), number};
        RankPool ranks = trainer.getRanks();
        if (!ranks.isDistributed()) {
            return own;
        }
        long[] all =
                ranks.run(
                                context ->
                                        GatheredNumbers.of(
                                                context.getWorld(),
                                                trainer.getParameterStore(context.getLocalIndex())
                                                        .getManager(),
                                                own,
                                                "CheckpointListener"))
                        .get(0);
        for (int i = 0; i < all.length; i++) {
            own[i % 2] = Math.max(own[i % 2], all[i]);
        }
        return own;
    }

    /** Gives the signals back to who had them. */
    @Override
    public void close() {
        listeners.forEach(SignalListener::close);
        listeners.clear();
    }
}

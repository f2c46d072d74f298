package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.ReduceOp;
import io.djltp.internal.torch.TensorView;
import io.djltp.rank.RankPool;
import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandleProxies;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * When a checkpoint is due: after so many steps, after so much time, when the user says so, and
 * when a signal asks the training to stop. All processes of a job decide alike: steps are the same
 * in all, the time is that of the process of rank 0, and a signal counts whichever process gets it.
 */
final class SaveSchedule implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(SaveSchedule.class);

    private final long everySteps; // 0 for never
    private final long everyNanos; // 0 for never
    private final BooleanSupplier when;
    private final List<String> signalNames;
    private StopSignals signals;
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
    record Decision(boolean save, StopSignal stop) {}

    /** Begins to listen to signals and to measure the time. */
    void start() {
        close(); // what a resume that was refused has begun
        signals = new StopSignals(signalNames);
        begin = System.nanoTime();
    }

    /** Decides after a step. All processes call it. */
    Decision afterStep(ParallelTrainer trainer, long step) {
        boolean asked = when.getAsBoolean();
        boolean save = asked || everySteps > 0 && step % everySteps == 0;
        boolean late = everyNanos > 0 && System.nanoTime() - begin >= everyNanos;
        if (everyNanos == 0 && signalNames.isEmpty()) {
            return new Decision(save, null);
        }
        boolean zero = trainer.getRanks().getContext(0).getRank() == 0;
        double[] agreed = largest(trainer, stopNumber(), late && zero ? 1 : 0);
        StopSignal stop = stopOf(agreed[0]);
        return new Decision(save || agreed[1] > 0 || stop != null, stop);
    }

    /** Returns the signal that has come to any process, or {@code null}. All processes call it. */
    StopSignal stop(ParallelTrainer trainer) {
        if (signalNames.isEmpty()) {
            return null;
        }
        return stopOf(largest(trainer, stopNumber())[0]);
    }

    /** Returns whether there is anything to decide after a step, which has to be told of then. */
    boolean isAfterSteps() {
        return everySteps > 0 || everyNanos > 0 || isStoppable();
    }

    /** Returns whether a signal can end the training. */
    boolean isStoppable() {
        return !signalNames.isEmpty();
    }

    /** Begins the next interval of time. */
    void restart() {
        begin = System.nanoTime();
    }

    private double stopNumber() {
        StopSignal first = signals.first();
        return first == null ? 0 : first.exitStatus();
    }

    private StopSignal stopOf(double status) {
        return status == 0 ? null : signals.of((int) status);
    }

    /**
     * Returns the largest value of all processes. All processes call it; one process alone
     * communicates nothing.
     *
     * @param trainer the trainer
     * @param values the values of this process, replaced by the largest ones
     */
    private static double[] largest(ParallelTrainer trainer, double... values) {
        RankPool ranks = trainer.getRanks();
        if (!ranks.isDistributed()) {
            return values;
        }
        NDManager manager = trainer.getManager();
        return ranks.run(
                        context -> {
                            try (NDManager scope = manager.newSubManager(context.getDevice());
                                    NDArray array = scope.create(values)) {
                                context.getWorld().setIssuer("CheckpointListener");
                                context.getWorld()
                                        .allReduce(TensorView.of(array), ReduceOp.MAX)
                                        .await();
                                return array.toDoubleArray();
                            }
                        })
                .get(0);
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (signals != null) {
            signals.close();
        }
    }

    /**
     * Notices the signals by which a training is asked to stop. The first one is noted, for the
     * training to look at after its step; the second one ends the process at once, with the exit
     * status that it would have had.
     *
     * <p>A shutdown hook would not do: it cannot be told from an ordinary end, and after it has
     * begun no second signal is heard. The class {@code sun.misc.Signal} is in the module {@code
     * jdk.unsupported} of every JDK, and reached by reflection, because the compiler warns of it.
     */
    private static final class StopSignals implements AutoCloseable {

        private static final int SIGNALED = 128; // what a shell adds to the number of a signal

        private final List<Runnable> restore = new ArrayList<>();
        private final List<StopSignal> known = new ArrayList<>();
        private volatile StopSignal first;

        /**
         * Begins to listen.
         *
         * @param names the names of signals without SIG, such as TERM; empty for none
         */
        StopSignals(List<String> names) {
            for (String name : names) {
                try {
                    restore.add(handle(name));
                } catch (ReflectiveOperationException e) {
                    close();
                    throw new IllegalArgumentException(
                            "This Java or system has no signal " + name + " to listen to", e);
                }
            }
        }

        /** Returns the first signal that came, or {@code null}. */
        StopSignal first() {
            return first;
        }

        /** Returns the signal by which another process of the job ends with a status. */
        StopSignal of(int exitStatus) {
            return known.stream().filter(each -> each.exitStatus() == exitStatus).findFirst().get();
        }

        /** Takes over a signal; returns what gives it back. */
        private Runnable handle(String name) throws ReflectiveOperationException {
            Class<?> type = Class.forName("sun.misc.Signal");
            Class<?> handlerType = Class.forName("sun.misc.SignalHandler");
            Object signal = type.getConstructor(String.class).newInstance(name);
            int number = (int) type.getMethod("getNumber").invoke(signal);
            StopSignal known = new StopSignal("SIG" + name, SIGNALED + number);
            this.known.add(known);
            MethodHandle noted =
                    MethodHandles.lookup()
                            .bind(
                                    this,
                                    "onSignal",
                                    MethodType.methodType(void.class, StopSignal.class))
                            .bindTo(known);
            Object handler =
                    MethodHandleProxies.asInterfaceInstance(
                            handlerType, MethodHandles.dropArguments(noted, 0, type));
            Method handle = type.getMethod("handle", type, handlerType);
            Object before = handle.invoke(null, signal, handler);
            return () -> {
                try {
                    handle.invoke(null, signal, before);
                } catch (ReflectiveOperationException e) {
                    logger.warn("SIG{} cannot be given back", name, e);
                }
            };
        }

        private synchronized void onSignal(StopSignal signal) {
            if (first != null) {
                logger.warn("{} after {}: the process ends at once", signal.name(), first.name());
                Runtime.getRuntime().halt(signal.exitStatus());
            }
            first = signal;
            logger.warn(
                    "{}: training ends after this step, with a checkpoint. Another signal ends it at"
                            + " once",
                    signal.name());
        }

        /** Gives the signals back to who had them. */
        @Override
        public void close() {
            restore.forEach(Runnable::run);
            restore.clear();
        }
    }
}

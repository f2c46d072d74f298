package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;

import io.djltp.collective.ReduceOp;
import io.djltp.rank.RankPool;
import io.djltp.torch.TensorView;
import io.djltp.training.ParallelTrainer;

import java.util.List;
import java.util.function.BooleanSupplier;

/**
 * When a checkpoint is due: after so many steps, after so much time, when the user says so, and
 * when a signal asks the training to stop. All processes of a job decide alike: steps are the same
 * in all, the time is that of the process of rank 0, and a signal counts whichever process gets it.
 */
final class SaveSchedule implements AutoCloseable {

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
}

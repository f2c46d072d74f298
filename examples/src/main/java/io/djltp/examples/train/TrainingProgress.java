package io.djltp.examples.train;

import ai.djl.Device;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.head.TopClasses;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.report.TrainingReport;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.Locale;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;

/**
 * Shows how training goes: a line with the loss and the speed every ten seconds, and now and then
 * the accuracy on some held-out rows. Also says when the limits of steps and of time are reached.
 */
final class TrainingProgress extends TrainingListenerAdapter {
    private static final long LINE_INTERVAL = TimeUnit.SECONDS.toNanos(10);
    private static final long EVALUATION_INTERVAL = TimeUnit.SECONDS.toNanos(20);
    private static final int BEST = 5;

    private final int maxSteps;
    private final double maxSeconds;
    private final int batchSize;
    private final TrainingTask task;
    private final RunReport run;
    private final boolean shown;
    private final TrainingReport report;
    private long nextLine;
    private long nextEvaluation;
    private double shownLoss = Double.NaN;
    private String accuracy = "";
    private @Nullable Batch heldOut; // since the first evaluation
    private double done; // the share of the run, as rank 0 has it

    /**
     * Creates a display.
     *
     * @param options the limits
     * @param batches the number of batches if no limit comes first
     * @param task what is learned
     * @param run where the loss of every step and the time go
     * @param shown whether this process shows it; all decide alike when training ends
     * @param report where the loss of every step goes too, and the accuracy
     */
    TrainingProgress(
            TrainOptions options,
            long batches,
            TrainingTask task,
            RunReport run,
            boolean shown,
            TrainingReport report) {
        maxSteps = (int) Math.min(options.steps(), batches);
        maxSeconds = options.minutes() * 60;
        batchSize = options.batch;
        this.task = task;
        this.run = run;
        this.shown = shown;
        this.report = report;
    }

    /** Starts the clock, at the beginning or after a checkpoint. */
    void begin() {
        run.begin();
        nextLine = System.nanoTime(); // at once
        nextEvaluation = nextLine + EVALUATION_INTERVAL;
        run.loss.forEach(this::showNext);
        done = run.loss.isEmpty() ? 0 : share(); // the next step has rank 0's
    }

    /** Returns whether a limit was reached at the last step. */
    boolean isOver() {
        return done >= 1;
    }

    /** Returns the share of the run that is done, the same in all processes. */
    double getDone() {
        return done;
    }

    /** {@inheritDoc} */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        Device device = batchData.getLabels().keySet().iterator().next();
        NDList labels = Objects.requireNonNull(batchData.getLabels().get(device));
        NDList predictions = Objects.requireNonNull(batchData.getPredictions().get(device));
        float loss = trainer.getLoss().evaluate(labels, predictions).getFloat();
        run.loss.add(loss);
        // before the evaluation, which is no time of a step
        report.addStep(trainer, loss, labels.head().getShape().get(0));
        showNext(loss);
        // the clocks of several processes differ: that of rank 0 decides
        boolean due = System.nanoTime() > nextEvaluation;
        // the sign tells of an evaluation: a share is above 0 after a step, and keeps its last bit
        double decision = ((ParallelTrainer) trainer).fromRankZero(due ? -share() : share());
        done = Math.abs(decision);
        if (decision < 0) {
            evaluate(trainer);
        }
        if (shown && (done >= 1 || System.nanoTime() >= nextLine)) {
            System.err.printf(
                    Locale.ROOT,
                    "train %3.0f%% step %d, smoothed loss %.3f, %.0f rows/s%s%n",
                    100 * done,
                    run.loss.size(),
                    shownLoss,
                    run.loss.size() * batchSize / run.seconds(),
                    accuracy);
            nextLine = System.nanoTime() + LINE_INTERVAL;
        }
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        report.restartClock(trainer); // what comes between two passes is no step
    }

    private double share() {
        double steps = (double) run.loss.size() / maxSteps;
        return Math.min(1, Math.max(steps, run.seconds() / maxSeconds));
    }

    private void showNext(float loss) {
        shownLoss = Double.isNaN(shownLoss) ? loss : 0.9 * shownLoss + 0.1 * loss;
    }

    /** Evaluates one batch of held-out rows, without gathering the logits of the ranks. */
    private void evaluate(Trainer trainer) {
        long begin = System.nanoTime();
        Batch batch = heldOut == null ? task.heldOut(trainer.getManager()) : heldOut;
        heldOut = batch;
        if (batch != null) {
            try (NDManager manager = trainer.getManager().newSubManager()) {
                batch.getData().tempAttach(manager); // closed with it: what the ranks keep
                evaluate(trainer, batch);
            }
        }
        run.skip(System.nanoTime() - begin);
        nextEvaluation = System.nanoTime() + EVALUATION_INTERVAL;
    }

    private void evaluate(Trainer trainer, Batch batch) {
        NDList predictions = trainer.evaluate(batch.getData());
        int k = (int) Math.min(BEST, predictions.head().getShape().get(1));
        try (TopClasses best = new VocabParallelTopK(k).evaluate(predictions)) {
            long[] labels = batch.getLabels().head().toLongArray();
            long[] found = best.classes().toLongArray();
            double first = share(labels, found, k, 1);
            double all = share(labels, found, k, k);
            accuracy =
                    String.format(Locale.ROOT, ", held out %.2f top-1 %.2f top-%d", first, all, k);
            report.add(trainer, "held out top-1", first);
            report.add(trainer, "held out top-" + k, all);
            report.restartClock(trainer);
        }
    }

    /**
     * Returns the share of rows with a label among the first of the k classes that were found, of
     * those that have a label.
     */
    private static double share(long[] labels, long[] found, int k, int first) {
        int rows = found.length / k;
        int width = labels.length / rows;
        int right = 0;
        int labelled = 0;
        for (int i = 0; i < rows; i++) {
            long[] own = Arrays.copyOfRange(labels, i * width, (i + 1) * width);
            labelled += Arrays.stream(own).anyMatch(it -> it >= 0) ? 1 : 0;
            LongStream best = Arrays.stream(found, i * k, i * k + first);
            right += best.anyMatch(each -> Arrays.stream(own).anyMatch(it -> it == each)) ? 1 : 0;
        }
        return (double) right / Math.max(1, labelled);
    }
}

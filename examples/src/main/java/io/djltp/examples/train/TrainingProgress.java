package io.djltp.examples.train;

import ai.djl.Device;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.listener.TrainingListenerAdapter;

import io.djltp.examples.lemma.LemmaDataset;
import io.djltp.examples.report.RunReports;
import io.djltp.head.TopClasses;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.training.ParallelTrainer;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Shows how training goes: a bar with the loss and the speed, and every now and then the accuracy
 * on some held-out words. Also says when the limits of steps and of time are reached.
 */
final class TrainingProgress extends TrainingListenerAdapter implements AutoCloseable {

    /** The width of the terminal that shows errors, or 0 for none; the script says so. */
    private static final int COLUMNS = Integer.getInteger("io.djltp.columns", 0);

    private static final long LINE_INTERVAL = COLUMNS > 0 ? 500_000_000L : 10_000_000_000L;
    private static final long EVALUATION_INTERVAL = 20_000_000_000L;
    private static final int BEST = 5;

    private final int maxSteps;
    private final double maxSeconds;
    private final int batchSize;
    private final LemmaDataset heldOut;
    private final RunReport report;
    private final boolean shown;
    private final RunReports reports;
    private long nextLine;
    private long nextEvaluation;
    private double shownLoss = Double.NaN;
    private String accuracy = "";
    private double done; // the share of the run, as rank 0 has it

    /**
     * Creates a display.
     *
     * @param options the limits
     * @param batches the number of batches if no limit comes first
     * @param heldOut the held-out words
     * @param report where the loss of every step and the time go
     * @param shown whether this process shows it; all decide alike when training ends
     * @param reports where the loss of every step goes too, and the accuracy
     */
    TrainingProgress(
            TrainOptions options,
            long batches,
            LemmaDataset heldOut,
            RunReport report,
            boolean shown,
            RunReports reports) {
        maxSteps = (int) Math.min(options.steps(), batches);
        maxSeconds = options.minutes() * 60;
        batchSize = options.batch;
        this.heldOut = heldOut;
        this.report = report;
        this.shown = shown;
        this.reports = reports;
    }

    /** Starts the clock, at the beginning or after a checkpoint. */
    void begin() {
        report.begin();
        nextLine = System.nanoTime(); // at once
        nextEvaluation = nextLine + EVALUATION_INTERVAL;
        report.loss.forEach(this::showNext);
        done = report.loss.isEmpty() ? 0 : share(); // the next step has rank 0's
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
        NDList labels = batchData.getLabels().get(device);
        NDList predictions = batchData.getPredictions().get(device);
        float loss = trainer.getLoss().evaluate(labels, predictions).getFloat();
        report.loss.add(loss);
        // before the evaluation, which is no time of a step
        reports.addStep(trainer, loss, labels.head().getShape().get(0));
        showNext(loss);
        // the clocks of several processes differ: that of rank 0 decides
        boolean due = System.nanoTime() > nextEvaluation;
        // the sign tells of an evaluation: a share is above 0 after a step, and keeps its last bit
        double decision = ((ParallelTrainer) trainer).fromRankZero(due ? -share() : share());
        done = Math.abs(decision);
        if (decision < 0) {
            evaluate(trainer);
        }
        if (shown) {
            show();
        }
    }

    /** {@inheritDoc} */
    @Override
    public void onEpoch(Trainer trainer) {
        reports.addEvaluation(trainer, Map.of()); // what comes between two passes is no step
    }

    private double share() {
        double steps = (double) report.loss.size() / maxSteps;
        return Math.min(1, Math.max(steps, report.takeTime() / maxSeconds));
    }

    private void showNext(float loss) {
        shownLoss = Double.isNaN(shownLoss) ? loss : 0.9 * shownLoss + 0.1 * loss;
    }

    private void show() {
        if (done < 1 && System.nanoTime() < nextLine) {
            return;
        }
        ProgressLine line =
                new ProgressLine(
                        done,
                        format("step %d", report.loss.size()),
                        format("loss %.3f", shownLoss),
                        format("%.0f words/s", report.loss.size() * batchSize / report.takeTime()),
                        accuracy);
        if (COLUMNS > 0) {
            // over the line before; in the last column some terminals go to the next line
            int width = COLUMNS - 1;
            System.err.printf("\r%-" + width + "s", line.render(width));
            System.err.flush();
        } else {
            System.err.println(line);
        }
        nextLine = System.nanoTime() + LINE_INTERVAL;
    }

    private static String format(String format, Object... values) {
        return String.format(Locale.ROOT, format, values);
    }

    /** Evaluates one batch of held-out words, without gathering the logits of the ranks. */
    private void evaluate(Trainer trainer) {
        long begin = System.nanoTime();
        try (NDManager manager = trainer.getManager().newSubManager()) {
            Batch batch = heldOut.getData(manager).iterator().next();
            NDList predictions = trainer.evaluate(batch.getData());
            long classes = predictions.head().getShape().get(1);
            int k = (int) Math.min(BEST, classes);
            try (TopClasses best = new VocabParallelTopK(k).evaluate(predictions)) {
                long[] labels = batch.getLabels().head().toLongArray();
                long[] found = best.classes().toLongArray();
                double first = share(labels, found, k, 1);
                double all = share(labels, found, k, k);
                accuracy = format("held out %.2f top-1 %.2f top-%d", first, all, k);
                reports.addEvaluation(
                        trainer, Map.of("held out top-1", first, "held out top-" + k, all));
            }
        }
        report.skip(System.nanoTime() - begin);
        nextEvaluation = System.nanoTime() + EVALUATION_INTERVAL;
    }

    /** Returns the share of labels that are among the first of the k classes that were found. */
    private static double share(long[] labels, long[] found, int k, int first) {
        int right = 0;
        for (int i = 0; i < labels.length; i++) {
            for (int j = 0; j < first; j++) {
                right += found[i * k + j] == labels[i] ? 1 : 0;
            }
        }
        return (double) right / labels.length;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        if (shown && COLUMNS > 0) {
            System.err.println();
        }
    }

    /**
     * One line on how training goes, as long as the terminal is wide: what matters most is kept,
     * and the bar takes the room that is left.
     *
     * @param done the part of the run that is over, from 0 to 1
     * @param step which step
     * @param loss the loss
     * @param speed the words in a second
     * @param accuracy the accuracy on held-out words, or an empty text
     */
    record ProgressLine(double done, String step, String loss, String speed, String accuracy) {

        private static final int LEAST_BAR = 8;
        private static final int LARGEST_BAR = 40;

        /** Returns the line for a terminal of so many columns. */
        String render(int columns) {
            String percent = String.format("train %3.0f%%", 100 * done);
            List<String> shown = new ArrayList<>();
            for (String piece : List.of(loss, speed, accuracy, step)) { // the dearest first
                shown.add(piece);
                if (piece.isEmpty() || percent.length() + 1 + text(shown).length() > columns) {
                    shown.remove(piece);
                }
            }
            String text = text(shown);
            int bar = Math.min(LARGEST_BAR, columns - percent.length() - text.length() - 4);
            String line = percent + (bar < LEAST_BAR ? " " : " " + bar(bar, done) + " ") + text;
            return line.substring(0, Math.min(line.length(), Math.max(0, columns)));
        }

        /** Returns what is shown where there is no terminal. */
        @Override
        public String toString() {
            return render(Integer.MAX_VALUE).replaceAll("\\[.*\\] ", "");
        }

        private String text(List<String> pieces) {
            return Stream.of(step, loss, speed, accuracy)
                    .filter(pieces::contains)
                    .collect(Collectors.joining(", "));
        }

        private static String bar(int length, double done) {
            int full = (int) (length * done);
            return "[" + "=".repeat(full) + " ".repeat(length - full) + "]";
        }
    }
}

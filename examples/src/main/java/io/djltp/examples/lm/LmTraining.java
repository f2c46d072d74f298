package io.djltp.examples.lm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.GradientCollector;

import io.djltp.collective.CollectiveCounts;
import io.djltp.examples.report.RunReports;
import io.djltp.training.ParallelTrainer;

import java.io.PrintStream;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.SplittableRandom;

/** Trains a model step by step, and measures it on the sentences that were held out. */
final class LmTraining {

    private static final int COUNTED = 3; // the step: one after which no replicas are compared
    private static final int LINES = 20;
    private static final int EVALUATED = 256; // windows at most
    private static final int BATCHES = 4; // of the evaluation, or fewer

    private final LmOptions options;
    private final CharacterText text;
    private final LmReport report;
    private final RunReports reports;
    private final PrintStream out;

    LmTraining(
            LmOptions options,
            CharacterText text,
            LmReport report,
            RunReports reports,
            PrintStream out) {
        this.options = options;
        this.text = text;
        this.report = report;
        this.reports = reports;
        this.out = out;
    }

    /** Trains; which windows a step sees follows from the seed. */
    void train(ParallelTrainer trainer) {
        Windows windows = new Windows(text.training(), options.sizes.context);
        SplittableRandom random = new SplittableRandom(options.seed);
        long begin = System.nanoTime();
        for (int step = 1; step <= options.steps; step++) {
            int[] starts = random.ints(options.batch, 0, windows.places()).toArray();
            try (NDManager manager = trainer.getManager().newSubManager()) {
                float loss = step(trainer, windows.batch(manager, starts), step == COUNTED);
                report.loss.add(loss);
                reports.addStep(trainer, loss, options.batch);
            }
            report.seconds = (System.nanoTime() - begin) / 1e9;
            report.charactersPerSecond =
                    (double) step * options.batch * options.sizes.context / report.seconds;
            if (step == 1 || step % Math.max(1, options.steps / LINES) == 0) {
                print(step);
            }
        }
    }

    private float step(ParallelTrainer trainer, Windows.Batch batch, boolean counted) {
        CollectiveCounts begin = trainer.getCollectiveCounts();
        CollectiveCounts forward;
        float value;
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDList predictions = trainer.forward(batch.data(), batch.labels());
            NDArray loss = trainer.getLoss().evaluate(batch.labels(), predictions);
            forward = trainer.getCollectiveCounts();
            collector.backward(loss);
            value = loss.getFloat();
        }
        CollectiveCounts backward = trainer.getCollectiveCounts();
        trainer.step();
        if (counted) {
            report.collectives = new LinkedHashMap<>();
            report.collectives.put("forward", LmReport.byName(forward.minus(begin)));
            report.collectives.put("backward", LmReport.byName(backward.minus(forward)));
            CollectiveCounts end = trainer.getCollectiveCounts();
            report.collectives.put("update", LmReport.byName(end.minus(backward)));
        }
        return value;
    }

    private void print(int step) {
        out.printf(
                Locale.ROOT,
                "step %4d of %d, loss %.4f, %,.0f characters/s%n",
                step,
                options.steps,
                report.loss.get(step - 1),
                report.charactersPerSecond);
    }

    /** Computes the mean loss of characters that were held out, of windows all over the text. */
    void evaluate(ParallelTrainer trainer) {
        Windows windows = new Windows(text.heldOut(), options.sizes.context);
        int[] starts = windows.spread(EVALUATED);
        int size = Math.max(options.batch, EVALUATED / BATCHES);
        double sum = 0;
        for (int begin = 0; begin < starts.length; begin += size) {
            int end = Math.min(starts.length, begin + size);
            try (NDManager manager = trainer.getManager().newSubManager()) {
                Windows.Batch batch =
                        windows.batch(manager, Arrays.copyOfRange(starts, begin, end));
                NDList predictions = trainer.evaluate(batch.data());
                NDArray loss = trainer.getLoss().evaluate(batch.labels(), predictions);
                sum += (double) loss.getFloat() * (end - begin);
            }
        }
        report.heldOutLoss = sum / starts.length;
        reports.addEvaluation(trainer, Map.of("held-out loss", report.heldOutLoss));
    }
}

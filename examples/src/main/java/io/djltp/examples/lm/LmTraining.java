package io.djltp.examples.lm;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import com.google.gson.annotations.SerializedName;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.examples.lm.CharacterText.Windows;
import io.djltp.examples.lm.LmCommand.LmOptions;
import io.djltp.examples.report.RunReports;
import io.djltp.examples.train.RunReport;
import io.djltp.training.ParallelTrainer;

import java.io.PrintStream;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.TreeMap;

/** Trains a model step by step, and measures it on the sentences that were held out. */
final class LmTraining {

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

    /**
     * Trains; which windows a step sees follows from the seed.
     *
     * @param trainer the trainer
     * @param checkpoints what saves the training, or {@code null}
     */
    void train(ParallelTrainer trainer, CheckpointListener checkpoints) {
        Windows windows = new Windows(text.training(), options.sizes.context);
        SplittableRandom random = new SplittableRandom(options.seed);
        report.begin();
        int done = report.loss.size();
        reports.resume(report.loss);
        measure();
        for (int step = 1; step <= options.steps; step++) {
            int[] starts = random.ints(options.batch, 0, windows.places()).toArray();
            if (step <= done) {
                continue; // before the checkpoint
            }
            try (NDManager manager = trainer.getManager().newSubManager()) {
                boolean counted = step == counted(done);
                float loss = step(trainer, windows.batch(manager, starts), counted);
                report.loss.add(loss);
                reports.addStep(trainer, loss, options.batch);
            }
            if (checkpoints != null) {
                checkpoints.endStep();
            }
            measure();
            if (step == 1 || step % Math.max(1, options.steps / LINES) == 0) {
                print(step);
            }
        }
    }

    /**
     * Returns the step of which operations are counted: one after which no replicas are compared.
     */
    private static int counted(int done) {
        int third = done + 3;
        return Integer.bitCount(third) == 1 ? third + 1 : third;
    }

    private void measure() {
        double rows = (double) report.loss.size() * options.batch;
        report.charactersPerSecond = rows * options.sizes.context / report.takeTime();
    }

    /** Returns whether the last step is done. */
    boolean isOver() {
        return report.loss.size() == options.steps;
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

    /** The figures of a run, as {@code --json} writes them. */
    static final class LmReport extends RunReport {

        int ranks;
        String mesh; // null without --mesh

        @SerializedName("sequence_parallel")
        boolean sequenceParallel;

        int layers;
        int width;
        int heads;

        @SerializedName("kv_heads")
        int keyValueHeads;

        int context;
        int vocabulary;
        long parameters;
        int batch;
        int seed;
        int steps;

        @SerializedName("held_out_loss")
        double heldOutLoss;

        /** What rank 0 calls in a step, by part of the step and operation; null in short runs. */
        Map<String, Map<String, Long>> collectives;

        String sample;

        @SerializedName("characters_per_second")
        double charactersPerSecond;

        /** Returns counts by the names of the operations. */
        static Map<String, Long> byName(CollectiveCounts counts) {
            Map<String, Long> named = new TreeMap<>();
            for (Collective collective : Collective.values()) {
                if (counts.get(collective) > 0) {
                    named.put(collective.toString(), counts.get(collective));
                }
            }
            return named;
        }
    }

    /** Lets a trained model write: one character after another, each drawn by its probability. */
    static final class LmWriter {

        private final CharacterText text;
        private final int context;
        private final double temperature;
        private final Random random;

        /**
         * Creates a writer.
         *
         * @param text what the model was trained on
         * @param options the length of its context, how boldly it writes, and the seed
         */
        LmWriter(CharacterText text, LmOptions options) {
            this.text = text;
            context = options.sizes.context;
            temperature = options.temperature;
            random = new Random(options.seed);
        }

        /** Writes so many characters, from the beginning of a sentence. */
        String write(Model model, int characters) throws TranslateException {
            long[] ids = new long[characters + 1];
            ids[0] = text.end();
            StringBuilder written = new StringBuilder();
            try (NDManager manager = NDManager.newBaseManager();
                    Predictor<NDList, NDList> predictor =
                            model.newPredictor(new NoopTranslator(null))) {
                for (int i = 1; i < ids.length; i++) {
                    long[] seen = Arrays.copyOfRange(ids, Math.max(0, i - context), i);
                    try (NDManager step = manager.newSubManager()) {
                        NDArray input = step.create(seen, new Shape(1, seen.length));
                        NDArray logits = predictor.predict(new NDList(input)).singletonOrThrow();
                        ids[i] = choose(logits.get(0, -1).toFloatArray());
                    }
                    written.append(text.decode((int) ids[i]));
                }
            }
            return written.toString();
        }

        /** Draws one of the logits by exp(logit / temperature), or takes the largest. */
        private int choose(float... logits) {
            int best = 0;
            for (int i = 1; i < logits.length; i++) {
                best = logits[i] > logits[best] ? i : best;
            }
            if (temperature == 0) {
                return best;
            }
            double[] sums = new double[logits.length];
            double sum = 0;
            for (int i = 0; i < sums.length; i++) {
                sum += Math.exp((logits[i] - logits[best]) / temperature);
                sums[i] = sum;
            }
            double drawn = random.nextDouble() * sum;
            int i = 0;
            while (sums[i] <= drawn && i < sums.length - 1) {
                i++;
            }
            return i;
        }
    }
}

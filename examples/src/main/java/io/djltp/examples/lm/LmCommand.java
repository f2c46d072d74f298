package io.djltp.examples.lm;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.examples.JsonFile;
import io.djltp.examples.report.RunReports;
import io.djltp.examples.train.TrainingJob;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.report.SystemMemory;
import io.djltp.training.ParallelTrainer;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;

/** Trains a small language model from scratch on ranks, and lets it write. */
@Command(
        name = "lm",
        description =
                "Trains a small language model from scratch on English sentences, character by"
                        + " character: grouped-query attention, rotary positions, RMS norms, gated"
                        + " MLPs, a tied embedding and a vocabulary-parallel loss. Then lets it"
                        + " write.",
        mixinStandardHelpOptions = true)
public final class LmCommand implements Callable<Integer> {

    private static final float LAST_RATE = 0.1f; // of the largest
    private static final int WARM_UP = 10; // one step of so many
    private static final float BETA2 = 0.95f; // of Adam, as in GPT-3 and Llama
    private static final float EPSILON = 1e-5f; // as in Llama 2

    @Mixin private LmOptions options;
    @Spec private CommandSpec spec;

    private TrainingJob job;
    private PrintStream out;
    private final LmReport report = new LmReport();

    /** Creates the command; its options are set by the command line. */
    public LmCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws Exception {
        return TrainingJob.run(options, spec, this::run);
    }

    private void run(TrainingJob started) throws IOException, TranslateException {
        job = started;
        out = job.out();
        long begin = System.nanoTime();
        CharacterText text = CharacterText.read();
        options.checkText(text);
        try (Model model = Model.newInstance("lm")) {
            model.setBlock(
                    LmNetwork.create(
                            options.sizes, text.vocabulary(), options.ranks.sequenceParallel));
            train(model, text);
            if (job.isFirst()) {
                report.sample = new LmWriter(text, options).write(model, options.characters);
                report.totalSeconds += (System.nanoTime() - begin) / 1e9;
                SystemMemory.peakResident().ifPresent(bytes -> report.peakRssBytes = bytes);
                printEnd();
                JsonFile.write(options.json, report);
            }
        }
    }

    private void train(Model model, CharacterText text) throws IOException {
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(
                                Optimizer.adam()
                                        .optLearningRateTracker(learningRate())
                                        .optBeta2(BETA2)
                                        .optEpsilon(EPSILON)
                                        .build());
        RunReports reports = options.reports.open("tp lm", facts());
        LmTraining training = new LmTraining(options, text, report, reports, out);
        CheckpointListener checkpoints =
                options.checkpoints.listener(options.training(), training, training::isOver);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints);
        }
        Engine.getInstance().setRandomSeed(options.seed);
        try (reports;
                ParallelTrainer trainer =
                        job.trainer(model, config, options.ranks.config(job.get(), options.clip))) {
            trainer.initialize(LmNetwork.inputShape(options.batch, options.sizes));
            fillReport(model, text);
            printBegin(text);
            job.resume(checkpoints, options.checkpoints, trainer);
            training.train(trainer, checkpoints);
            training.evaluate(trainer);
            reports.finish();
        }
    }

    private Map<String, String> facts() {
        Map<String, String> facts = new LinkedHashMap<>();
        facts.put("network", options.sizes.toString());
        facts.put("windows a step", "" + options.batch);
        facts.put("ranks", options.ranks.describeAll());
        return facts;
    }

    /** Returns a rate that rises for the first steps, then falls along a cosine. */
    private Tracker learningRate() {
        int rising = Math.max(1, options.steps / WARM_UP);
        return Tracker.warmUp()
                .optWarmUpSteps(rising)
                .optWarmUpBeginValue(options.learningRate / rising)
                .setMainTracker(
                        Tracker.cosine()
                                .setBaseValue(options.learningRate)
                                .optFinalValue(LAST_RATE * options.learningRate)
                                .setMaxUpdates(Math.max(1, options.steps - rising))
                                .build())
                .build();
    }

    private void fillReport(Model model, CharacterText text) {
        report.ranks = options.ranks.count();
        report.mesh = options.ranks.meshName();
        report.sequenceParallel = options.ranks.sequenceParallel;
        report.layers = options.sizes.layers;
        report.width = options.sizes.width;
        report.heads = options.sizes.heads;
        report.keyValueHeads = options.sizes.keyValueHeads();
        report.context = options.sizes.context;
        report.vocabulary = text.vocabulary();
        report.parameters =
                model.getBlock().getParameters().values().stream()
                        .distinct() // the tied weight is there twice
                        .mapToLong(parameter -> parameter.getShape().size())
                        .sum();
        report.batch = options.batch;
        report.seed = options.seed;
        report.steps = options.steps;
    }

    private void printBegin(CharacterText text) {
        out.printf(
                Locale.ROOT,
                "%,d characters to train on, %,d held out, %d different ones%n"
                        + "%s: %,d parameters%n"
                        + "Training on %d rank%s (%s), %d windows a step%n",
                text.training().length,
                text.heldOut().length,
                text.vocabulary(),
                options.sizes,
                report.parameters,
                report.ranks,
                report.ranks == 1 ? "" : "s",
                options.ranks.describeAll(),
                options.batch);
    }

    private void printEnd() {
        out.printf(
                Locale.ROOT,
                "%nheld-out loss %.4f, %.3f bits a character; %d steps in %.0f s%n",
                report.heldOutLoss,
                report.heldOutLoss / Math.log(2),
                report.steps,
                report.seconds);
        if (report.collectives != null) {
            out.println("collective operations of a step: " + report.collectives);
        }
        if (!report.sample.isEmpty()) {
            out.printf("%nIt writes:%n%s%n", report.sample);
        }
    }
}

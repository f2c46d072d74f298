package io.djltp.examples.lm;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.examples.Tp;
import io.djltp.examples.lm.TokenText.Windows;
import io.djltp.examples.train.RunReport;
import io.djltp.examples.train.TrainingJob;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.report.TrainingReport;
import io.djltp.training.ParallelTrainer;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.SplittableRandom;
import java.util.TreeMap;
import java.util.concurrent.Callable;

/** Trains a small language model from scratch on ranks, and lets it write. */
@Command(
        name = "lm",
        description =
                "Trains a small language model from scratch on English sentences, with a"
                        + " tokenizer made of them: grouped-query attention, rotary positions, RMS norms, gated"
                        + " MLPs, a tied embedding and a vocabulary-parallel loss. Then lets it"
                        + " write.",
        mixinStandardHelpOptions = true)
public final class LmCommand implements Callable<Integer> {

    private static final float LAST_RATE = 0.1f; // of the largest
    private static final int WARM_UP = 10; // one step of so many
    private static final float BETA2 = 0.95f; // of Adam, as in GPT-3 and Llama
    private static final float EPSILON = 1e-5f; // as in Llama 2

    private static final int LINES = 20;
    private static final int EVALUATED = 256; // windows at most
    private static final int BATCHES = 4; // of the evaluation, or fewer

    @Mixin private LmOptions options;
    @Spec private CommandSpec spec;
    private PrintStream out = System.out; // of the first process of a job alone
    private final RunReport report = new RunReport();
    private double seconds; // of the steps

    /** By the part of a step; {@code null} in short runs. */
    private @Nullable Map<String, Map<String, Long>> collectives;

    /** Creates the command; its options are set by the command line. */
    public LmCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws Exception {
        return TrainingJob.run(options, spec, this::run);
    }

    private void run(TrainingJob job) throws IOException, TranslateException {
        out = job.out();
        try (TokenText text = TokenText.read(options.sizes.vocabulary);
                Model model = Model.newInstance("lm")) {
            options.checkText(text);
            model.setBlock(
                    LmNetwork.create(options.sizes, text.vocabulary(), options.sequenceParallel));
            double heldOutLoss = train(model, text, job);
            if (job.isFirst()) {
                String sample = new LmWriter(text, options).write(model, options.characters);
                double bits = bitsPerCharacter(heldOutLoss, text);
                printEnd(heldOutLoss, bits, sample);
                report.put("held_out_loss", heldOutLoss);
                report.put("bits_per_character", bits);
                report.put("collectives", collectives);
                report.put("sample", sample);
                if (options.save != null) {
                    SavedLm.write(model.getBlock(), options.sizes, text, options.save);
                    out.printf("%nSaved for tp generate %s%n", options.save);
                }
                report.write(options.json);
            }
        }
    }

    /** Trains, and returns the mean loss of tokens that were held out. */
    private double train(Model model, TokenText text, TrainingJob job) throws IOException {
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(
                                Optimizer.adam()
                                        .optLearningRateTracker(learningRate())
                                        .optBeta2(BETA2)
                                        .optEpsilon(EPSILON)
                                        .build());
        TrainingReport page =
                options.report("tp lm")
                        .optFact("network", options.sizes.toString())
                        .optFact("windows a step", "" + options.batch)
                        .optFact("ranks", options.describeRanks())
                        .build();
        CheckpointListener checkpoints =
                options.listener(spec, report, () -> report.loss.size() == options.steps);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints);
        }
        Engine.getInstance().setRandomSeed(options.seed);
        try (page;
                ParallelTrainer trainer =
                        job.trainer(model, config, options.config(job.get()).build())) {
            trainer.initialize(LmNetwork.inputShape(options.batch, options.sizes));
            describe(model, text);
            job.resume(checkpoints, options, trainer);
            try {
                train(trainer, text, checkpoints, page);
                double heldOutLoss = evaluate(trainer, text);
                page.add(trainer, "held-out loss", heldOutLoss);
                return heldOutLoss;
            } catch (RuntimeException e) {
                page.endEarly();
                throw e;
            }
        }
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

    private void describe(Model model, TokenText text) {
        long parameters =
                model.getBlock().getParameters().values().stream()
                        .distinct() // the tied weight is there twice
                        .mapToLong(parameter -> parameter.getShape().size())
                        .sum();
        report.put("ranks", options.ranks());
        report.put("mesh", options.meshName()); // null without --mesh
        report.put("sequence_parallel", options.sequenceParallel);
        report.put("layers", options.sizes.layers);
        report.put("width", options.sizes.width);
        report.put("heads", options.sizes.heads);
        report.put("kv_heads", options.sizes.keyValueHeads());
        report.put("context", options.sizes.context);
        report.put("vocabulary", text.vocabulary());
        report.put("parameters", parameters);
        report.put("batch", options.batch);
        report.put("seed", options.seed);
        report.put("steps", options.steps);
        out.printf(
                Locale.ROOT,
                "%,d tokens to train on, %,d held out, %,d different ones of %.1f characters%n"
                        + "%s: %,d parameters%n"
                        + "Training on %s (%s), %d windows a step%n",
                text.training().length,
                text.heldOut().length,
                text.vocabulary(),
                text.charactersPerToken(),
                options.sizes,
                parameters,
                Tp.count(options.ranks(), "rank"),
                options.describeRanks(),
                options.batch);
    }

    /** Trains step by step; which windows a step sees follows from the seed. */
    private void train(
            ParallelTrainer trainer,
            TokenText text,
            @Nullable CheckpointListener checkpoints,
            TrainingReport page) {
        Windows windows = new Windows(text.training(), options.sizes.context);
        SplittableRandom random = new SplittableRandom(options.seed);
        report.begin();
        int done = report.loss.size();
        page.resume(report.loss);
        // the step of which operations are counted: one after which no replicas are compared
        int counted = Integer.bitCount(done + 3) == 1 ? done + 4 : done + 3;
        for (int step = 1; step <= options.steps; step++) {
            int[] starts = random.ints(options.batch, 0, windows.places()).toArray();
            if (step <= done) {
                continue; // before the checkpoint
            }
            try (NDManager manager = trainer.getManager().newSubManager()) {
                float loss = step(trainer, windows.batch(manager, starts), step == counted);
                report.loss.add(loss);
                page.addStep(trainer, loss, options.batch);
            }
            if (checkpoints != null) {
                checkpoints.endStep();
            }
            if (step == 1 || step % Math.max(1, options.steps / LINES) == 0) {
                out.printf(
                        Locale.ROOT,
                        "step %4d of %d, loss %.4f, %,.0f tokens/s%n",
                        step,
                        options.steps,
                        report.loss.get(step - 1),
                        speed());
            }
        }
        seconds = report.seconds();
        report.put("seconds", seconds);
        report.put("tokens_per_second", speed());
    }

    private double speed() {
        double windows = (double) report.loss.size() * options.batch;
        return windows * options.sizes.context / report.seconds();
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
            collectives = new LinkedHashMap<>();
            collectives.put("forward", byName(forward.minus(begin)));
            collectives.put("backward", byName(backward.minus(forward)));
            collectives.put("update", byName(trainer.getCollectiveCounts().minus(backward)));
        }
        return value;
    }

    /** Returns what rank 0 calls, by the names of the operations. */
    private static Map<String, Long> byName(CollectiveCounts counts) {
        Map<String, Long> named = new TreeMap<>();
        for (Collective collective : Collective.values()) {
            if (counts.get(collective) > 0) {
                named.put(collective.toString(), counts.get(collective));
            }
        }
        return named;
    }

    /** Computes the mean loss of tokens that were held out, of windows all over the text. */
    private double evaluate(ParallelTrainer trainer, TokenText text) {
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
        return sum / starts.length;
    }

    private static double bitsPerCharacter(double loss, TokenText text) {
        return loss / Math.log(2) / text.charactersPerToken();
    }

    private void printEnd(double heldOutLoss, double bitsPerCharacter, String sample) {
        out.printf(
                Locale.ROOT,
                "%nheld-out loss %.4f, %.3f bits a character; %d steps in %.0f s%n",
                heldOutLoss,
                bitsPerCharacter,
                options.steps,
                seconds);
        if (collectives != null) {
            out.println("collective operations of a step: " + collectives);
        }
        if (!sample.isEmpty()) {
            out.printf("%nIt writes:%n%s%n", sample);
        }
    }

    /** Lets a trained model write: one token after another, each drawn by its probability. */
    private static final class LmWriter {

        private final TokenText text;
        private final int context;
        private final double temperature;
        private final Random random;

        /**
         * Creates a writer.
         *
         * @param text what the model was trained on
         * @param options the length of its context, how boldly it writes, and the seed
         */
        LmWriter(TokenText text, LmOptions options) {
            this.text = text;
            context = options.sizes.context;
            temperature = options.temperature;
            random = new Random(options.seed);
        }

        /** Writes so many characters, from the beginning of a sentence. */
        String write(Model model, int characters) throws TranslateException {
            long[] ids = {text.end()};
            String written = "";
            try (NDManager manager = NDManager.newBaseManager();
                    Predictor<NDList, NDList> predictor =
                            model.newPredictor(new NoopTranslator(null))) {
                for (int i = 1; written.length() < characters; i++) {
                    long[] seen = Arrays.copyOfRange(ids, Math.max(0, i - context), i);
                    try (NDManager step = manager.newSubManager()) {
                        NDArray input = step.create(seen, new Shape(1, seen.length));
                        NDArray logits = predictor.predict(new NDList(input)).singletonOrThrow();
                        ids = Arrays.copyOf(ids, i + 1);
                        ids[i] = choose(logits.get(0, -1).toFloatArray());
                    }
                    written = text.decode(Arrays.copyOfRange(ids, 1, i + 1));
                }
            }
            return written.substring(0, characters);
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

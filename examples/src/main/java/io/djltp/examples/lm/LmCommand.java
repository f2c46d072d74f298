package io.djltp.examples.lm;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.lm.LmNetwork.LmSizes;
import io.djltp.examples.lm.LmTraining.LmReport;
import io.djltp.examples.lm.LmTraining.LmWriter;
import io.djltp.examples.report.RunReports;
import io.djltp.examples.train.JobOptions;
import io.djltp.examples.train.TrainingJob;
import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
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
        CharacterText text = CharacterText.read();
        options.checkText(text);
        try (Model model = Model.newInstance("lm")) {
            model.setBlock(
                    LmNetwork.create(options.sizes, text.vocabulary(), options.sequenceParallel));
            train(model, text);
            if (job.isFirst()) {
                report.sample = new LmWriter(text, options).write(model, options.characters);
                report.finish();
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
                options.checkpoints.listener(options.training(), report, training::isOver);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints);
        }
        Engine.getInstance().setRandomSeed(options.seed);
        try (reports;
                ParallelTrainer trainer = job.trainer(model, config, options.config(job.get()))) {
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
        facts.put("ranks", options.describeRanks());
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
        report.sequenceParallel = options.sequenceParallel;
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
                options.describeRanks(),
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

    /** The options of {@link LmCommand}. */
    static final class LmOptions extends JobOptions {

        @Mixin final LmSizes sizes = new LmSizes();

        @Option(
                names = "--sequence-parallel",
                description =
                        "Cut the tokens over the ranks of the axis tensor too, between attention"
                                + " and MLPs, where layers are not cut.")
        boolean sequenceParallel;

        @Option(
                names = "--steps",
                defaultValue = "200",
                description = "Steps of training (${DEFAULT-VALUE}).")
        int steps;

        @Option(
                names = "--batch",
                defaultValue = "16",
                description = "Windows of text in a step, over all ranks (${DEFAULT-VALUE}).")
        int batch;

        @Option(
                names = "--lr",
                defaultValue = "0.001",
                description = "The largest learning rate of Adam (${DEFAULT-VALUE}).")
        float learningRate;

        @Option(
                names = "--clip",
                defaultValue = "1",
                description =
                        "The largest norm of all gradients together; larger ones are scaled down to"
                                + " it (${DEFAULT-VALUE}).")
        float clip;

        @Option(
                names = "--seed",
                defaultValue = "42",
                description =
                        "Seed of the weights, the batches and the writing (${DEFAULT-VALUE}). The"
                                + " losses follow from it, whatever the ranks.")
        int seed;

        @Option(
                names = "--temperature",
                defaultValue = "0.7",
                description =
                        "What the logits are divided by where the model writes; 0 for the likeliest"
                                + " character each time (${DEFAULT-VALUE}).")
        double temperature;

        @Option(
                names = "--characters",
                defaultValue = "300",
                description = "Characters that the model writes at the end (${DEFAULT-VALUE}).")
        int characters;

        @Option(names = "--out", description = "Folder of the run, for its checkpoints.")
        Path out;

        /** {@inheritDoc} */
        @Override
        protected void check() {
            ranks.check(ParallelMode.TENSOR);
            sizes.check();
            positive("--steps", steps);
            positive("--batch", batch);
            positive("--lr", learningRate);
            positive("--clip", clip);
            notNegative("--temperature", temperature);
            notNegative("--characters", characters);
            checkRanks();
            checkpoints.check(out);
        }

        /** Everything that is written there is checked as it is opened. */
        @Override
        protected void checkOut() {}

        private void checkRanks() {
            int tensor = ranks.size(DeviceMesh.TENSOR);
            if (tensor > sizes.heads) {
                throw new BadInputException(
                        "%s leaves ranks without a head: %d ranks share --heads %d, use %3$d ranks"
                                + " or fewer along the axis tensor, or more heads",
                        ranks.describe(), tensor, sizes.heads);
            }
            ranks.checkBatch(batch, "tensor");
            if (sequenceParallel && sizes.context < tensor) {
                throw new BadInputException(
                        "--sequence-parallel cuts the --context of %d over %d ranks: use --context"
                                + " %2$d or more, or fewer ranks",
                        sizes.context, tensor);
            }
        }

        /** Returns all options that say how the work is shared. */
        String describeRanks() {
            return ranks.describe() + (sequenceParallel ? " --sequence-parallel" : "");
        }

        /** Returns the configuration of the ranks, with the largest norm of all gradients. */
        ParallelConfig config(Job job) {
            return ranks.config(job).optGradientClipNorm(clip).build();
        }

        private static void notNegative(String option, double value) {
            if (!(value >= 0)) {
                throw new BadInputException(option + " must be 0 or more, not " + value);
            }
        }

        /** Refuses a text that is too short for the windows. */
        void checkText(CharacterText text) {
            int most = Math.min(text.training().length, text.heldOut().length) - 1;
            if (sizes.context > most) {
                throw new BadInputException(
                        "--context %d is longer than the held-out text: use --context %d or less",
                        sizes.context, most);
            }
        }

        /** Returns the options that make the training what it is, wherever it is done. */
        Map<String, String> training() {
            Map<String, String> values = new LinkedHashMap<>();
            values.put("--layers", "" + sizes.layers);
            values.put("--width", "" + sizes.width);
            values.put("--heads", "" + sizes.heads);
            values.put("--kv-heads", "" + sizes.keyValueHeads());
            values.put("--context", "" + sizes.context);
            values.put("--batch", "" + batch);
            values.put("--steps", "" + steps); // the learning rates follow from it
            values.put("--lr", "" + learningRate);
            values.put("--clip", "" + clip);
            values.put("--seed", "" + seed);
            return values;
        }

        /** {@inheritDoc} */
        @Override
        protected Map<String, String> alike() {
            Map<String, String> values = new LinkedHashMap<>(training());
            values.put("--mesh", ranks.meshName() == null ? "not set" : ranks.meshName());
            values.put("--sequence-parallel", "" + sequenceParallel);
            values.put("--precision", "" + sizes.precision);
            return values;
        }
    }
}

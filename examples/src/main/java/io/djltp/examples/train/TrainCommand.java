package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.tracker.ParameterTracker;
import ai.djl.translate.TranslateException;

import com.google.gson.annotations.SerializedName;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.JsonFile;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.examples.lemma.LemmaDataset;
import io.djltp.examples.lemma.SavedModel;
import io.djltp.examples.report.RunReports;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.report.SystemMemory;
import io.djltp.training.ParallelTrainer;
import io.djltp.zoo.lemma.CharNGrams;
import io.djltp.zoo.lemma.LemmaNetwork;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.function.IntSupplier;
import java.util.function.Supplier;
import java.util.stream.Collectors;

/** Trains the lemmatiser: inflected word form in, lemma out, each lemma a class. */
@Command(
        name = "train",
        description =
                "Trains a lemmatiser on real dictionaries: the inflected form of a word in, its"
                        + " lemma out, each lemma a class. Shows what it learned on words that it"
                        + " has never seen, and saves the model.",
        mixinStandardHelpOptions = true)
public final class TrainCommand implements Callable<Integer> {

    static final int HELD_OUT = 4000;

    /** The n-grams of a word. */
    public static final int N_GRAMS = 96;

    static final long SPLIT_SEED = 20260101; // never changed: held-out words stay held out
    private static final int EVALUATION_BATCH = 256;

    @Mixin private TrainOptions options;
    @Spec private CommandSpec spec;

    private TrainingJob job;
    private PrintStream out;
    private final TrainReport report = new TrainReport();

    /** Creates the command; its options are set by the command line. */
    public TrainCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws Exception {
        if (options.exportSplit != null) {
            options.check();
            SplitExport.run(options.languages, options.exportSplit, System.out);
            return 0;
        }
        return TrainingJob.run(options, spec, this::run);
    }

    private void run(TrainingJob started) throws IOException, TranslateException {
        job = started;
        out = job.out();
        StopNotice notice =
                new StopNotice(
                        job.isFirst(), report.loss::size, options.checkpoints::describeNewest);
        try {
            run();
        } finally {
            notice.end();
        }
    }

    private void run() throws IOException, TranslateException {
        long begin = System.nanoTime();
        LemmaCorpus corpus = readCorpus();
        HeldOutSplit split = HeldOutSplit.of(corpus, HELD_OUT, SPLIT_SEED);
        CharNGrams nGrams = new CharNGrams(tableRows(corpus.classes()), N_GRAMS);
        ClassificationHead head = head(corpus.classes());
        checkSizes(corpus, nGrams);
        try (Model model = Model.newInstance(SavedModel.NAME)) {
            train(model, split, nGrams, head);
            if (job.isFirst()) {
                evaluate(model, split, nGrams);
                SavedModel.save(
                        options.out,
                        model,
                        corpus.lexicon(),
                        nGrams,
                        options.dim,
                        options.safetensors);
                out.printf(
                        "%nThe model is saved in %s. Try: %s%n",
                        options.out, options.lemmaCommand());
                report.totalSeconds += (System.nanoTime() - begin) / 1e9;
                JsonFile.write(options.json, report);
            }
        }
    }

    private LemmaCorpus readCorpus() throws IOException {
        out.printf(
                "Reading the %s dictionar%s ...%n",
                options.languages.stream()
                        .map(Language::displayName)
                        .collect(Collectors.joining(", ")),
                options.languages.size() == 1 ? "y" : "ies");
        LemmaCorpus corpus = LemmaCorpus.read(options.languages);
        out.printf(
                Locale.ROOT,
                "%,d pairs of word and lemma, %,d lemmas to choose from%n",
                corpus.size(),
                corpus.classes());
        return corpus;
    }

    /**
     * Returns the rows of the table of n-grams.
     *
     * @param classes the number of lemmas
     * @return the rows
     */
    public static int tableRows(int classes) {
        return classes > 500_000 ? 1 << 17 : 1 << 16;
    }

    private void checkSizes(LemmaCorpus corpus, CharNGrams nGrams) {
        if (options.ranks.count() > corpus.classes()) {
            throw new BadInputException(
                    "--tp "
                            + options.ranks.count()
                            + " leaves ranks without a class: there are "
                            + corpus.classes());
        }
        RunMemory memory = new RunMemory(options, corpus.classes(), nGrams.rows(), corpus.size());
        memory.check();
        memory.print(out);
    }

    private void train(Model model, HeldOutSplit split, CharNGrams nGrams, ClassificationHead head)
            throws IOException, TranslateException {
        announce(split.corpus().classes());
        LemmaNetwork.initializeHead(head);
        model.setBlock(LemmaNetwork.create(nGrams.rows(), options.dim, head));
        LemmaDataset heldOut = heldOut(split, nGrams, options.batch);
        TrainingProgress[] progress = new TrainingProgress[1];
        LemmaDataset training =
                LemmaDataset.builder()
                        .setSplit(split)
                        .setNGrams(nGrams)
                        .setBatchSize(options.batch)
                        .optSeed(options.seed)
                        .optStop(() -> progress[0].isOver())
                        .build();
        long batches = (long) training.batchesPerPass() * options.epochs();
        RunReports reports = options.reports.open("tp train", facts(split.corpus().classes()));
        progress[0] =
                new TrainingProgress(options, batches, heldOut, report, job.isFirst(), reports);
        CheckpointListener checkpoints =
                options.checkpoints.listener(
                        options.training(), progress[0], () -> progress[0].isOver());
        DefaultTrainingConfig config = config(head, progress[0], checkpoints);
        Engine.getInstance().setRandomSeed(options.seed);
        try (reports;
                TrainingProgress shown = progress[0];
                ParallelTrainer trainer =
                        job.trainer(model, config, options.ranks.config(job.get()))) {
            trainer.initialize(new Shape(options.batch, nGrams.limit()));
            shown.begin();
            job.resume(checkpoints, options.checkpoints, trainer);
            reports.resume(report.loss);
            fit(trainer, checkpoints, training);
            report.seconds = shown.seconds();
            reports.finish();
        }
        fillReport(split.corpus());
    }

    private DefaultTrainingConfig config(
            ClassificationHead head, TrainingProgress progress, CheckpointListener checkpoints) {
        ParameterTracker rate = LearningRates.of(options, head, progress::getDone);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(
                                options.optimizer.create(rate, LearningRates.epsilon(options)))
                        .addTrainingListeners(progress);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints); // after all others
        }
        return config;
    }

    private void announce(int classes) {
        out.printf(
                Locale.ROOT,
                "Training %,d x %d on %d rank%s%s, %s, head %s, %s%n",
                classes,
                options.dim,
                options.ranks.count(),
                options.ranks.count() == 1 ? "" : "s",
                job.describe(),
                options.ranks.describe(),
                describeHead(classes),
                options.optimizer.name().toLowerCase(Locale.ROOT));
        if (options.optimizer == OptimizerName.ADAGRAD) {
            // a warm-up of 200 steps keeps it down, and costs a point of top-5 after 1,200
            out.println(
                    "(The loss rises for some dozens of steps: Adagrad begins with large ones.)");
        }
    }

    private Map<String, String> facts(int classes) {
        Map<String, String> facts = new LinkedHashMap<>();
        facts.put("classes", String.format(Locale.ROOT, "%,d", classes));
        facts.put("features", "" + options.dim);
        facts.put("words a step", "" + options.batch);
        facts.put("head", describeHead(classes));
        facts.put("optimizer", options.optimizer.name().toLowerCase(Locale.ROOT));
        facts.put("ranks", options.ranks.describe());
        return facts;
    }

    private void fit(Trainer trainer, CheckpointListener checkpoints, Dataset training)
            throws IOException, TranslateException {
        if (checkpoints == null) {
            EasyTrain.fit(trainer, options.epochs(), training, null);
        } else {
            int epochs = ResumedLimits.remainingEpochs(options, checkpoints);
            EasyTrain.fit(trainer, epochs, checkpoints.resumed(training), null);
        }
    }

    private String describeHead(int classes) {
        String name = options.head.name().toLowerCase(Locale.ROOT);
        return options.head != HeadKind.SAMPLED
                ? name
                : String.format(Locale.ROOT, "%s %.3g", name, options.sampleShare(classes));
    }

    private ClassificationHead head(int classes) {
        try {
            return options.head
                    .builder(classes, options.sampleShare(classes), options.seed)
                    .optBatchShardedInput(true)
                    .optPrecision(options.precision)
                    .build();
        } catch (IllegalArgumentException e) {
            throw new BadInputException(
                    "--head " + describeHead(classes) + ": " + e.getMessage(), e);
        }
    }

    private void fillReport(LemmaCorpus corpus) {
        report.classes = corpus.classes();
        report.languages =
                options.languages.stream().map(Language::code).collect(Collectors.joining(","));
        report.ranks = options.ranks.count();
        report.mode = options.ranks.modeName();
        report.mesh = options.ranks.meshName();
        report.head = options.head.name().toLowerCase(Locale.ROOT);
        report.optimizer = options.optimizer.name().toLowerCase(Locale.ROOT);
        report.dim = options.dim;
        report.batch = options.batch;
        report.seed = options.seed;
        report.steps = report.loss.size();
        report.samplesPerSecond = (double) report.steps * options.batch / report.seconds;
    }

    private static LemmaDataset heldOut(HeldOutSplit split, CharNGrams nGrams, int batchSize) {
        return LemmaDataset.builder()
                .setSplit(split)
                .setNGrams(nGrams)
                .setBatchSize(batchSize)
                .optUsage(Dataset.Usage.VALIDATION)
                .build();
    }

    private void evaluate(Model model, HeldOutSplit split, CharNGrams nGrams) {
        int words = Math.min(options.heldOut, split.size());
        LemmaDataset heldOut = heldOut(split, nGrams, EVALUATION_BATCH);
        HeldOutEvaluation evaluation = new HeldOutEvaluation(model, split, heldOut, words);
        evaluation.printTable(out);
        report.top1 = evaluation.accuracy(1);
        report.top5 = evaluation.accuracy(5);
        SystemMemory.peakResident().ifPresent(bytes -> report.peakRssBytes = bytes);
        out.printf(
                Locale.ROOT,
                "%n%,d steps in %.0f s, %.0f words/s, loss %.4f%n"
                        + "%,d held-out words: top-1 %.3f, top-5 %.3f%n",
                report.steps,
                report.seconds,
                report.samplesPerSecond,
                report.loss.isEmpty() ? Double.NaN : report.loss.get(report.steps - 1),
                words,
                report.top1,
                report.top5);
        if (report.peakRssBytes != null) {
            out.printf(
                    Locale.ROOT,
                    "peak resident memory %.2f GiB%n",
                    report.peakRssBytes / (double) (1L << 30));
        }
    }

    /** The figures of a training run, as {@code --json} writes them. */
    static final class TrainReport {

        int classes;
        String languages;
        int ranks;
        String mode; // null on a mesh
        String mesh; // null in a mode
        String head;
        String optimizer;
        int dim;
        int batch;
        int seed;
        int steps;

        /** The loss of every step. */
        List<Float> loss = new ArrayList<>();

        /** The share of held-out words whose best lemma is right. */
        double top1;

        /** The share of held-out words with a right lemma among the five best. */
        double top5;

        @SerializedName("samples_per_second")
        double samplesPerSecond;

        @SerializedName("peak_rss_bytes")
        Long peakRssBytes;

        /** The time of the training steps. */
        double seconds;

        @SerializedName("total_seconds")
        double totalSeconds;
    }

    /** Says, when Ctrl-C or a signal ends the process before the model is saved, what is saved. */
    static final class StopNotice {

        private final Thread hook;

        /**
         * Waits for the end.
         *
         * @param shown whether this process says anything
         * @param steps the number of steps that were done
         * @param saved returns where the newest checkpoint is, or {@code null} if there is none
         */
        StopNotice(boolean shown, IntSupplier steps, Supplier<String> saved) {
            hook = new Thread(() -> print(steps.getAsInt(), saved.get()), "tp-stop");
            if (shown) {
                Runtime.getRuntime().addShutdownHook(hook);
            }
        }

        private static void print(int steps, String saved) {
            System.err.printf(
                    "%ntp: stopped after %d steps, before %s.%n",
                    steps,
                    saved == null
                            ? "anything was saved. --minutes or --steps ends a run with a saved model,"
                                    + " --checkpoint-minutes saves it on the way"
                            : "the model was saved. " + saved);
            System.err.flush();
        }

        /** From here on the end is an ordinary one. */
        void end() {
            try {
                Runtime.getRuntime().removeShutdownHook(hook);
            } catch (IllegalStateException e) {
                return; // the process is being stopped, and the word is being said
            }
        }
    }
}

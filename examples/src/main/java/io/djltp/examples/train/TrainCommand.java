package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Dataset;
import ai.djl.translate.TranslateException;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.lemma.FastTextFiles;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.examples.lemma.LemmaDataset;
import io.djltp.examples.lemma.SavedModel;
import io.djltp.internal.report.SystemMemory;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.report.TrainingReport;
import io.djltp.training.ParallelTrainer;
import io.djltp.zoo.CharNGrams;
import io.djltp.zoo.LemmaNetwork;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.Callable;
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

    private PrintStream out = System.out; // of the first process of a job alone
    private final RunReport report = new RunReport();

    /** Creates the command; its options are set by the command line. */
    public TrainCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws Exception {
        Path folder = options.exportSplit;
        if (folder != null) {
            options.check();
            exportSplit(folder);
            return 0;
        }
        return TrainingJob.run(options, spec, this::run);
    }

    private void run(TrainingJob job) throws IOException, TranslateException {
        out = job.out();
        Thread notice = new Thread(this::printStop, "tp-stop");
        if (job.isFirst()) {
            Runtime.getRuntime().addShutdownHook(notice);
        }
        try {
            train(job);
        } finally {
            try {
                Runtime.getRuntime().removeShutdownHook(notice);
            } catch (IllegalStateException e) {
                // the process is being stopped, and the word is being said
            }
        }
    }

    /** Says, when Ctrl-C or a signal ends the process before the model is saved, what is saved. */
    private void printStop() {
        String saved = options.describeNewest();
        System.err.printf(
                "%ntp: stopped after %d steps, before %s.%n",
                report.loss.size(),
                saved == null
                        ? "anything was saved. --minutes or --steps ends a run with a saved model,"
                                + " --checkpoint-minutes saves it on the way"
                        : "the model was saved. " + saved);
        System.err.flush();
    }

    /** Writes the words for another program: the same to learn from, the same held out. */
    private void exportSplit(Path folder) throws IOException {
        HeldOutSplit split =
                HeldOutSplit.of(LemmaCorpus.read(options.languages), HELD_OUT, SPLIT_SEED);
        try {
            FastTextFiles.write(split, folder);
        } catch (IOException e) {
            throw new BadInputException(
                    "--export-split %s cannot be written (%s: %s): choose a folder with write"
                            + " permission and room",
                    folder, e.getClass().getSimpleName(), e.getMessage());
        }
        System.out.printf(
                Locale.ROOT,
                "%,d pairs of word and lemma to train on and %,d held-out words, %,d lemmas, are in"
                        + " %s%n",
                split.trainingSize(),
                split.size(),
                split.corpus().classes(),
                folder);
    }

    private void train(TrainingJob job) throws IOException, TranslateException {
        LemmaCorpus corpus = readCorpus();
        HeldOutSplit split = HeldOutSplit.of(corpus, HELD_OUT, SPLIT_SEED);
        CharNGrams nGrams = new CharNGrams(tableRows(corpus.classes()), N_GRAMS);
        ClassificationHead head = head(corpus.classes());
        checkSizes(corpus, nGrams);
        try (Model model = Model.newInstance(SavedModel.NAME)) {
            double seconds = train(job, model, split, nGrams, head);
            if (job.isFirst()) {
                evaluate(model, split, nGrams, seconds);
                SavedModel.save(options.out, model, corpus.lexicon(), nGrams, options.dim);
                out.printf(
                        "%nThe model is saved in %s. Try: %s%n",
                        options.out, options.lemmaCommand());
                report.write(options.json);
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
        if (options.ranks() > corpus.classes()) {
            throw new BadInputException(
                    "--tp %d leaves ranks without a class: there are %d",
                    options.ranks(), corpus.classes());
        }
        new RunMemory(options, corpus.classes(), nGrams.rows(), corpus.size()).check(out);
    }

    /** Trains, and returns the seconds of the steps. */
    private double train(
            TrainingJob job,
            Model model,
            HeldOutSplit split,
            CharNGrams nGrams,
            ClassificationHead head)
            throws IOException, TranslateException {
        announce(job, split.corpus().classes());
        LemmaNetwork.initializeHead(head);
        model.setBlock(LemmaNetwork.create(nGrams.rows(), options.dim, head));
        long batches = (long) (split.trainingSize() / options.batch) * options.epochs();
        int classes = split.corpus().classes();
        TrainingReport page =
                options.report("tp train")
                        .optFact("classes", String.format(Locale.ROOT, "%,d", classes))
                        .optFact("features", "" + options.dim)
                        .optFact("words a step", "" + options.batch)
                        .optFact("head", describeHead(classes))
                        .optFact("optimizer", options.optimizer.toString())
                        .optFact("ranks", "" + options.ranks())
                        .build();
        TrainingProgress progress =
                new TrainingProgress(
                        options,
                        batches,
                        LemmaDataset.heldOut(split, nGrams, options.batch),
                        report,
                        job.isFirst(),
                        page);
        LemmaDataset training =
                LemmaDataset.training(split, nGrams, options.batch, options.seed, progress::isOver);
        CheckpointListener checkpoints = options.listener(spec, report, progress::isOver);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(options.optimizer(head, progress::getDone))
                        .addTrainingListeners(progress);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints); // after all others
        }
        Engine.getInstance().setRandomSeed(options.seed);
        try (page;
                ParallelTrainer trainer =
                        job.trainer(model, config, options.config(job.get()).build())) {
            trainer.initialize(new Shape(options.batch, nGrams.limit()));
            job.resume(checkpoints, options, trainer);
            progress.begin();
            page.resume(report.loss);
            try {
                fit(trainer, checkpoints, training);
            } catch (RuntimeException | IOException | TranslateException e) {
                page.endEarly();
                throw e;
            }
            return report.seconds();
        }
    }

    private void announce(TrainingJob job, int classes) {
        out.printf(
                Locale.ROOT,
                "Training %,d x %d on %d rank%s%s, %s, head %s, %s%n",
                classes,
                options.dim,
                options.ranks(),
                options.ranks() == 1 ? "" : "s",
                job.describe(),
                options.describeSharing(),
                describeHead(classes),
                options.optimizer);
        if (options.optimizer == OptimizerName.ADAGRAD) {
            // a warm-up of 200 steps keeps it down, and costs a point of top-5 after 1,200
            out.println(
                    "(The loss rises for some dozens of steps: Adagrad begins with large ones.)");
        }
    }

    private void fit(Trainer trainer, @Nullable CheckpointListener checkpoints, Dataset training)
            throws IOException, TranslateException {
        if (checkpoints == null) {
            EasyTrain.fit(trainer, options.epochs(), training, null);
            return;
        }
        if (checkpoints.getStep() > options.steps()) { // its model is not that of so few steps
            throw new BadInputException(
                    "--steps: the checkpoint in %s has trained for %d steps, which is beyond the %d"
                            + " that are asked for: ask for as many or more, or choose another"
                            + " --out",
                    options.checkpoints(), checkpoints.getStep(), options.steps());
        }
        BadInputException.check("--epochs: ", () -> checkpoints.remainingEpochs(options.epochs()));
        checkpoints.fit(trainer, options.epochs(), training, null);
    }

    private String describeHead(int classes) {
        String name = options.head.toString();
        return options.head != HeadKind.SAMPLED
                ? name
                : String.format(Locale.ROOT, "%s %.3g", name, options.sampleShare(classes));
    }

    private ClassificationHead head(int classes) {
        return BadInputException.check(
                "--head %s: ".formatted(describeHead(classes)),
                () ->
                        options.head
                                .builder(classes, options.sampleShare(classes), options.seed)
                                .optBatchShardedInput(true)
                                .optPrecision(options.precision)
                                .build());
    }

    private void evaluate(Model model, HeldOutSplit split, CharNGrams nGrams, double seconds) {
        int words = Math.min(options.heldOut, split.size());
        LemmaDataset heldOut = LemmaDataset.heldOut(split, nGrams, EVALUATION_BATCH);
        HeldOutEvaluation evaluation = new HeldOutEvaluation(model, split, heldOut, words);
        evaluation.printTable(out);
        int steps = report.loss.size();
        double speed = (double) steps * options.batch / seconds;
        double top1 = evaluation.accuracy(1);
        double top5 = evaluation.accuracy(5);
        out.printf(
                Locale.ROOT,
                "%n%,d steps in %.0f s, %.0f words/s, loss %.4f%n"
                        + "%,d held-out words: top-1 %.3f, top-5 %.3f%n",
                steps,
                seconds,
                speed,
                steps == 0 ? Double.NaN : report.loss.get(steps - 1),
                words,
                top1,
                top5);
        SystemMemory.peakResident()
                .ifPresent(
                        bytes ->
                                out.printf(
                                        Locale.ROOT,
                                        "peak resident memory %.2f GiB%n",
                                        bytes / 0x1p30));
        report.put("classes", split.corpus().classes());
        report.put("languages", options.languageList());
        report.put("ranks", options.ranks());
        report.put("mode", options.modeName()); // null on a mesh
        report.put("mesh", options.meshName()); // null in a mode
        report.put("head", options.head.toString());
        report.put("optimizer", options.optimizer.toString());
        report.put("dim", options.dim);
        report.put("batch", options.batch);
        report.put("seed", options.seed);
        report.put("steps", steps);
        report.put("seconds", seconds);
        report.put("samples_per_second", speed);
        report.put("top1", top1); // the share of words whose best lemma is right
        report.put("top5", top5); // with a right lemma among the five best
    }
}

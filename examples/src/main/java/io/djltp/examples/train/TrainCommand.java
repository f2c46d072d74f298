package io.djltp.examples.train;

import ai.djl.engine.Engine;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Dataset;
import ai.djl.translate.TranslateException;
import ai.djl.util.Utils;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.checkpoint.ResumableDataset;
import io.djltp.examples.BadInputException;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.Tp;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.internal.report.SystemMemory;
import io.djltp.report.TrainingReport;
import io.djltp.training.ParallelTrainer;

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

/** Trains a classifier of a file, or the lemmatiser: inflected word form in, lemma out. */
@Command(
        name = "train",
        description =
                "Trains a classifier of any number of classes on a file, --data. Without one,"
                        + " trains a lemmatiser on real dictionaries: the inflected form of a word"
                        + " in, its lemma out, each lemma a class. Shows what it learned on words"
                        + " that it has never seen. Saves the model.",
        mixinStandardHelpOptions = true)
public final class TrainCommand implements Callable<Integer> {

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
        LemmaCorpus corpus = LemmaCorpus.read(options.languages);
        String written;
        try {
            written =
                    options.forms
                            ? HeldOutSplit.writeForms(corpus, folder)
                            : HeldOutSplit.of(corpus).write(folder);
        } catch (IOException e) {
            throw new BadInputException(
                    "--export-split %s cannot be written (%s: %s): choose a folder with write"
                            + " permission and room",
                    folder, e.getClass().getSimpleName(), e.getMessage());
        }
        System.out.printf("%s, are in %s%n", written, folder);
    }

    private void train(TrainingJob job) throws IOException, TranslateException {
        try (TrainingTask task = new TrainingTask(options, job)) {
            if (options.ranks() > task.classes()) {
                throw new BadInputException(
                        "--tp %d leaves ranks without a class: there are %d, use --tp %2$d",
                        options.ranks(), task.classes());
            }
            task.memory().check(out);
            double seconds = train(job, task);
            if (job.isFirst()) {
                save(task); // first: nothing that follows can lose it
                task.evaluate(report, seconds);
                addFigures(task, seconds);
                out.printf("%nThe model is saved in %s. Try: %s%n", options.out(), task.command());
                report.write(options.json);
            }
        } finally {
            Utils.deleteQuietly(TrainingTask.words(options));
        }
    }

    private void save(TrainingTask task) {
        try {
            task.save();
        } catch (IOException e) {
            String saved = options.describeNewest();
            throw new BadInputException(
                    "The model cannot be saved in --out %s (%s). Files there are as before. %s, and"
                            + " train again%s",
                    options.out(),
                    e.getMessage(),
                    BadInputException.isOfFullDisk(e) ? "Make room" : "Choose another folder",
                    saved == null ? "" : ". " + saved);
        }
    }

    /** Trains, and returns the seconds of the steps. */
    private double train(TrainingJob job, TrainingTask task)
            throws IOException, TranslateException {
        announce(job, task.classes());
        long batches = task.batches() * options.epochs();
        TrainingReport page =
                options.report("tp train")
                        .optFact("classes", String.format(Locale.ROOT, "%,d", task.classes()))
                        .optFact("features", "" + options.dim)
                        .optFact("rows a step", "" + options.batch)
                        .optFact("head", options.describeHead(task.classes()))
                        .optFact("optimizer", options.optimizer.toString())
                        .optFact("ranks", "" + options.ranks())
                        .build();
        TrainingProgress progress =
                new TrainingProgress(options, batches, task, report, job.isFirst(), page);
        ResumableDataset training = task.training(progress::isOver);
        CheckpointListener checkpoints = options.listener(spec, report, progress::isOver);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(task.loss())
                        .optOptimizer(options.optimizer(task.head(), progress::getDone))
                        .addTrainingListeners(progress);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints); // after all others
        }
        Engine.getInstance().setRandomSeed(options.seed);
        try (page;
                ParallelTrainer trainer =
                        job.trainer(task.model(), config, options.config(job.get()).build())) {
            BadInputException.check( // such as more ranks than heads of --body
                    "",
                    () -> {
                        trainer.initialize(task.inputs());
                        return trainer;
                    });
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
                "Training %,d x %d on %s%s, %s, head %s, %s%n",
                classes,
                options.dim,
                Tp.count(options.ranks(), "rank"),
                job.describe(),
                options.describeSharing(),
                options.describeHead(classes),
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

    private void addFigures(TrainingTask task, double seconds) {
        SystemMemory.peakResident()
                .ifPresent(
                        bytes ->
                                out.printf(
                                        Locale.ROOT,
                                        "peak resident memory %.2f GiB%n",
                                        bytes / 0x1p30));
        int steps = report.loss.size();
        report.put("classes", task.classes());
        report.put("ranks", options.ranks());
        report.put("mode", options.modeName()); // null on a mesh
        report.put("mesh", options.meshName()); // null in a mode
        report.put("head", options.headKind().toString());
        report.put("optimizer", options.optimizer.toString());
        report.put("dim", options.dim);
        report.put("batch", options.batch);
        report.put("seed", options.seed);
        report.put("steps", steps);
        report.put("seconds", seconds);
        report.put("samples_per_second", (double) steps * options.batch / seconds);
    }
}

package io.djltp.examples.train;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.dataset.Batch;
import ai.djl.training.loss.Loss;
import ai.djl.translate.TranslateException;
import ai.djl.util.Progress;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.classes.ClassModel.Objective;
import io.djltp.classes.TextFeatures;
import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.Tp;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.examples.train.TrainOptions.LabelCount;
import io.djltp.launch.Launcher;
import io.djltp.llm.EncoderBody;
import io.djltp.llm.ModelConfig;
import io.djltp.rank.DeviceMesh;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** What {@code tp train} learns: a classifier of a user's own file, or of dictionaries. */
final class TrainingTask implements AutoCloseable {

    private static final int MOST_FUSED = 20_000; // classes that a step computes all of
    private static final float SHARE_OF_EACH = 1f / 6; // of the rate, for classes by themselves
    private static final int BYTES_OF_A_CLASS = 200;

    private final TrainOptions options;
    private final PrintStream out;
    private final @Nullable EncoderBody body;
    private long bodyBytes; // of the weights, and if they are trained of gradients and state
    private final ClassData data;
    private final @Nullable ClassData validation;
    private final ClassModel model;

    TrainingTask(TrainOptions options, TrainingJob job) throws IOException {
        this.options = options;
        out = job.out();
        body = options.body == null ? null : openBody(options.body);
        Function<? super String, int[]> texts = body; // how they become numbers
        DataOptions.Source source;
        DataOptions.Source judged = null;
        if (options.own.data == null) {
            out.printf(
                    "Reading the dictionary of %s ...%n",
                    options.languages.stream()
                            .map(Language::displayName)
                            .collect(Collectors.joining(", ")));
            LemmaCorpus corpus = LemmaCorpus.read(options.languages);
            texts = new TextFeatures(LemmaCorpus.tableRows(corpus.classes()), 2, 5, 1, 2);
            Path words = words(options);
            words.toFile().deleteOnExit(); // also if a signal ends the process; its files first
            HeldOutSplit.of(corpus).write(words);
            source = source(words.resolve(HeldOutSplit.TRAIN));
            judged = source(words.resolve(HeldOutSplit.TEST));
        } else {
            source = options.own.source();
            out.printf("Reading %s ...%n", source.file());
            if (options.validation != null) {
                judged =
                        new DataOptions.Source(
                                "--validation",
                                options.validation,
                                options.validationLabels,
                                options.validationFilter);
            }
        }
        Path file = source.file();
        Function<? super String, int[]> ofTexts = texts;
        data =
                options.own.read(
                        source,
                        builder -> {
                            if (ofTexts != null) {
                                builder.optTextFeatures(ofTexts);
                            }
                            if (options.labels != null) {
                                builder.optManyLabels(options.labels == LabelCount.MANY);
                            }
                        });
        ClassData.Features features = data.getFeatures();
        if (options.features != null && options.features != features) {
            throw new BadInputException(
                    "--features %s: %s has the format %s, of which the features are %s",
                    lower(options.features), file, data.getFormat(), lower(features));
        }
        if (body != null && features != ClassData.Features.TEXT) {
            throw new BadInputException(
                    "--body %s takes texts, and %s has %s features",
                    options.body, file, lower(features));
        }
        int classes = data.getClasses().size();
        double labels = Arrays.stream(data.getClassCounts()).sum() / (double) data.size();
        out.printf(
                Locale.ROOT,
                "%s with %s features (%s), %,d classes, %.2f labels a row%s%n",
                Tp.count(data.size(), "row"),
                lower(features),
                data.getFormat(),
                classes,
                labels,
                skipped(data));
        // the processes of a job read a file each, which may be another one
        String rows = data.size() + " rows, classes " + data.getClasses().hashCode();
        TrainingJob.checkAlike(Map.of("--data", rows), job.get());
        if (batches() == 0) {
            throw new BadInputException(
                    "%s has %s, fewer than the ranks that share them: use fewer (%s)",
                    file, Tp.count(data.size(), "row"), options.describeRanks());
        }
        if (options.head == null) {
            options.head = classes <= MOST_FUSED ? HeadKind.FUSED : HeadKind.SAMPLED;
        }
        if (options.loss == null) {
            boolean all = data.hasManyLabels() && options.head != HeadKind.SAMPLED;
            options.loss = all ? Objective.ONE_VS_ALL : Objective.SOFTMAX;
        }
        if (options.learningRate == null) {
            float share = options.loss == Objective.SOFTMAX ? 1 : SHARE_OF_EACH;
            options.learningRate = share * options.usualRate();
        }
        validation = judged == null ? null : readValidation(judged, ofTexts);
        ClassModel.Builder builder =
                ClassModel.builder(data)
                        .optDim(options.dim)
                        .optObjective(options.loss)
                        .optHead(options.head(classes));
        model = (body == null ? builder : builder.optBody(body)).build();
    }

    /**
     * Returns the folder for the files of the dictionaries, to be deleted after the training. What
     * a killed run has left there, the next one writes over.
     */
    static Path words(TrainOptions options) {
        return options.out().resolve(".words-" + Launcher.process(System.getenv()));
    }

    private EncoderBody openBody(Path folder) {
        try {
            options.checkHeads(ModelConfig.read(folder).getHeads());
            EncoderBody opened = EncoderBody.of(folder, options.freezeBody);
            options.dim = opened.getWidth();
            options.bodyShare = opened.getRateShare();
            try (Stream<Path> files = Files.list(folder)) {
                for (Path each :
                        files.filter(it -> it.toString().endsWith(".safetensors")).toList()) {
                    bodyBytes += (options.freezeBody ? 1 : 3) * Files.size(each);
                }
            }
            return opened;
        } catch (IOException | MalformedModelException e) {
            throw new BadInputException("--body " + folder + ": " + e.getMessage(), e);
        }
    }

    private static String lower(ClassData.Features features) {
        return features.name().toLowerCase(Locale.ROOT);
    }

    private static String skipped(ClassData data) {
        int lines = data.getSkippedLines();
        return lines == 0 ? "" : ", " + Tp.count(lines, "bad line") + " left out";
    }

    private static DataOptions.Source source(Path file) {
        file.toFile().deleteOnExit();
        return new DataOptions.Source("--languages", file, null, null);
    }

    private ClassData readValidation(
            DataOptions.Source file, @Nullable Function<? super String, int[]> texts) {
        ClassData read =
                ClassEvaluation.read(
                        options.own,
                        file,
                        data.getClasses(),
                        data.getFeatures(),
                        data.getFeatureCount(),
                        texts);
        out.printf(
                Locale.ROOT,
                "%s to judge by, %,d labels of theirs unknown%s%n",
                Tp.count(read.size(), "row"),
                read.getUnknownLabels(),
                skipped(read));
        return read;
    }

    /** {@return the number of classes} */
    int classes() {
        return data.getClasses().size();
    }

    /** {@return the number of batches of a pass} */
    long batches() {
        // a last one with fewer rows than ranks that share it is left out
        long rest = data.size() % options.batch;
        return data.size() / options.batch + (rest >= options.ranks(DeviceMesh.DATA) ? 1 : 0);
    }

    /** Estimates the memory. */
    RunMemory memory() {
        long data = BYTES_OF_A_CLASS * (long) classes() + bodyBytes;
        return new RunMemory(options, classes(), model.getInputs(), 64, data);
    }

    /** {@return the model, with its network} */
    Model model() {
        return model.getModel();
    }

    /** {@return the shapes of the inputs of a batch} */
    Shape[] inputs() {
        return model.getInputShapes(options.batch);
    }

    /** {@return the loss} */
    Loss loss() {
        return model.newLoss();
    }

    /**
     * Returns the batches to train on.
     *
     * @param over asked before each batch; once it returns true, there are no more
     */
    ResumableDataset training(BooleanSupplier over) {
        return new Until(data.newDataset(options.batch, true, options.seed), batches(), over);
    }

    /**
     * Returns a batch of held-out rows.
     *
     * @param manager the manager of the batch
     * @return always the same rows, or {@code null} if none are held out
     */
    @Nullable Batch heldOut(NDManager manager) {
        if (validation == null) {
            return null;
        }
        try {
            Iterable<Batch> batches =
                    validation.newDataset(options.batch, false, 0).getData(manager);
            Iterator<Batch> first = batches.iterator();
            return first.hasNext() ? first.next() : null;
        } catch (IOException | TranslateException e) {
            throw new IllegalStateException("The held-out rows cannot be read any more", e);
        }
    }

    /**
     * Judges the trained model, and prints the figures.
     *
     * @param report the report, which gets them too
     * @param seconds how long the training took
     */
    void evaluate(RunReport report, double seconds) throws IOException {
        report.printSteps(out, options.batch, seconds);
        report.put("objective", options.loss + "");
        report.put("rows", data.size());
        if (validation != null) {
            Map<String, Object> figures = ClassEvaluation.evaluate(model, validation);
            ClassEvaluation.print(figures, out);
            report.put("validation", figures);
        }
    }

    /** Saves the trained model. */
    void save() throws IOException {
        model.save(options.out());
    }

    /** {@return the head, the last block of the network} */
    Block head() {
        var blocks = model().getBlock().getChildren().values();
        return blocks.get(blocks.size() - 1);
    }

    /** {@return what to type to use the saved model} */
    String command() {
        return options.predictCommand(
                data.getFeatures() == ClassData.Features.TEXT ? "TEXT..." : "--file FILE");
    }

    /** Frees the model. */
    @Override
    public void close() {
        model.close();
    }

    /** Batches until the training is over. */
    private record Until(ResumableDataset data, long count, BooleanSupplier over)
            implements ResumableDataset {

        @Override
        public Iterable<Batch> getData(NDManager manager) throws IOException, TranslateException {
            return until(data.getData(manager), 0);
        }

        @Override
        public Iterable<Batch> getData(
                NDManager manager, @Nullable ExecutorService executor, long epoch, long firstBatch)
                throws IOException, TranslateException {
            return until(data.getData(manager, executor, epoch, firstBatch), firstBatch);
        }

        private Iterable<Batch> until(Iterable<Batch> batches, long first) {
            return () -> {
                Iterator<Batch> all = batches.iterator();
                return new Iterator<>() {
                    private long done = first;

                    @Override
                    public boolean hasNext() {
                        return done < count && !over.getAsBoolean() && all.hasNext();
                    }

                    @Override
                    public Batch next() {
                        done++;
                        return all.next();
                    }
                };
            };
        }

        @Override
        public void prepare(@Nullable Progress progress) throws IOException, TranslateException {
            data.prepare(progress);
        }
    }
}

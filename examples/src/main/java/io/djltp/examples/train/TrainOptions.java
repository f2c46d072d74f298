package io.djltp.examples.train;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.Device;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.Tp;
import io.djltp.examples.lemma.Language;
import io.djltp.internal.optimizer.HeadRates;
import io.djltp.job.Job;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.Set;
import java.util.function.DoubleSupplier;
import java.util.stream.Collectors;

/** The options of {@code tp train}. */
final class TrainOptions extends JobOptions {

    private static final Path DEFAULT_OUT = Path.of("out/lemma");
    private static final double DEFAULT_MINUTES = 3;
    private static final int MOST_EPOCHS = 1000; // another limit comes first
    private static final int DEFAULT_EPOCHS = 20; // then what is learned is the noise of the rows

    @Option(
            names = "--languages",
            description = "Dictionaries to learn, any of de,en,pl,uk,ru (de).")
    private @Nullable String languageCodes;

    @Option(
            names = "--mode",
            description =
                    "tensor: head cut, all ranks on the same batch; data: batch cut; mixed: body"
                            + " data parallel, head cut (mixed, or tensor with --body, if there is no"
                            + " --mesh).")
    private @Nullable ParallelMode mode;

    @Option(
            names = "--drift-check",
            description =
                    "Compare the replicas of parameters every so many steps; 0 for never (after"
                            + " steps 1, 2, 4, 8, ... and at the end).")
    private @Nullable Integer driftCheckSteps;

    @Option(
            names = "--dim",
            defaultValue = "64",
            description = "Features of a row (${DEFAULT-VALUE}; of an encoder its own).")
    int dim;

    @Option(
            names = "--batch",
            defaultValue = "512",
            description = "Rows of a step, over all ranks (${DEFAULT-VALUE}).")
    int batch;

    @Option(
            names = "--epochs",
            description =
                    "End after so many passes over the training rows (20, if there are no"
                            + " --steps).")
    @Nullable Integer epochs;

    @Option(
            names = "--steps",
            description = "End after so many steps. No other limit then holds but --epochs.")
    @Nullable Integer steps;

    @Option(
            names = "--minutes",
            description = "End after so many minutes of training (3 if there are no --steps).")
    @Nullable Double minutes;

    @Option(names = "--lr", description = "Learning rate, at first (depends on the optimizer).")
    @Nullable Float learningRate;

    @Option(
            names = "--head",
            description =
                    "full: all logits; fused: logits, loss and update in one, a chunk of the"
                            + " classes at a time; sampled: the same with a random part of the"
                            + " classes in each step (sampled; fused for up to 20,000 classes).")
    @Nullable HeadKind head;

    @Option(
            names = "--sample-share",
            description =
                    "Share of the classes in a step of --head sampled (6,000 classes, but not less"
                            + " than 0.005 or more than 0.1).")
    @Nullable Float sampleShare;

    @Option(
            names = "--optimizer",
            defaultValue = "adagrad",
            description = "${COMPLETION-CANDIDATES} (${DEFAULT-VALUE}).")
    OptimizerName optimizer;

    @Option(
            names = "--precision",
            defaultValue = "float32",
            description =
                    "Arithmetic of the head's products: float32, bfloat16 where the processor has"
                            + " it, or float16 on GPUs. Weights are float32 (${DEFAULT-VALUE}).")
    Precision precision;

    @Option(names = "--seed", defaultValue = "1", description = "Seed (${DEFAULT-VALUE}).")
    int seed;

    @Option(
            names = "--out",
            description = "Folder for the trained model (out/lemma; with --data to be given).")
    private @Nullable Path out;

    @Option(names = "--overwrite", description = "Replace the model that --out has.")
    private boolean overwrite;

    @Option(
            names = "--export-split",
            description =
                    "Train nothing, but write the words to this folder, those to train on and those"
                            + " held out, as fastText reads them.")
    @Nullable Path exportSplit;

    @Option(
            names = "--forms",
            description =
                    "With --export-split: a lemma a line, with the endings of all its forms as"
                            + " labels (-en+t of gehen and geht), a tenth of the lemmas held"
                            + " out.")
    boolean forms;

    /** The user's own data. */
    @Mixin final DataOptions own = new DataOptions();

    @Option(
            names = "--validation",
            description = "A file as the --data, by which the trained model is judged.")
    @Nullable Path validation;

    @Option(names = "--validation-label-file", description = "The labels of --validation.")
    @Nullable Path validationLabels;

    @Option(
            names = "--validation-filter-file",
            description = "The pairs of row and label of --validation that do not count.")
    @Nullable Path validationFilter;

    @Option(
            names = "--features",
            description = "${COMPLETION-CANDIDATES}: what the file must have (what it has).")
    ClassData.@Nullable Features features;

    @Option(
            names = "--labels",
            description = "${COMPLETION-CANDIDATES} labels a row (many, if a row has several).")
    @Nullable LabelCount labels;

    @Option(
            names = "--loss",
            description =
                    "${COMPLETION-CANDIDATES} (softmax; with many labels and up to 20,000 classes"
                            + " one-vs-all).")
    ClassModel.@Nullable Objective loss;

    @Option(
            names = "--body",
            description =
                    "A Hugging Face folder of an encoder, such as BERT or MiniLM, whose vectors of"
                            + " the texts are classified. Its layers are cut over the ranks. Long"
                            + " texts need a smaller --batch, such as 32.")
    @Nullable Path body;

    @Option(
            names = "--freeze-body",
            description = "Leave the encoder as it is (it is trained along, slowly).")
    boolean freezeBody;

    /** The share of the learning rate that what is below the head has. */
    float bodyShare = HeadRates.TABLE_SHARE;

    List<Language> languages = List.of(); // until they are checked

    /** How many labels a row has. */
    enum LabelCount {
        ONE,
        MANY;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** {@inheritDoc} */
    @Override
    protected void check() {
        checkData();
        if (driftCheckSteps != null && driftCheckSteps < 0) {
            throw new BadInputException("--drift-check must be 0 or more, not " + driftCheckSteps);
        }
        if (meshName() != null && mode != null) {
            throw new BadInputException(
                    "--mesh %s and --mode %s both say how the ranks share the work: use one of the"
                            + " two",
                    meshName(), modeName());
        }
        if (body == null ? freezeBody : mode == ParallelMode.MIXED) {
            throw new BadInputException(
                    body == null
                            ? "--freeze-body needs --body, a folder"
                            : "--mode mixed would cut the encoder of --body by rows and by layers:"
                                    + " use tensor or data, or a --mesh");
        }
        ParallelMode usual = body == null ? ParallelMode.MIXED : ParallelMode.TENSOR;
        ParallelMode ofRanks = mode == null ? usual : mode;
        mode = meshName() == null ? ofRanks : null;
        check(ofRanks);
        positive("--dim", dim);
        positive("--batch", batch);
        positive("--epochs", epochs);
        positive("--steps", steps);
        positive("--minutes", minutes);
        checkHead();
        positive("--lr", learningRate);
        checkBatch(batch, modeName());
    }

    /**
     * {@inheritDoc}
     *
     * <p>Of a file 1: each rank would update the whole table of its features.
     */
    @Override
    protected int ranksAlone() {
        return own.data == null ? super.ranksAlone() : 1;
    }

    private void checkData() {
        own.check();
        DataOptions.checkFile("--validation", validation);
        DataOptions.checkFile("--validation-label-file", validationLabels);
        DataOptions.checkFile("--validation-filter-file", validationFilter);
        if (validation == null && (validationLabels != null || validationFilter != null)) {
            throw new BadInputException(
                    "--validation-label-file and --validation-filter-file belong to --validation:"
                            + " name a file");
        }
        if (own.data != null) {
            if (languageCodes != null || exportSplit != null) {
                throw new BadInputException(
                        "--languages and --export-split are for the dictionaries, and not for"
                                + " --data");
            }
            if (out == null) {
                throw new BadInputException("--data needs --out, a folder for the trained model");
            }
            return;
        }
        if (validation != null
                || features != null
                || labels != null
                || loss != null
                || body != null) {
            throw new BadInputException(
                    "--validation, --features, --labels, --loss and --body need --data, a file");
        }
        if (forms && exportSplit == null) {
            throw new BadInputException("--forms needs --export-split, a folder");
        }
        String codes = languageCodes == null ? "de" : languageCodes;
        languages = BadInputException.check("--languages: ", () -> Language.parse(codes));
        languageCodes = languages.stream().map(Language::code).collect(Collectors.joining(","));
        out = out == null ? DEFAULT_OUT : out;
    }

    private void checkHead() {
        if (sampleShare != null && !(sampleShare > 0 && sampleShare <= 1)) {
            throw new BadInputException(
                    "--sample-share must be greater than 0 and at most 1, not " + sampleShare);
        }
        head = head == null && sampleShare != null ? HeadKind.SAMPLED : head;
        if (sampleShare != null && head != HeadKind.SAMPLED) {
            throw new BadInputException(
                    "--sample-share is for --head sampled, not for --head " + head);
        }
        boolean here = where.device == DeviceOptions.DeviceName.CPU;
        BadInputException.check(
                "--precision: ",
                () -> {
                    precision.check(here ? Device.cpu() : Device.gpu());
                    return null;
                });
        Precision other = here ? Precision.BFLOAT16 : Precision.FLOAT16;
        if (precision != Precision.FLOAT32 && (head == HeadKind.FULL || precision != other)) {
            throw new BadInputException(
                    "--precision %s is for --head fused or sampled, bfloat16 with --device cpu and"
                            + " float16 with --device gpu, not for --head %s with --device %s",
                    precision, head, where.device);
        }
    }

    /** Returns the mode, or {@code null} on a mesh. */
    @Nullable String modeName() {
        return mode == null ? null : mode.name().toLowerCase(Locale.ROOT);
    }

    /** Returns the mode, or the mesh. */
    String describeSharing() {
        return mode == null ? "mesh " + meshName() : "mode " + modeName();
    }

    /** {@inheritDoc} */
    @Override
    public ParallelConfig.Builder config(@Nullable Job job) {
        ParallelConfig.Builder config = super.config(job);
        return driftCheckSteps == null ? config : config.optDriftCheck(driftCheckSteps);
    }

    /** Returns the share of the classes in a step of the sampled head. */
    float sampleShare(int classes) {
        return sampleShare != null ? sampleShare : HeadKind.defaultShare(classes);
    }

    /** Returns how the head is computed. */
    HeadKind headKind() {
        return Objects.requireNonNull(head, "head"); // since the check, or by the data
    }

    /** Returns how the head is computed, for people to read. */
    String describeHead(int classes) {
        HeadKind kind = headKind();
        return kind != HeadKind.SAMPLED
                ? kind.toString()
                : String.format(Locale.ROOT, "%s %.3g", kind, sampleShare(classes));
    }

    /** Returns the builder of the head. */
    ClassificationHead.Builder head(int classes) {
        return BadInputException.check(
                "--head %s: ".formatted(describeHead(classes)),
                () -> {
                    ClassificationHead.Builder builder =
                            headKind()
                                    .builder(classes, sampleShare(classes), seed)
                                    .optBatchShardedInput(true)
                                    .optPrecision(precision);
                    builder.build(); // which checks it
                    return builder;
                });
    }

    /** Returns what to type to use the trained model. */
    String predictCommand(String input) {
        String folder = out().toString();
        String quote = folder.contains(" ") ? "\"" : "";
        return Tp.NAME + " predict " + quote + folder + quote + " " + input;
    }

    /** {@inheritDoc} */
    @Override
    protected Path out() {
        return Objects.requireNonNull(out, "--out"); // since the check
    }

    /** {@inheritDoc} */
    @Override
    protected Set<String> trainingOptions() {
        return Set.of(
                ("--languages --data --label-file --filter-file --format --fields --label-separator"
                                + " --labels --loss --body --freeze-body --dim --batch --head"
                                + " --sample-share --optimizer --lr --seed")
                        .split(" "));
    }

    /** {@inheritDoc} */
    @Override
    protected void checkOut() {
        if (ClassModel.isIn(out()) && !overwrite && !isResumed()) {
            throw new BadInputException(
                    "--out %s has a trained model: use --overwrite to replace it, or choose another"
                            + " folder",
                    out());
        }
        try {
            Files.createDirectories(out());
            if (body != null && Files.exists(body) && Files.isSameFile(body, out())) {
                throw new BadInputException(
                        "--out %s is the folder of --body, whose files would be replaced: choose"
                                + " another folder",
                        out());
            }
            Files.delete(Files.createTempFile(out(), ".tp", ".check"));
        } catch (IOException e) {
            String why = e.getClass().getSimpleName() + ": " + e.getMessage();
            throw new BadInputException(
                    "--out %s cannot be written (%s): choose a folder with write permission"
                            .formatted(out, why),
                    e);
        }
    }

    /** Returns a learning rate that suits the optimizer. */
    float usualRate() {
        float sgd = 12f * batch / 256; // a word's own gradient is divided by the batch
        return switch (optimizer) {
            case SGD -> sgd;
            case MOMENTUM -> 0.1f * sgd;
            case ADAGRAD -> 0.3f;
            default -> 0.01f;
        };
    }

    /** Returns the optimizer, of which row-wise Adagrad has rates that fall with the run. */
    Optimizer optimizer(Block head, DoubleSupplier done) {
        float rate = Objects.requireNonNull(learningRate); // since the check
        if (optimizer == OptimizerName.ADAGRAD) {
            return HeadRates.optimizer(head, rate, batch, bodyShare, done);
        }
        return optimizer.create(
                body == null ? Tracker.fixed(rate) : HeadRates.rates(head, rate, bodyShare));
    }

    /** Returns the limit of time in minutes; a run with a number of steps has none of its own. */
    double minutes() {
        if (minutes != null) {
            return minutes;
        }
        return steps == null ? DEFAULT_MINUTES : Double.POSITIVE_INFINITY;
    }

    /** Returns the limit of passes. */
    int epochs() {
        if (epochs != null) {
            return epochs;
        }
        return steps == null ? DEFAULT_EPOCHS : MOST_EPOCHS;
    }

    /** Returns the limit of steps. */
    int steps() {
        return steps == null ? Integer.MAX_VALUE : steps;
    }
}

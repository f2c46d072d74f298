package io.djltp.examples.train;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.Device;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.ParameterTracker;

import io.djltp.examples.BadInputException;
import io.djltp.examples.HeadKind;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.Tp;
import io.djltp.examples.lemma.Language;
import io.djltp.job.Job;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.torch.Precision;

import org.jspecify.annotations.Nullable;

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

    private static final String DEFAULT_OUT = "out/lemma"; // where tp lemma looks, too
    private static final double DEFAULT_MINUTES = 3;
    private static final int MOST_EPOCHS = 1000; // another limit comes first
    private static final float TABLE_SHARE = 1f / 3; // of the rate
    private static final double FALL_BEGINS = 0.3; // the rate stays until this share of the run
    private static final double LAST_RATE = 0.2; // and then falls in a line to a fifth

    @Option(
            names = "--languages",
            defaultValue = "de",
            description = "Dictionaries to learn, any of de,en,pl,uk,ru (${DEFAULT-VALUE}).")
    private String languageCodes;

    @Option(
            names = "--mode",
            description =
                    "tensor: head cut, all ranks on the same batch; data: batch cut; mixed: body"
                            + " data parallel, head cut (mixed, if there is no --mesh).")
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
            description = "Features of a word (${DEFAULT-VALUE}).")
    int dim;

    @Option(
            names = "--batch",
            defaultValue = "512",
            description = "Words of a step, over all ranks (${DEFAULT-VALUE}).")
    int batch;

    @Option(names = "--epochs", description = "End after so many passes over the training words.")
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
            defaultValue = "sampled",
            description =
                    "full: all logits; fused: logits, loss and update in one, a chunk of the"
                            + " classes at a time; sampled: the same with a random part of the"
                            + " classes in each step (${DEFAULT-VALUE}).")
    HeadKind head;

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
            defaultValue = DEFAULT_OUT,
            description = "Folder for the trained model (${DEFAULT-VALUE}).")
    Path out;

    @Option(
            names = "--held-out",
            defaultValue = "" + TrainCommand.HELD_OUT,
            description =
                    "Held-out words that the trained model is judged by, at most"
                            + " ${DEFAULT-VALUE} (${DEFAULT-VALUE}).")
    int heldOut;

    @Option(
            names = "--export-split",
            description =
                    "Train nothing, but write the words to this folder, those to train on and those"
                            + " held out, as fastText reads them.")
    @Nullable Path exportSplit;

    List<Language> languages = List.of(); // until they are checked

    /** {@inheritDoc} */
    @Override
    protected void check() {
        languages = BadInputException.check("--languages: ", () -> Language.parse(languageCodes));
        languageCodes = languages.stream().map(Language::code).collect(Collectors.joining(","));
        if (driftCheckSteps != null && driftCheckSteps < 0) {
            throw new BadInputException("--drift-check must be 0 or more, not " + driftCheckSteps);
        }
        if (meshName() != null && mode != null) {
            throw new BadInputException(
                    "--mesh %s and --mode %s both say how the ranks share the work: use one of the"
                            + " two",
                    meshName(), modeName());
        }
        ParallelMode ofRanks = mode == null ? ParallelMode.MIXED : mode;
        mode = meshName() == null ? ofRanks : null;
        check(ofRanks);
        positive("--dim", dim);
        positive("--batch", batch);
        positive("--epochs", epochs);
        positive("--steps", steps);
        positive("--minutes", minutes);
        checkHead();
        if (heldOut < 1 || heldOut > TrainCommand.HELD_OUT) {
            throw new BadInputException(
                    "--held-out must be 1 to %s, not %s", TrainCommand.HELD_OUT, heldOut);
        }
        positive("--lr", learningRate);
        checkBatch(batch, modeName());
        if (learningRate == null) {
            learningRate = usualRate();
        }
    }

    private void checkHead() {
        if (sampleShare != null && !(sampleShare > 0 && sampleShare <= 1)) {
            throw new BadInputException(
                    "--sample-share must be greater than 0 and at most 1, not " + sampleShare);
        }
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

    /** Returns what to type to use the trained model. */
    String lemmaCommand() {
        String folder = out.toString();
        if (out.equals(Path.of(DEFAULT_OUT))) {
            return Tp.NAME + " lemma WORD...";
        }
        String quote = folder.contains(" ") ? "\"" : "";
        return Tp.NAME + " lemma --model " + quote + folder + quote + " WORD...";
    }

    /** Returns the codes of the languages. */
    String languageList() {
        return languageCodes;
    }

    /** {@inheritDoc} */
    @Override
    protected Path out() {
        return out;
    }

    /** {@inheritDoc} */
    @Override
    protected Set<String> trainingOptions() {
        return Set.of(
                "--languages --dim --batch --head --sample-share --optimizer --lr --seed"
                        .split(" "));
    }

    /** {@inheritDoc} */
    @Override
    protected void checkOut() {
        try {
            Files.createDirectories(out);
            Files.delete(Files.createTempFile(out, ".tp", ".check"));
        } catch (IOException e) {
            String why = e.getClass().getSimpleName() + ": " + e.getMessage();
            throw new BadInputException(
                    "--out %s cannot be written (%s): choose a folder with write permission"
                            .formatted(out, why),
                    e);
        }
    }

    /** Returns a learning rate that suits the optimizer. */
    private float usualRate() {
        float sgd = 12f * batch / 256; // a word's own gradient is divided by the batch
        return switch (optimizer) {
            case SGD -> sgd;
            case MOMENTUM -> 0.1f * sgd;
            case ADAGRAD -> 0.3f;
            default -> 0.01f;
        };
    }

    /**
     * Returns the optimizer. The rates of row-wise Adagrad fall towards the end of the run, and
     * what is below the head learns more slowly: every word moves many rows of the table.
     *
     * @param head the head
     * @param done the share of the run that is done, the same in all processes
     */
    Optimizer optimizer(Block head, DoubleSupplier done) {
        float rate = Objects.requireNonNull(learningRate); // since the check
        if (optimizer != OptimizerName.ADAGRAD) {
            return optimizer.create(rate);
        }
        // ranks have keys of their own, which begin with the name of the parameter
        ParameterTracker rates =
                (key, step) -> {
                    boolean ofHead =
                            head.getDirectParameters().values().stream()
                                    .anyMatch(parameter -> key.startsWith(parameter.getId()));
                    return (ofHead ? rate : rate * TABLE_SHARE) * rateFactor(done.getAsDouble());
                };
        // A class has a gradient of about 2 divided by the words of a step where it is the lemma of
        // one of them, and a twentieth of that and less where it is not. Without an epsilon of that
        // order the first step of every class is the whole rate all the same, away from all words,
        // and it takes hundreds of steps to come back.
        return RowwiseAdagrad.builder()
                .optLearningRateTracker(rates)
                .optEpsilon(0.5f / batch)
                .build();
    }

    /** Returns what the rate is multiplied with when a share of the run is done. */
    static float rateFactor(double done) {
        double fallen = Math.max(0, done - FALL_BEGINS) / (1 - FALL_BEGINS);
        return (float) (1 - (1 - LAST_RATE) * Math.min(1, fallen));
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
        return epochs == null ? MOST_EPOCHS : epochs;
    }

    /** Returns the limit of steps. */
    int steps() {
        return steps == null ? Integer.MAX_VALUE : steps;
    }
}

package io.djltp.examples.finetune;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.ndarray.types.DataType;

import io.djltp.examples.BadInputException;
import io.djltp.examples.train.JobOptions;
import io.djltp.job.Job;
import io.djltp.nn.LoraConfig;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/** The options of {@link FinetuneCommand}. */
final class FinetuneOptions extends JobOptions {

    private static final int EPOCHS = 3;

    /** How the learning rate falls after the warm-up. */
    enum Schedule {
        COSINE,
        LINEAR,
        CONSTANT;

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    @Parameters(paramLabel = "FOLDER", description = "The folder of the model.")
    Path folder;

    @Option(
            names = "--data",
            required = true,
            description =
                    "A file of lines such as {\"text\": \"...\"}, {\"prompt\": \"...\","
                            + " \"completion\": \"...\"} or {\"messages\": [...]}.")
    Path data;

    @Option(
            names = "--save",
            required = true,
            description = "Folder for the trained model, as Hugging Face lays it out.")
    Path save;

    @Option(names = "--eval", description = "Such a file for evaluations.")
    @Nullable Path evaluation;

    @Option(
            names = "--eval-share",
            description = "The share of --data that is used for evaluations, such as 0.05.")
    @Nullable Double evaluationShare;

    @Option(names = "--epochs", description = "Epochs of training (3).")
    private @Nullable Integer epochs;

    @Option(names = "--steps", description = "Steps of training, in place of --epochs.")
    private @Nullable Integer steps;

    @Option(
            names = "--batch",
            defaultValue = "8",
            description = "Rows of a batch, over all ranks (${DEFAULT-VALUE}).")
    int batch;

    @Option(
            names = "--accumulate",
            defaultValue = "1",
            description = "Batches of a step (${DEFAULT-VALUE}).")
    int accumulate;

    @Option(
            names = "--length",
            description =
                    "The most tokens of a row (512, or the positions of the model if these are"
                            + " fewer).")
    @Nullable Integer length;

    @Option(
            names = "--pack",
            description = "Put several texts into a row, none of which sees another.")
    boolean packed;

    @Option(names = "--bucket", description = "Put rows of similar length into a batch.")
    boolean bucketed;

    @Option(
            names = "--lora",
            description =
                    "Train adapters (LoRA) of this rank, and no other weights. --save gets the"
                            + " adapters, as PEFT lays them out.")
    @Nullable Integer rank;

    @Option(
            names = "--alpha",
            description = "The updates of adapters are multiplied by alpha / rank (2 * --lora).")
    private @Nullable Float alpha;

    @Option(
            names = "--lora-targets",
            split = ",",
            description =
                    "The layers that have an adapter, such as q_proj,v_proj, or all-linear (those"
                            + " of queries and values).")
    private String @Nullable [] targets;

    @Option(
            names = "--lr",
            description = "The largest learning rate of AdamW (2e-5, or 2e-4 with --lora).")
    private @Nullable Float learningRate;

    @Option(
            names = "--warmup",
            defaultValue = "0.03",
            description =
                    "Steps in which the learning rate rises, or below 1 their share"
                            + " (${DEFAULT-VALUE}).")
    private double warmUp;

    @Option(
            names = "--schedule",
            defaultValue = "cosine",
            description =
                    "How the learning rate falls to 0 after that: ${COMPLETION-CANDIDATES}"
                            + " (${DEFAULT-VALUE}).")
    private Schedule schedule;

    @Option(
            names = "--weight-decay",
            defaultValue = "0",
            description = "The weight decay of AdamW, of all parameters (${DEFAULT-VALUE}).")
    float weightDecay;

    @Option(
            names = "--clip",
            defaultValue = "1",
            description =
                    "The largest norm of all gradients together; larger ones are scaled down to"
                            + " it (${DEFAULT-VALUE}).")
    private float clip;

    @Option(
            names = "--seed",
            defaultValue = "42",
            description = "Seed of the order of the texts (${DEFAULT-VALUE}).")
    int seed;

    @Option(
            names = "--dtype",
            defaultValue = "float32",
            description =
                    "Type of the saved weights: float32, bfloat16 or float16 (${DEFAULT-VALUE}).")
    DataType dataType;

    @Option(names = "--out", description = "Folder of the run, for its checkpoints.")
    private @Nullable Path out;

    /** {@inheritDoc} */
    @Override
    protected void check() {
        check(ParallelMode.TENSOR);
        positive("--epochs", epochs);
        positive("--steps", steps);
        positive("--batch", batch);
        positive("--accumulate", accumulate);
        positive("--length", length);
        positive("--lr", learningRate);
        positive("--lora", rank);
        positive("--alpha", alpha);
        if (rank == null && (alpha != null || targets != null)) {
            throw new BadInputException(
                    "%s is for adapters: give their rank, --lora 16",
                    alpha != null ? "--alpha" : "--lora-targets");
        }
        positive("--clip", clip);
        notNegative("--warmup", warmUp);
        notNegative("--weight-decay", weightDecay);
        checkBatch(batch, "TENSOR");
        if (epochs != null && steps != null) {
            throw new BadInputException("Give --epochs or --steps, not both");
        }
        if (evaluation != null && evaluationShare != null) {
            throw new BadInputException("Give --eval or --eval-share, not both");
        }
        if (!List.of(DataType.FLOAT32, DataType.BFLOAT16, DataType.FLOAT16).contains(dataType)) {
            throw new BadInputException(
                    "--dtype must be float32, bfloat16 or float16, not %s", dataType);
        }
        checkFile("--data", data);
        checkFile("--eval", evaluation);
    }

    private static void notNegative(String option, double value) {
        if (!(value >= 0) || Double.isInfinite(value)) {
            throw new BadInputException("%s must be 0 or more, not %s", option, value);
        }
    }

    private static void checkFile(String option, @Nullable Path file) {
        if (file != null && !Files.isRegularFile(file)) {
            throw new BadInputException(
                    "%s %s is no file: write one with a line of JSON for each text", option, file);
        }
    }

    /** {@inheritDoc} */
    @Override
    protected void checkOut() {
        checkSave(save);
    }

    /** {@inheritDoc} */
    @Override
    protected @Nullable Path out() {
        return out;
    }

    /** {@inheritDoc} */
    @Override
    protected Set<String> trainingOptions() { // of --steps, learning rates follow
        return Set.of(
                ("--data --eval-share --epochs --steps --batch --accumulate --length --pack"
                                + " --bucket --lora --alpha --lora-targets --lr --warmup --schedule --weight-decay --clip --seed")
                        .split(" "));
    }

    /** {@return the adapters, or {@code null} if all weights are trained} */
    @Nullable LoraConfig lora() {
        if (rank == null) {
            return null;
        }
        LoraConfig.Builder builder =
                LoraConfig.builder().optRank(rank).optAlpha(alpha == null ? 2f * rank : alpha);
        return (targets == null ? builder : builder.optTargets(targets)).build();
    }

    /** Returns the number of steps. */
    int steps(long stepsOfEpoch) {
        int count = epochs == null ? EPOCHS : epochs;
        return steps != null ? steps : Math.toIntExact(count * stepsOfEpoch);
    }

    /** Returns the learning rate of an update, whose number begins with 1. */
    float rate(int number, int steps) {
        float largest = learningRate != null ? learningRate : rank == null ? 2e-5f : 2e-4f;
        double rising = warmUp < 1 ? Math.round(warmUp * steps) : Math.min(warmUp, steps);
        if (number <= rising) {
            return (float) (largest * number / (rising + 1));
        }
        double done = (number - 1 - rising) / (steps - rising);
        return switch (schedule) {
            case COSINE -> (float) (largest * (1 + Math.cos(Math.PI * done)) / 2);
            case LINEAR -> (float) (largest * (1 - done));
            case CONSTANT -> largest;
        };
    }

    /** {@inheritDoc} */
    @Override
    public ParallelConfig.Builder config(@Nullable Job job) {
        return super.config(job).optGradientClipNorm(clip);
    }
}

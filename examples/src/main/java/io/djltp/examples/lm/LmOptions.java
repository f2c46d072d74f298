package io.djltp.examples.lm;

import static io.djltp.examples.train.DeviceOptions.positive;

import io.djltp.examples.BadInputException;
import io.djltp.examples.lm.LmNetwork.LmSizes;
import io.djltp.examples.train.JobOptions;
import io.djltp.job.Job;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.nio.file.Path;
import java.util.Set;

/** The options of {@link LmCommand}. */
final class LmOptions extends JobOptions {

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
                            + " token each time (${DEFAULT-VALUE}).")
    double temperature;

    @Option(
            names = "--characters",
            defaultValue = "300",
            description = "Characters that the model writes at the end (${DEFAULT-VALUE}).")
    int characters;

    @Option(
            names = "--save",
            description =
                    "Folder for the trained model, as Hugging Face lays it out: for tp generate and"
                            + " others.")
    Path save;

    @Option(names = "--out", description = "Folder of the run, for its checkpoints.")
    @Nullable Path out;

    /** {@inheritDoc} */
    @Override
    protected void check() {
        check(ParallelMode.TENSOR);
        sizes.check();
        positive("--steps", steps);
        positive("--batch", batch);
        positive("--lr", learningRate);
        positive("--clip", clip);
        notNegative("--temperature", temperature);
        notNegative("--characters", characters);
        checkRanks();
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
                "--layers --width --heads --kv-heads --context --vocabulary --batch --steps --lr --clip --seed"
                        .split(" "));
    }

    private void checkRanks() {
        int tensor = ranks(DeviceMesh.TENSOR);
        checkHeads(sizes.heads);
        checkBatch(batch, "tensor");
        if (sequenceParallel && sizes.context < tensor) {
            throw new BadInputException(
                    "--sequence-parallel cuts the --context of %d over %d ranks: use --context"
                            + " %2$d or more, or fewer ranks",
                    sizes.context, tensor);
        }
    }

    /** Returns all options that say how the work is shared. */
    @Override
    public String describeRanks() {
        return super.describeRanks() + (sequenceParallel ? " --sequence-parallel" : "");
    }

    /** Returns the configuration of the ranks, with the largest norm of all gradients. */
    @Override
    public ParallelConfig.Builder config(@Nullable Job job) {
        return super.config(job).optGradientClipNorm(clip);
    }

    private static void notNegative(String option, double value) {
        if (!(value >= 0)) {
            throw new BadInputException(option + " must be 0 or more, not " + value);
        }
    }

    /** Refuses a text that is too short for the windows. */
    void checkText(TokenText text) {
        int most = Math.min(text.training().length, text.heldOut().length) - 1;
        if (sizes.context > most) {
            throw new BadInputException(
                    "--context %d is longer than the held-out text: use --context %d or less",
                    sizes.context, most);
        }
    }
}

package io.djltp.examples.lm;

import static io.djltp.examples.train.DeviceOptions.positive;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.report.ReportOptions;
import io.djltp.job.Job;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;

/** The options of {@link LmCommand}. */
final class LmOptions {

    @Mixin final LmRanks ranks = new LmRanks();

    @Mixin final LmSizes sizes = new LmSizes();

    @Mixin final ReportOptions reports = new ReportOptions();

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
                    "The largest norm of all gradients together; larger ones are scaled down to it"
                            + " (${DEFAULT-VALUE}).")
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

    @Option(names = "--json", description = "File to write figures and losses to.")
    Path json;

    /** Checks everything that can be checked before the text is read. */
    void check() {
        ranks.check();
        sizes.check();
        positive("--steps", steps);
        positive("--batch", batch);
        positive("--lr", learningRate);
        positive("--clip", clip);
        notNegative("--temperature", temperature);
        notNegative("--characters", characters);
        if (ranks.tensor() > sizes.heads) {
            throw new BadInputException(
                    ranks.describe()
                            + " leaves ranks without a head: "
                            + ranks.tensor()
                            + " ranks share --heads "
                            + sizes.heads
                            + ", use "
                            + sizes.heads
                            + " ranks or fewer along the axis tensor, or more heads");
        }
        if (batch < ranks.data()) {
            throw new BadInputException(
                    "--batch "
                            + batch
                            + " is smaller than the "
                            + ranks.data()
                            + " groups of ranks that share it on "
                            + ranks.describe()
                            + ": use --batch "
                            + ranks.data()
                            + " or more");
        }
        if (ranks.sequenceParallel && sizes.context < ranks.tensor()) {
            throw new BadInputException(
                    "--sequence-parallel cuts the --context of "
                            + sizes.context
                            + " over "
                            + ranks.tensor()
                            + " ranks: use --context "
                            + ranks.tensor()
                            + " or more, or fewer ranks");
        }
        JsonFile.check(json);
        reports.check();
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
                    "--context "
                            + sizes.context
                            + " is longer than the held-out text: use --context "
                            + most
                            + " or less");
        }
    }

    /** Compares what the processes of a job are to do: they train together, or nonsense. */
    void checkTogether(Job job) {
        if (job != null) {
            byte[][] all = job.exchange("options", describe().getBytes(StandardCharsets.UTF_8));
            for (int process = 1; process < all.length; process++) {
                String first = new String(all[0], StandardCharsets.UTF_8);
                String other = new String(all[process], StandardCharsets.UTF_8);
                if (!other.equals(first)) {
                    throw new BadInputException(
                            "Processes 0 and "
                                    + process
                                    + " have different options, "
                                    + first
                                    + " and "
                                    + other
                                    + ": start all processes with the same");
                }
            }
        }
        ranks.checkDevices(job);
    }

    private String describe() {
        return "["
                + ranks.describeAll()
                + ", "
                + sizes
                + ", --batch "
                + batch
                + ", --steps "
                + steps
                + ", --lr "
                + learningRate
                + ", --clip "
                + clip
                + ", --seed "
                + seed
                + "]";
    }
}

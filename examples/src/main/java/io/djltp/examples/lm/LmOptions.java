package io.djltp.examples.lm;

import static io.djltp.examples.train.DeviceOptions.positive;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.report.ReportOptions;
import io.djltp.examples.train.CheckpointOptions;
import io.djltp.examples.train.JobOptions;
import io.djltp.examples.train.JobRanks;
import io.djltp.launch.Launcher;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/** The options of {@link LmCommand}. */
final class LmOptions implements JobOptions {

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

    @Option(names = "--out", description = "Folder of the run, for its checkpoints.")
    Path out;

    @Mixin CheckpointOptions checkpoints = new CheckpointOptions();

    @Option(names = "--json", description = "File to write figures and losses to.")
    Path json;

    /** {@inheritDoc} */
    @Override
    public void check() {
        ranks.check();
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

    /** {@inheritDoc} */
    @Override
    public void checkFiles() {
        if (Launcher.process(System.getenv()) == 0) {
            checkpoints.checkFolder();
        }
        JsonFile.check(json);
        reports.check();
    }

    private void checkRanks() {
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
    public JobRanks ranks() {
        return ranks;
    }

    /** {@inheritDoc} */
    @Override
    public CheckpointOptions checkpoints() {
        return checkpoints;
    }

    /** {@inheritDoc} */
    @Override
    public Map<String, String> alike() {
        Map<String, String> values = new LinkedHashMap<>(training());
        values.put("--mesh", ranks.meshName() == null ? "not set" : ranks.meshName());
        values.put("--sequence-parallel", "" + ranks.sequenceParallel);
        values.put("--precision", "" + sizes.precision);
        return values;
    }
}

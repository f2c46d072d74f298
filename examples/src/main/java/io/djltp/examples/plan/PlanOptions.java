package io.djltp.examples.plan;

import ai.djl.MalformedModelException;

import io.djltp.examples.BadInputException;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.lm.LmNetwork.LmSizes;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.llm.ModelConfig;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.OptionSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParseResult;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.stream.Collectors;

/** The options that say something of the model; which of them do depends on the model. */
final class PlanOptions {

    private static final List<String> OF_ALL = List.of("--mesh", "--batch", "--html", "--json");
    private static final int MOST_TOKENS = 256; // that tp embed leaves of a text
    private static final int CONTEXT = 2048; // of a Generator by default

    @Option(
            names = "--batch",
            description =
                    "Rows of a step, over all ranks (512; windows of lm and texts of minilm: 16;"
                            + " of a folder: 1).")
    private @Nullable Integer batch;

    @Option(
            names = "--classes",
            description =
                    "Of lemmatiser and resnet: classes of the last layer (120658 lemmas, or 1000 of"
                            + " ImageNet).")
    @Nullable Integer classes;

    @Option(
            names = "--optimizer",
            description =
                    "Of what is trained, all but minilm: ${COMPLETION-CANDIDATES} (adagrad; of lm:"
                            + " adam; of a folder: none, a forward pass).")
    private @Nullable OptimizerName optimizer;

    @Option(
            names = "--shard-optimizer",
            description = "The same: ranks share out what the optimizer keeps, as with tp train.")
    boolean shardOptimizer;

    @Option(
            names = "--tokens",
            defaultValue = "128",
            description =
                    "Of minilm and a folder: tokens of the longest text of a batch, of minilm up to"
                            + " 256 (${DEFAULT-VALUE}).")
    int tokens;

    @Option(
            names = "--sequence-parallel",
            description = "Of lm, as of tp lm: cut the tokens too, where layers are not cut.")
    boolean sequenceParallel;

    @Mixin LmSizes sizes = new LmSizes();

    private @Nullable ModelConfig config; // of a folder
    private boolean hasContext;

    PlanOptions() {}

    /** Reads the configuration of a folder. */
    void read(Path folder) throws IOException {
        try {
            config = ModelConfig.read(folder);
        } catch (FileNotFoundException | MalformedModelException e) {
            throw new BadInputException("%s", e.getMessage());
        }
    }

    /** Returns the configuration of a folder, which was read. */
    ModelConfig config() {
        return Objects.requireNonNull(config);
    }

    /** Refuses options that say nothing of a model, and numbers that cannot be. */
    void check(PlannedModel model, ParseResult line) {
        for (OptionSpec option : line.matchedOptions()) {
            String name = option.longestName();
            if (!OF_ALL.contains(name) && !model.options.contains(name)) {
                throw new BadInputException(
                        "%s says nothing of %s: it is an option of %s",
                        name,
                        model,
                        Arrays.stream(PlannedModel.values())
                                .filter(each -> each.options.contains(name))
                                .map(PlannedModel::toString)
                                .collect(Collectors.joining(", ")));
            }
        }
        hasContext = line.hasMatchedOption("--context");
        if (batch(model) < 1 || classes != null && classes < 1) {
            throw new BadInputException("--batch and --classes must be 1 or more");
        }
        DeviceOptions.positive("--tokens", tokens);
        int most = model == PlannedModel.FOLDER ? config().getMaxPositions() : MOST_TOKENS;
        if (model == PlannedModel.FOLDER && tokens > most) {
            throw new BadInputException(
                    "--tokens %d is more than the %d positions of the model", tokens, most);
        }
        if (model == PlannedModel.FOLDER && (context() < 1 || context() > most)) {
            throw new BadInputException(
                    "--context must be 1 to %d, the positions of the model, not %d",
                    most, context());
        }
        if (tokens > most) {
            throw new BadInputException(
                    "--tokens must be 256 or less, not %d: of a longer text tp embed leaves the"
                            + " rest out",
                    tokens);
        }
    }

    /** Returns for how many tokens of a text a generator has room. */
    int context() {
        return hasContext ? sizes.context : Math.min(CONTEXT, config().getMaxPositions());
    }

    /** Returns the rows of a batch. */
    int batch(PlannedModel model) {
        return batch == null ? model.batch : batch;
    }

    /** Returns the optimizer, or {@code null} if the model is not trained. */
    @Nullable OptimizerName optimizer(PlannedModel model) {
        return optimizer == null ? model.optimizer : optimizer;
    }
}

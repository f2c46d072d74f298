package io.djltp.examples.embed;

import static io.djltp.examples.train.DeviceOptions.positive;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.TextFile;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.job.Job;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.zoo.minilm.BertSizes;

import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;

/** The options of {@link EmbedCommand}. */
final class EmbedOptions {

    @Parameters(arity = "0..*", paramLabel = "TEXT", description = "The texts.")
    private List<String> arguments = new ArrayList<>();

    @Option(
            names = "--file",
            description = "A file in UTF-8 with more texts, one a line; empty lines are left out.")
    private Path file;

    @Option(
            names = "--tp",
            description =
                    "Number of ranks of all processes, 1 to 12, the model's heads (2, or one for"
                            + " each process that a launcher has started).")
    private Integer tp;

    @Mixin private DeviceOptions where = new DeviceOptions();

    @Option(
            names = "--batch",
            defaultValue = "16",
            description = "Texts that are computed at a time (${DEFAULT-VALUE}).")
    int batch;

    @Option(
            names = "--compare",
            description =
                    "Let ONNX Runtime compute the same, and compare its vectors and its time.")
    boolean compare;

    @Option(names = "--json", description = "File to write the vectors to.")
    Path json;

    private List<String> texts;

    /** Checks everything, and reads the texts. */
    void check() {
        where.check();
        positive("--batch", batch);
        positive("--tp", ranks());
        int heads = BertSizes.MINI_LM.heads();
        if (ranks() > heads) {
            throw new BadInputException(
                    "--tp "
                            + ranks()
                            + " leaves ranks without a head: the model has "
                            + heads
                            + " heads, use --tp "
                            + heads
                            + " or less");
        }
        DeviceOptions.checkShared(ranks(), "--tp " + ranks() + " ranks");
        JsonFile.check(json);
        texts = readTexts();
    }

    private List<String> readTexts() {
        for (int i = 0; i < arguments.size(); i++) {
            if (arguments.get(i).isBlank()) {
                throw new BadInputException(
                        "Text " + (i + 1) + " is empty: there is nothing to embed. Leave it out");
            }
        }
        List<String> all = new ArrayList<>(arguments);
        if (file != null) {
            all.addAll(readFile());
        }
        if (all.isEmpty()) {
            throw new BadInputException(
                    file == null
                            ? "There is no text: give one or more, or --file FILE"
                            : "--file " + file + " has no text: all of its lines are empty");
        }
        return all;
    }

    private List<String> readFile() {
        return TextFile.read("--file", file).lines().filter(line -> !line.isBlank()).toList();
    }

    /** Returns the texts, at least one. */
    List<String> texts() {
        return texts;
    }

    /** Returns the number of ranks of all processes. */
    int ranks() {
        return DeviceOptions.ranks(tp);
    }

    /** Joins the job that a launcher has started; {@code null} if this process is alone. */
    Job join() {
        return where.join(ranks());
    }

    /** Compares what the processes of a job are to compute, and checks the devices of all. */
    void checkTogether(Job job) {
        if (job != null) {
            byte[] mine = ("" + Objects.hash(texts, batch)).getBytes(StandardCharsets.US_ASCII);
            byte[][] all = job.exchange("texts", mine);
            for (int process = 1; process < all.length; process++) {
                if (!Arrays.equals(all[process], all[0])) {
                    throw new BadInputException(
                            "Processes 0 and "
                                    + process
                                    + " have different texts or --batch: start all processes with"
                                    + " the same options");
                }
            }
        }
        where.checkDevices(job, ranks());
    }

    /** Returns the configuration of the ranks. */
    ParallelConfig config(Job job) {
        return where.config(job, DeviceMesh.of(ParallelMode.TENSOR, ranks())).build();
    }
}

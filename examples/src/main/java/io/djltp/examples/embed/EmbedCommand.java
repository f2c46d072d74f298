package io.djltp.examples.embed;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.MalformedModelException;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.TextFile;
import io.djltp.examples.Tp;
import io.djltp.examples.train.DeviceOptions;
import io.djltp.examples.train.TrainingJob;
import io.djltp.job.Job;
import io.djltp.llm.Embedder;
import io.djltp.llm.zoo.MiniLmFolder;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;

import org.jspecify.annotations.Nullable;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;

/** Computes sentence embeddings by a pretrained transformer whose layers are cut over ranks. */
@Command(
        name = "embed",
        description =
                "Computes the embeddings of texts by an encoder, whose attention heads and"
                        + " matrices are cut over ranks. Of a text that is too long, for"
                        + " all-MiniLM-L6-v2 longer than 256 word pieces, the rest is left out.",
        mixinStandardHelpOptions = true)
public final class EmbedCommand implements Callable<Integer> {

    private static final int SHOWN = 5; // numbers of a vector

    @Mixin private EmbedOptions options;

    private PrintStream out = System.out;
    private boolean first = true; // whether this is the process of rank 0

    /** Creates the command; its options are set by the command line. */
    public EmbedCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException {
        options.check();
        try (Job job = options.join()) {
            first = job == null || job.getProcess() == 0;
            out = TrainingJob.out(job);
            options.checkTogether(job);
            run(job);
        }
        return 0;
    }

    private void run(@Nullable Job job) throws IOException {
        List<EmbeddedText> embedded = options.texts().stream().map(EmbeddedText::new).toList();
        Path folder = options.model == null ? MiniLmFolder.get() : options.model;
        try (Embedder embedder = load(folder, job)) {
            int layers = embedder.getConfig().getLayers();
            embed(embedded.subList(0, 1), embedder); // loads code
            EmbeddedText head = embedded.get(0);
            head.collectivesPerLayer = (int) embedder.getAllReduces() / layers;
            long begin = System.nanoTime();
            embed(embedded, embedder);
            head.seconds = (System.nanoTime() - begin) / 1e9;
            head.ranks = options.ranks();
            print(embedded, layers);
        }
        if (first) {
            JsonFile.write(options.json, embedded);
        }
    }

    private Embedder load(Path folder, @Nullable Job job) {
        try {
            return Embedder.load(folder, options.config(job), options.prompt);
        } catch (IOException | IllegalArgumentException | MalformedModelException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    private static void embed(List<EmbeddedText> texts, Embedder embedder) {
        List<float[]> vectors = embedder.embed(texts.stream().map(each -> each.text).toList());
        for (int i = 0; i < vectors.size(); i++) {
            texts.get(i).vector = vectors.get(i);
        }
    }

    private void print(List<EmbeddedText> embedded, int layers) {
        for (int i = 0; i < embedded.size(); i++) {
            EmbeddedText each = embedded.get(i);
            StringBuilder numbers = new StringBuilder();
            int shown = Math.min(SHOWN, each.vector.length);
            for (float number : Arrays.copyOf(each.vector, shown)) {
                numbers.append(String.format(Locale.ROOT, "%9.5f", number));
            }
            out.printf("%3d %s ... of %d  %s%n", i + 1, numbers, each.vector.length, each.text);
        }
        EmbeddedText.printCosines(embedded, out);
        EmbeddedText head = embedded.get(0);
        double seconds = Objects.requireNonNull(head.seconds);
        out.printf(
                Locale.ROOT,
                "%n%s: %.2f ms a text; %d collective operations in each of the %d layers%n",
                Tp.count(options.ranks(), "rank"),
                1e3 * seconds / embedded.size(),
                head.collectivesPerLayer,
                layers);
    }

    /** The options of {@link EmbedCommand}. */
    private static final class EmbedOptions {

        @Parameters(arity = "0..*", paramLabel = "TEXT", description = "The texts.")
        private List<String> arguments = new ArrayList<>();

        @Option(
                names = "--model",
                paramLabel = "DIR",
                description =
                        "A Hugging Face folder of an encoder (all-MiniLM-L6-v2). Without the files of"
                                + " sentence-transformers, a vector is the normalized mean of its"
                                + " tokens.")
        @Nullable Path model;

        @Option(
                names = "--prompt",
                paramLabel = "NAME",
                description =
                        "Which prompt of config_sentence_transformers.json stands before each text"
                                + " (its default_prompt_name).")
        @Nullable String prompt;

        @Option(
                names = "--file",
                description =
                        "A file in UTF-8 with more texts, one a line; empty lines are left out.")
        private @Nullable Path file;

        @Option(
                names = "--tp",
                description =
                        "Number of ranks of all processes, at most the model's heads (2, or one"
                                + " for each process that a launcher has started).")
        private @Nullable Integer tp;

        @Mixin private DeviceOptions where = new DeviceOptions();

        @Option(names = "--json", description = "File to write the vectors to.")
        @Nullable Path json;

        private List<String> texts = List.of(); // until they are read

        /** Checks everything, and reads the texts. */
        void check() {
            where.check();
            positive("--tp", ranks());
            DeviceOptions.checkShared(ranks(), "--tp " + ranks() + " ranks");
            JsonFile.check("--json", json);
            checkModelNamed();
            texts = readTexts();
        }

        /** Other commands take the folder of a model as their first argument. */
        private void checkModelNamed() {
            String first = arguments.isEmpty() ? "" : arguments.get(0);
            if (model == null && new File(first, "config.json").isFile()) {
                throw new BadInputException(
                        "%s is the folder of a model, not a text: give it as --model %s"
                                .formatted(first, first));
            }
        }

        private List<String> readTexts() {
            List<String> all = new ArrayList<>(arguments);
            if (file != null) {
                all.addAll(lines(file));
            }
            if (all.isEmpty()) {
                throw new BadInputException(
                        file == null
                                ? "There is no text: give one or more, or --file FILE"
                                : "--file " + file + " has no text: all of its lines are empty");
            }
            return all;
        }

        private static List<String> lines(Path file) {
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
        @Nullable Job join() {
            return where.join(ranks());
        }

        /** Compares what the processes of a job are to compute, and checks the devices of all. */
        void checkTogether(@Nullable Job job) {
            TrainingJob.checkAlike(Map.of("the checksum of the texts", "" + texts.hashCode()), job);
            where.checkDevices(job, ranks());
        }

        /** Returns the configuration of the ranks. */
        ParallelConfig config(@Nullable Job job) {
            return where.config(job, DeviceMesh.of(ParallelMode.TENSOR, ranks())).build();
        }
    }
}

package io.djltp.examples.embed;

import static io.djltp.examples.train.DeviceOptions.positive;

import ai.djl.MalformedModelException;
import ai.onnxruntime.OrtException;

import io.djltp.examples.BadInputException;
import io.djltp.examples.JsonFile;
import io.djltp.examples.TextFile;
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

import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.concurrent.Callable;

/** Computes sentence embeddings by a pretrained transformer whose layers are cut over ranks. */
@Command(
        name = "embed",
        description =
                "Computes the embeddings of texts by all-MiniLM-L6-v2, whose attention heads and"
                        + " matrices are cut over ranks. Of a text longer than 256 word pieces,"
                        + " the rest is left out.",
        mixinStandardHelpOptions = true)
public final class EmbedCommand implements Callable<Integer> {

    private static final int LAYERS = 6; // of the model
    private static final int HEADS = 12;
    private static final int SHOWN = 5; // numbers of a vector
    private static final int ROUNDS = 5; // of a comparison; the median counts

    @Mixin private EmbedOptions options;

    private PrintStream out = System.out;
    private boolean first = true; // whether this is the process of rank 0

    /** Creates the command; its options are set by the command line. */
    public EmbedCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException, OrtException {
        options.check();
        try (Job job = options.join()) {
            first = job == null || job.getProcess() == 0;
            out = TrainingJob.out(job);
            options.checkTogether(job);
            run(job);
        }
        return 0;
    }

    private void run(@Nullable Job job) throws IOException, OrtException {
        List<EmbeddedText> embedded = options.texts().stream().map(EmbeddedText::new).toList();
        List<List<EmbeddedText>> batches = batches(embedded);
        try (Embedder embedder = load(job)) {
            embed(batches.get(0), embedder); // loads code
            long before = embedder.getAllReduces();
            embed(batches.get(0).subList(0, 1), embedder);
            EmbeddedText head = embedded.get(0);
            head.collectivesPerLayer = (int) (embedder.getAllReduces() - before) / LAYERS;
            long begin = System.nanoTime();
            for (List<EmbeddedText> batch : batches) {
                embed(batch, embedder);
            }
            head.seconds = (System.nanoTime() - begin) / 1e9;
            head.ranks = options.ranks();
            if (options.compare) {
                compare(batches, embedder, head);
            }
            print(embedded);
        }
        if (first) {
            JsonFile.write(options.json, embedded);
        }
    }

    private Embedder load(@Nullable Job job) throws IOException {
        try {
            return Embedder.load(MiniLmFolder.get(), options.config(job));
        } catch (IllegalArgumentException | MalformedModelException e) {
            throw new BadInputException(e.getMessage(), e);
        }
    }

    private static List<String> texts(List<EmbeddedText> batch) {
        return batch.stream().map(each -> each.text).toList();
    }

    private static void embed(List<EmbeddedText> batch, Embedder embedder) {
        List<float[]> vectors = embedder.embed(texts(batch));
        for (int i = 0; i < vectors.size(); i++) {
            batch.get(i).vector = vectors.get(i);
        }
    }

    /**
     * Lets ONNX Runtime compute the same, in turn with the ranks, and notes the medians of both
     * times and the largest difference.
     */
    private static void compare(
            List<List<EmbeddedText>> batches, Embedder embedder, EmbeddedText head)
            throws IOException, OrtException {
        double[] ours = new double[ROUNDS];
        double[] theirs = new double[ROUNDS];
        double largest = 0;
        try (OnnxReference reference =
                new OnnxReference(Runtime.getRuntime().availableProcessors())) {
            for (List<EmbeddedText> batch : batches) {
                float[][] expected = reference.embed(texts(batch));
                for (int i = 0; i < expected.length; i++) {
                    double difference =
                            EmbeddedText.largestDifference(batch.get(i).vector, expected[i]);
                    largest = Math.max(largest, difference);
                }
            }
            for (int i = 0; i < ROUNDS; i++) {
                long begin = System.nanoTime();
                for (List<EmbeddedText> batch : batches) {
                    embed(batch, embedder);
                }
                long middle = System.nanoTime();
                for (List<EmbeddedText> batch : batches) {
                    reference.embed(texts(batch));
                }
                ours[i] = (middle - begin) / 1e9;
                theirs[i] = (System.nanoTime() - middle) / 1e9;
            }
        }
        Arrays.sort(ours);
        Arrays.sort(theirs);
        head.seconds = ours[ROUNDS / 2];
        head.onnxSeconds = theirs[ROUNDS / 2];
        head.largestDifference = largest;
    }

    /** Returns batches of texts of similar length, which ONNX Runtime fills up to the longest. */
    private List<List<EmbeddedText>> batches(List<EmbeddedText> texts) {
        List<EmbeddedText> sorted = new ArrayList<>(texts);
        sorted.sort(Comparator.comparingInt(each -> each.text.length()));
        List<List<EmbeddedText>> batches = new ArrayList<>();
        for (int i = 0; i < sorted.size(); i += options.batch) {
            batches.add(sorted.subList(i, Math.min(sorted.size(), i + options.batch)));
        }
        return batches;
    }

    private void print(List<EmbeddedText> embedded) {
        for (int i = 0; i < embedded.size(); i++) {
            EmbeddedText each = embedded.get(i);
            StringBuilder numbers = new StringBuilder();
            for (float number : Arrays.copyOf(each.vector, SHOWN)) {
                numbers.append(String.format(Locale.ROOT, "%9.5f", number));
            }
            out.printf("%3d %s ... of %d  %s%n", i + 1, numbers, each.vector.length, each.text);
        }
        EmbeddedText.printCosines(embedded, out);
        EmbeddedText head = embedded.get(0);
        double seconds = Objects.requireNonNull(head.seconds);
        out.printf(
                Locale.ROOT,
                "%n%d rank%s: %.2f ms a text; %d collective operations in each of the %d layers%n",
                options.ranks(),
                options.ranks() == 1 ? "" : "s",
                1e3 * seconds / embedded.size(),
                head.collectivesPerLayer,
                LAYERS);
        if (head.onnxSeconds != null) {
            out.printf(
                    Locale.ROOT,
                    "ONNX Runtime: %.2f ms a text; largest difference of two numbers %.1e%n",
                    1e3 * head.onnxSeconds / embedded.size(),
                    head.largestDifference);
        }
    }

    /** The options of {@link EmbedCommand}. */
    private static final class EmbedOptions {

        @Parameters(arity = "0..*", paramLabel = "TEXT", description = "The texts.")
        private List<String> arguments = new ArrayList<>();

        @Option(
                names = "--file",
                description =
                        "A file in UTF-8 with more texts, one a line; empty lines are left out.")
        private @Nullable Path file;

        @Option(
                names = "--tp",
                description =
                        "Number of ranks of all processes, 1 to 12, the model's heads (2, or one"
                                + " for each process that a launcher has started).")
        private @Nullable Integer tp;

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
        @Nullable Path json;

        private List<String> texts = List.of(); // until they are read

        /** Checks everything, and reads the texts. */
        void check() {
            where.check();
            positive("--batch", batch);
            positive("--tp", ranks());
            if (ranks() > HEADS) {
                throw new BadInputException(
                        "--tp %d leaves ranks without a head: the model has %d heads, use --tp %2$d"
                                + " or less",
                        ranks(), HEADS);
            }
            DeviceOptions.checkShared(ranks(), "--tp " + ranks() + " ranks");
            JsonFile.check("--json", json);
            texts = readTexts();
        }

        private List<String> readTexts() {
            for (int i = 0; i < arguments.size(); i++) {
                if (arguments.get(i).isBlank()) {
                    throw new BadInputException(
                            "Text %d is empty: there is nothing to embed. Leave it out", i + 1);
                }
            }
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
            if (job != null) {
                byte[] mine = ("" + Objects.hash(texts, batch)).getBytes(StandardCharsets.US_ASCII);
                byte[][] all = job.exchange("texts", mine);
                for (int process = 1; process < all.length; process++) {
                    if (!Arrays.equals(all[process], all[0])) {
                        throw new BadInputException(
                                "Processes 0 and %d have different texts or --batch: start all"
                                        + " processes with the same options",
                                process);
                    }
                }
            }
            where.checkDevices(job, ranks());
        }

        /** Returns the configuration of the ranks. */
        ParallelConfig config(@Nullable Job job) {
            return where.config(job, DeviceMesh.of(ParallelMode.TENSOR, ranks())).build();
        }
    }
}

package io.djltp.examples.embed;

import ai.djl.translate.TranslateException;
import ai.onnxruntime.OrtException;

import io.djltp.collective.CollectiveCounts;
import io.djltp.examples.JsonFile;
import io.djltp.job.Job;
import io.djltp.zoo.minilm.BertSizes;
import io.djltp.zoo.minilm.WordPieces;

import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;

import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
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

    private static final int SHOWN = 5; // numbers of a vector

    @Mixin private EmbedOptions options;

    private PrintStream out = System.out;
    private boolean first = true; // whether this is the process of rank 0

    /** Creates the command; its options are set by the command line. */
    public EmbedCommand() {}

    /** {@inheritDoc} */
    @Override
    public Integer call() throws IOException, TranslateException, OrtException {
        options.check();
        try (Job job = options.join()) {
            first = job == null || job.getProcess() == 0;
            if (!first) {
                out = new PrintStream(OutputStream.nullOutputStream());
            }
            options.checkTogether(job);
            run(job);
        }
        return 0;
    }

    private void run(Job job) throws IOException, TranslateException, OrtException {
        List<WordPieces.Batch> batches = cutTexts();
        List<EmbeddedText> embedded;
        try (SentenceEmbedder embedder = new SentenceEmbedder(options.config(job))) {
            embedder.embed(batches.get(0)); // hands out the weights, loads code
            CollectiveCounts before = embedder.getCollectiveCounts();
            embedder.embed(batches.get(0));
            CollectiveCounts counts = embedder.getCollectiveCounts().minus(before);
            EmbeddingRun run = new EmbeddingRun(batches);
            embedded = run.compute(embedder, options.texts());
            embedded.get(0).ranks = options.ranks();
            embedded.get(0).collectivesPerLayer = EmbeddingRun.perLayer(counts);
            if (options.compare) {
                run.compare(embedder, embedded);
            }
            print(embedded, counts);
        }
        if (first) {
            JsonFile.write(options.json, embedded);
        }
    }

    private List<WordPieces.Batch> cutTexts() throws IOException {
        List<WordPieces.Batch> batches = new ArrayList<>();
        List<String> texts = options.texts();
        try (WordPieces pieces = WordPieces.load()) {
            for (int i = 0; i < texts.size(); i += options.batch) {
                int end = Math.min(texts.size(), i + options.batch);
                batches.add(pieces.cut(texts.subList(i, end)));
            }
        }
        return batches;
    }

    private void print(List<EmbeddedText> embedded, CollectiveCounts counts) {
        for (int i = 0; i < embedded.size(); i++) {
            EmbeddedText each = embedded.get(i);
            StringBuilder numbers = new StringBuilder();
            for (float number : Arrays.copyOf(each.vector, SHOWN)) {
                numbers.append(String.format(Locale.ROOT, "%9.5f", number));
            }
            out.printf("%3d %s ... of %d  %s%n", i + 1, numbers, each.vector.length, each.text);
        }
        new Similarities(embedded).print(out);
        EmbeddedText head = embedded.get(0);
        out.printf(
                Locale.ROOT,
                "%n%d rank%s: %.2f ms a text; collective operations of a batch: %s, %d in each of"
                        + " the %d layers%n",
                head.ranks,
                head.ranks == 1 ? "" : "s",
                1e3 * head.seconds / embedded.size(),
                counts,
                head.collectivesPerLayer,
                BertSizes.MINI_LM.layers());
        if (head.onnxSeconds != null) {
            out.printf(
                    Locale.ROOT,
                    "ONNX Runtime: %.2f ms a text; largest difference of two numbers %.1e%n",
                    1e3 * head.onnxSeconds / embedded.size(),
                    head.largestDifference);
        }
    }
}

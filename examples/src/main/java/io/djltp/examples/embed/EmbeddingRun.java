package io.djltp.examples.embed;

import ai.djl.translate.TranslateException;
import ai.onnxruntime.OrtException;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.zoo.minilm.BertSizes;
import io.djltp.zoo.minilm.WordPieces;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Computes the embeddings of batches, and how long that takes. */
final class EmbeddingRun {

    private static final int ROUNDS = 5; // of a comparison; the median counts

    private final List<WordPieces.Batch> batches;

    EmbeddingRun(List<WordPieces.Batch> batches) {
        this.batches = batches;
    }

    /** What turns a batch into embeddings. */
    @FunctionalInterface
    private interface Computation<E extends Exception> {
        float[][] embed(WordPieces.Batch batch) throws E;
    }

    /**
     * Returns how many of the sums of a pass a layer has: one is that of the embeddings. Processes
     * compare their texts by an operation of another kind.
     */
    static int perLayer(CollectiveCounts ofPass) {
        int ofLayers = (int) ofPass.get(Collective.ALL_REDUCE) - 1;
        int layers = BertSizes.MINI_LM.layers();
        if (ofLayers % layers != 0 && ofLayers >= 0) {
            throw new IllegalStateException("The layers do not communicate alike: " + ofPass);
        }
        return Math.max(0, ofLayers / layers);
    }

    /**
     * Computes the embeddings.
     *
     * @param embedder the ranks
     * @param texts the texts, in the order of the batches
     * @return the texts with their embeddings; the first has the time
     */
    List<EmbeddedText> compute(SentenceEmbedder embedder, List<String> texts)
            throws TranslateException {
        long begin = System.nanoTime();
        List<float[]> vectors = all(embedder::embed);
        double seconds = (System.nanoTime() - begin) / 1e9;
        List<EmbeddedText> embedded = new ArrayList<>();
        for (int i = 0; i < texts.size(); i++) {
            embedded.add(new EmbeddedText(texts.get(i), vectors.get(i)));
        }
        embedded.get(0).seconds = seconds;
        return embedded;
    }

    /**
     * Lets ONNX Runtime compute the same, in turn with the ranks, and notes both times and the
     * largest difference.
     */
    void compare(SentenceEmbedder embedder, List<EmbeddedText> embedded)
            throws IOException, OrtException, TranslateException {
        int threads = Runtime.getRuntime().availableProcessors();
        double[] ours = new double[ROUNDS];
        double[] theirs = new double[ROUNDS];
        List<float[]> expected;
        try (OnnxReference reference = new OnnxReference(threads)) {
            expected = all(reference::embed);
            for (int i = 0; i < ROUNDS; i++) {
                long begin = System.nanoTime();
                all(embedder::embed);
                long middle = System.nanoTime();
                all(reference::embed);
                ours[i] = (middle - begin) / 1e9;
                theirs[i] = (System.nanoTime() - middle) / 1e9;
            }
        }
        EmbeddedText first = embedded.get(0);
        first.seconds = median(ours);
        first.onnxSeconds = median(theirs);
        first.largestDifference = 0.0;
        for (int i = 0; i < expected.size(); i++) {
            double difference = largestDifference(embedded.get(i).vector, expected.get(i));
            first.largestDifference = Math.max(first.largestDifference, difference);
        }
    }

    private <E extends Exception> List<float[]> all(Computation<E> computation) throws E {
        List<float[]> vectors = new ArrayList<>();
        for (WordPieces.Batch batch : batches) {
            vectors.addAll(Arrays.asList(computation.embed(batch)));
        }
        return vectors;
    }

    private static double median(double[] values) {
        Arrays.sort(values);
        return values[values.length / 2];
    }

    /** Returns the largest difference of two numbers at the same place; NaN if there is one. */
    static double largestDifference(float[] one, float[] other) {
        double largest = 0;
        for (int i = 0; i < one.length; i++) {
            largest = Math.max(largest, Math.abs((double) one[i] - other[i])); // NaN stays
        }
        return largest;
    }
}

package io.djltp.examples.embed;

import ai.djl.huggingface.tokenizers.Encoding;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;

import io.djltp.llm.zoo.MiniLmFolder;

import java.io.IOException;
import java.io.InputStream;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/**
 * The same model computed by ONNX Runtime, on as many threads as all ranks have. They do not spin
 * between its operations, where they would take time from the ranks.
 */
final class OnnxReference implements AutoCloseable {

    private final OrtEnvironment environment = OrtEnvironment.getEnvironment();
    private final OrtSession session;
    private final HuggingFaceTokenizer tokenizer =
            HuggingFaceTokenizer.builder()
                    .optTokenizerPath(MiniLmFolder.get())
                    .optPadding(true) // to the longest of a batch
                    .optTruncation(true)
                    .optMaxLength(256)
                    .build();

    /**
     * Loads the model.
     *
     * @param threads the number of threads
     * @throws IOException if its file cannot be read
     * @throws OrtException if ONNX Runtime refuses it
     */
    OnnxReference(int threads) throws IOException, OrtException {
        try (InputStream file = getClass().getResourceAsStream("/all-minilm-l6-v2.onnx");
                OrtSession.SessionOptions options = new OrtSession.SessionOptions()) {
            options.setIntraOpNumThreads(threads);
            options.addConfigEntry("session.intra_op.allow_spinning", "0");
            session =
                    environment.createSession(Objects.requireNonNull(file).readAllBytes(), options);
        }
    }

    /**
     * Computes the embeddings of texts, filled up to the longest.
     *
     * @param texts the texts
     * @return the embeddings, each of length 1: [texts][384]
     * @throws OrtException if ONNX Runtime fails
     */
    float[][] embed(List<String> texts) throws OrtException {
        Encoding[] encodings = tokenizer.batchEncode(texts);
        long[][] pieces = Arrays.stream(encodings).map(Encoding::getIds).toArray(long[][]::new);
        long[][] counted =
                Arrays.stream(encodings).map(Encoding::getAttentionMask).toArray(long[][]::new);
        long[][] kinds = new long[pieces.length][pieces[0].length]; // all one sentence
        try (OnnxTensor ids = OnnxTensor.createTensor(environment, pieces);
                OnnxTensor mask = OnnxTensor.createTensor(environment, counted);
                OnnxTensor zeros = OnnxTensor.createTensor(environment, kinds);
                OrtSession.Result result =
                        session.run(
                                Map.of(
                                        "input_ids", ids,
                                        "attention_mask", mask,
                                        "token_type_ids", zeros))) {
            float[][][] states = (float[][][]) result.get(0).getValue();
            float[][] embeddings = new float[states.length][];
            for (int i = 0; i < states.length; i++) {
                embeddings[i] = pool(states[i], counted[i]);
            }
            return embeddings;
        }
    }

    /** Returns the mean of the word pieces, divided by its length. */
    private static float[] pool(float[][] states, long[] mask) {
        double[] sum = new double[states[0].length]; // its length does not matter
        for (int t = 0; t < states.length; t++) {
            for (int k = 0; k < sum.length && mask[t] == 1; k++) {
                sum[k] += states[t][k];
            }
        }
        double squares = 0;
        for (double value : sum) {
            squares += value * value;
        }
        float[] unit = new float[sum.length];
        for (int k = 0; k < sum.length; k++) {
            unit[k] = (float) (sum[k] / Math.sqrt(squares));
        }
        return unit;
    }

    /** Returns the largest difference of two numbers at the same place; NaN if there is one. */
    static double largestDifference(float[] one, float[] other) {
        double largest = 0;
        for (int i = 0; i < one.length; i++) {
            largest = Math.max(largest, Math.abs((double) one[i] - other[i])); // NaN stays
        }
        return largest;
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws OrtException {
        tokenizer.close();
        session.close();
    }
}

package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.Errors;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelInference;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * Vectors of texts by an encoder of a Hugging Face folder, over ranks.
 *
 * <pre>{@code
 * try (Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(2))) {
 *     List<float[]> vectors = embedder.embed(List.of("a text", "another one"));
 * }
 * }</pre>
 *
 * <p>A vector is what the files of sentence-transformers in the folder ({@code modules.json},
 * {@code 1_Pooling/config.json}, {@code sentence_bert_config.json}) make of the features of a
 * text's tokens; without them their mean, of length 1. A text that is too long is cut.
 */
public final class Embedder implements AutoCloseable {

    private static final int BATCH = 32; // texts in a pass

    private final LanguageModel model;
    private final HuggingFaceTokenizer tokenizer;
    private final Pooling pooling;
    private final ParallelInference ranks;

    private Embedder(LanguageModel model, ParallelConfig config)
            throws IOException, MalformedModelException {
        this.model = model;
        Path folder = model.getFolder();
        HuggingFaceTokenizer found = model.getTokenizer();
        if (!model.getConfig().isEncoder() || found == null) {
            throw new MalformedModelException(
                    folder
                            + (found == null ? " has no tokenizer.json" : " is no encoder")
                            + ": vectors of texts need an encoder, such as bert, and its"
                            + " tokenizer");
        }
        tokenizer = found;
        pooling = Pooling.read(folder, model.getConfig().getMaxPositions());
        ranks = new ParallelInference(model.getModel(), config);
    }

    /**
     * Opens a folder. Each rank reads its slices of the weights with the first texts.
     *
     * @param folder the folder
     * @param config the ranks
     * @return what makes vectors
     * @throws IOException if a file is missing, is not complete, or cannot be read
     * @throws MalformedModelException if the folder is not that of an encoder with a tokenizer, or
     *     its vectors are made in a way that is not implemented
     */
    public static Embedder load(Path folder, ParallelConfig config)
            throws IOException, MalformedModelException {
        LanguageModel model = LanguageModel.load(folder);
        try {
            return new Embedder(model, config);
        } catch (IOException | MalformedModelException | RuntimeException e) {
            model.close();
            throw e;
        }
    }

    /**
     * Computes the vectors of texts.
     *
     * @param texts the texts
     * @return the vector of each
     */
    public List<float[]> embed(List<String> texts) {
        List<float[]> vectors = new ArrayList<>();
        for (int at = 0; at < texts.size(); at += BATCH) {
            vectors.addAll(pass(texts.subList(at, Math.min(texts.size(), at + BATCH))));
        }
        return vectors;
    }

    private List<float[]> pass(List<String> texts) {
        List<long[]> rows = texts.stream().map(this::ids).toList();
        int length = rows.stream().mapToInt(row -> row.length).max().orElse(0);
        long[] ids = new long[rows.size() * length];
        long[] mask = new long[ids.length];
        for (int i = 0; i < rows.size(); i++) {
            long[] row = rows.get(i);
            System.arraycopy(row, 0, ids, i * length, row.length);
            Arrays.fill(mask, i * length, i * length + row.length, 1);
        }
        Shape shape = new Shape(rows.size(), length);
        List<float[]> vectors = new ArrayList<>();
        try (NDManager manager = model.getModel().getNDManager().newSubManager()) {
            NDList input = new NDList(manager.create(ids, shape), manager.create(mask, shape));
            NDArray output = ranks.forward(input, manager).head();
            float[] features = output.toFloatArray();
            int width = getWidth();
            for (int i = 0; i < rows.size(); i++) {
                int from = i * length * width;
                vectors.add(pooling.pool(features, from, rows.get(i).length, width));
            }
        }
        return vectors;
    }

    /** Returns the ids of a text; one that is too long keeps its last, which ends it. */
    private long[] ids(String text) {
        long[] ids = tokenizer.encode(text, true, false).getIds();
        Errors.check(ids.length > 0, "The tokenizer makes no token of the text '%s'", text);
        if (ids.length <= pooling.longest()) {
            return ids;
        }
        long[] cut = Arrays.copyOf(ids, pooling.longest());
        cut[cut.length - 1] = ids[ids.length - 1];
        return cut;
    }

    /**
     * Returns how many tokens a text has, of those that are not cut.
     *
     * @param text the text
     * @return the number of tokens, with those that the tokenizer adds
     */
    public int countTokens(String text) {
        return ids(text).length;
    }

    /**
     * Returns the length of a vector.
     *
     * @return the features of the model
     */
    public int getWidth() {
        return model.getConfig().getWidth();
    }

    /** Ends the ranks, and closes the model. */
    @Override
    public void close() {
        try {
            ranks.drop();
        } finally {
            model.close();
        }
    }
}

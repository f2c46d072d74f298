package io.djltp.zoo;

import ai.djl.huggingface.tokenizers.Encoding;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * Cuts texts into word pieces and these into numbers, as the model was trained: lower case, {@code
 * [CLS]} before and {@code [SEP]} behind.
 */
public final class WordPieces implements AutoCloseable {

    /**
     * What is left of a longer text, {@code [CLS]} and {@code [SEP]} with it: the {@code
     * max_seq_length} of the model in sentence-transformers, though it has positions for 512.
     */
    public static final int LONGEST = 256;

    /** The name of the tokenizer's file in the folder of a model, as Hugging Face has it. */
    static final String FILE = "tokenizer.json";

    private final HuggingFaceTokenizer tokenizer;

    private WordPieces(HuggingFaceTokenizer tokenizer) {
        this.tokenizer = tokenizer;
    }

    /**
     * A batch of texts, all as long as the longest.
     *
     * @param ids the numbers of the word pieces, 0 behind the end: [texts][length]
     * @param mask 1 for each word piece, 0 behind the end: [texts][length]
     */
    public record Batch(long[][] ids, long[][] mask) {}

    /**
     * Reads the tokenizer of the model.
     *
     * @return the tokenizer
     * @throws IOException if it cannot be read
     */
    public static WordPieces load() throws IOException {
        try (InputStream file = MiniLm.openTokenizer()) {
            return of(file);
        }
    }

    /** Reads the tokenizer in the folder of a model. */
    static WordPieces load(Path folder) throws IOException {
        try (InputStream file = Files.newInputStream(folder.resolve(FILE))) {
            return of(file);
        }
    }

    private static WordPieces of(InputStream file) throws IOException {
        String longest = Integer.toString(LONGEST);
        Map<String, String> options =
                Map.ofEntries(
                        Map.entry("padding", "true"), // to the longest of a batch
                        Map.entry("truncation", "true"),
                        Map.entry("maxLength", longest),
                        Map.entry("modelMaxLength", longest));
        return new WordPieces(HuggingFaceTokenizer.newInstance(file, options));
    }

    /**
     * Cuts texts into word pieces.
     *
     * @param texts the texts
     * @return the batch
     */
    public Batch cut(List<String> texts) {
        Encoding[] encodings = tokenizer.batchEncode(texts);
        return new Batch(
                Arrays.stream(encodings).map(Encoding::getIds).toArray(long[][]::new),
                Arrays.stream(encodings).map(Encoding::getAttentionMask).toArray(long[][]::new));
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        tokenizer.close();
    }
}

package io.djltp.llm;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.Errors;
import io.djltp.rank.ParallelConfig;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.stream.IntStream;

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
 * {@code 1_Pooling/config.json}, {@code sentence_bert_config.json} and others) make of the features
 * of a text's tokens; without them their mean, of length 1. A text that is too long is cut. The
 * default prompt, or another of the folder, stands before each text.
 *
 * <p>Several threads may use an embedder; their texts are computed one call after another.
 */
public final class Embedder implements AutoCloseable {

    private static final int TOKENS = 1024; // in a pass, if they are not one text
    private static final double SHORTEST = 1e-12; // length of a vector

    private final LanguageModel model;
    private final HuggingFaceTokenizer tokenizer;
    private final Pooling pooling;
    private final List<Dense> dense;
    private final NDManager manager; // of these
    private final ModelRanks<RankEncoder> ranks;
    private boolean closed;

    private Embedder(LanguageModel model, ParallelConfig parallel, @Nullable String promptName)
            throws IOException, MalformedModelException {
        this.model = model;
        Path folder = model.getFolder();
        ModelConfig config = model.getConfig();
        pooling = Pooling.read(folder, config.getMaxPositions(), promptName);
        tokenizer = pooling.tokenizer(folder.resolve(LanguageModel.TOKENIZER));
        manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
        List<Dense> layers = new ArrayList<>();
        for (String each : pooling.dense()) {
            layers.add(Dense.read(folder.resolve(each), manager));
        }
        dense = List.copyOf(layers);
        ranks =
                new ModelRanks<>(
                        config,
                        folder,
                        parallel,
                        pooling.toString(),
                        (context, files, shared) ->
                                new RankEncoder(config, files, context.getTensorGroup(), shared));
    }

    /** Opens a folder, which must be that of an encoder with a tokenizer. */
    static LanguageModel open(Path folder) throws IOException, MalformedModelException {
        boolean isEncoder = ModelConfig.read(folder).isEncoder();
        if (isEncoder && Files.exists(folder.resolve(LanguageModel.TOKENIZER))) {
            return LanguageModel.load(folder);
        }
        throw new MalformedModelException(
                folder
                        + (isEncoder ? " has no tokenizer.json" : " is no encoder")
                        + ": vectors of texts need an encoder, such as bert, and its tokenizer");
    }

    /**
     * A vector of a text.
     *
     * @param vector the vector
     * @param tokens how many tokens it was made of, with those that the tokenizer adds
     */
    public record Embedding(float[] vector, int tokens) {}

    /**
     * Opens a folder. Each rank reads its slices of the weights.
     *
     * @param folder the folder
     * @param config the ranks, on CPUs
     * @return what makes vectors
     * @throws IOException if a file is missing, is not complete, or cannot be read
     * @throws MalformedModelException if the folder is not that of an encoder with a tokenizer, or
     *     its vectors are made in a way that is not implemented
     * @throws IllegalArgumentException if there are more ranks than heads, or a rank is on a GPU
     */
    public static Embedder load(Path folder, ParallelConfig config)
            throws IOException, MalformedModelException {
        return load(folder, config, null);
    }

    /**
     * Opens a folder, as {@link #load(Path, ParallelConfig)} does.
     *
     * @param folder the folder
     * @param config the ranks, on CPUs
     * @param promptName which prompt of {@code config_sentence_transformers.json} stands before
     *     each text, or {@code null} for its default
     * @return what makes vectors
     * @throws IOException if a file is missing, is not complete, or cannot be read
     * @throws MalformedModelException if there is no such prompt, the folder is not that of an
     *     encoder with a tokenizer, or its vectors are made in a way that is not implemented
     * @throws IllegalArgumentException if there are more ranks than heads, or a rank is on a GPU
     */
    public static Embedder load(Path folder, ParallelConfig config, @Nullable String promptName)
            throws IOException, MalformedModelException {
        LanguageModel model = open(folder);
        try {
            return new Embedder(model, config, promptName);
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
     * @throws IllegalStateException if the embedder is closed
     */
    public List<float[]> embed(List<String> texts) {
        return embedAndCount(texts).stream().map(Embedding::vector).toList();
    }

    /**
     * Computes the vectors of texts, and counts their tokens.
     *
     * @param texts the texts
     * @return the vector of each
     * @throws IllegalStateException if the embedder is closed
     */
    public List<Embedding> embedAndCount(List<String> texts) {
        checkOpen();
        List<long[]> ids = texts.stream().map(text -> pooling.ids(tokenizer, text)).toList();
        // those of one length together, whose attention is one product
        List<Integer> order =
                IntStream.range(0, texts.size())
                        .boxed()
                        .sorted(Comparator.comparingInt(i -> ids.get(i).length))
                        .toList();
        Embedding[] vectors = new Embedding[texts.size()];
        for (int at = 0; at < order.size(); ) {
            int end = at;
            int tokens = 0;
            while (end < order.size()
                    && (end == at || tokens + ids.get(order.get(end)).length <= TOKENS)) {
                tokens += ids.get(order.get(end++)).length;
            }
            pass(order.subList(at, end), ids, vectors);
            at = end;
        }
        return Arrays.asList(vectors);
    }

    private void pass(List<Integer> numbers, List<long[]> ids, Embedding[] vectors) {
        List<long[]> texts = numbers.stream().map(ids::get).toList();
        int width = model.getConfig().getWidth();
        float[] features = compute(texts);
        try (NDManager pass = manager.newSubManager()) {
            NDArray all = pass.create(features, new Shape(features.length / width, width));
            int at = 0;
            for (int i : numbers) {
                int tokens = ids.get(i).length;
                NDArray own = all.get(new NDIndex().addSliceDim(at, at + tokens)).expandDims(0);
                vectors[i] = new Embedding(vector(own).toFloatArray(), tokens);
                at += tokens;
            }
        }
    }

    /** Returns the vector of a text, whose features are [1, tokens, width]. */
    private NDArray vector(NDArray features) {
        Shape tokens = new Shape(1, features.getShape().get(1));
        NDArray vector = pooling.pool(features, features.getManager().ones(tokens));
        for (Dense layer : dense) {
            vector = layer.apply(vector);
        }
        return pooling.normalized() ? vector.div(vector.norm().maximum(SHORTEST)) : vector;
    }

    private synchronized void checkOpen() {
        Errors.checkState(!closed, "The embedder is closed");
    }

    private synchronized float[] compute(List<long[]> texts) {
        checkOpen();
        return ranks.pool()
                .run(context -> ranks.compute(context, rank -> rank.compute(texts)))
                .get(0);
    }

    /** {@return the length of a vector, such as the width of the model} */
    public int getWidth() {
        return dense.isEmpty()
                ? pooling.modes().size() * model.getConfig().getWidth()
                : (int) dense.get(dense.size() - 1).weight().getShape().get(0);
    }

    /** {@return what {@code config.json} says} */
    public ModelConfig getConfig() {
        return model.getConfig();
    }

    /**
     * {@return how many all-reduces a rank has taken part in: two in each layer of a pass, on
     * several ranks}
     */
    public synchronized long getAllReduces() {
        return ranks.parts().get(0).getAllReduces();
    }

    /** Ends the ranks, and closes the model. */
    @Override
    public synchronized void close() {
        if (!closed) {
            closed = true;
            ranks.close();
            tokenizer.close();
            manager.close();
            model.close();
        }
    }
}

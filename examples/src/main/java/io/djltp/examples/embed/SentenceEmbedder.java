package io.djltp.examples.embed;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.NoBatchifyTranslator;
import ai.djl.translate.TranslateException;
import ai.djl.translate.TranslatorContext;

import io.djltp.collective.CollectiveCounts;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelPredictor;
import io.djltp.zoo.WordPieces;

import java.io.IOException;
import java.util.Arrays;

/** Computes the embeddings of texts by all-MiniLM-L6-v2, on ranks. */
final class SentenceEmbedder implements AutoCloseable {

    private final ZooModel<NDList, NDList> model;
    private final ParallelPredictor<WordPieces.Batch, float[][]> predictor;

    /** Loads the model and starts the ranks. */
    SentenceEmbedder(ParallelConfig config) throws IOException {
        model = load();
        try {
            predictor = new ParallelPredictor<>(model, new BatchTranslator(), config);
        } catch (RuntimeException | Error e) {
            model.close(); // nobody else has it
            throw e;
        }
    }

    /** Loads the model into one device. */
    static ZooModel<NDList, NDList> load() throws IOException {
        try {
            return Criteria.builder()
                    .setTypes(NDList.class, NDList.class)
                    .optGroupId("io.djltp")
                    .optArtifactId("all-MiniLM-L6-v2")
                    .build()
                    .loadModel();
        } catch (ModelNotFoundException | MalformedModelException e) {
            throw new IOException(e.getMessage(), e);
        }
    }

    /** Returns the embeddings of a batch, each of length 1: [texts][384]. */
    float[][] embed(WordPieces.Batch batch) throws TranslateException {
        return predictor.predict(batch);
    }

    /** Returns how many collective operations rank 0 has taken part in. */
    CollectiveCounts getCollectiveCounts() {
        return predictor.getCollectiveCounts();
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        predictor.close();
        model.close();
    }

    /** Word pieces in, embeddings out. */
    private static final class BatchTranslator
            implements NoBatchifyTranslator<WordPieces.Batch, float[][]> {

        /** {@inheritDoc} */
        @Override
        public NDList processInput(TranslatorContext ctx, WordPieces.Batch batch) {
            return new NDList(
                    ctx.getNDManager().create(batch.ids()),
                    ctx.getNDManager().create(batch.mask()));
        }

        /** {@inheritDoc} */
        @Override
        public float[][] processOutput(TranslatorContext ctx, NDList list) {
            NDArray rows = list.singletonOrThrow();
            float[] values = rows.toFloatArray();
            int width = (int) rows.getShape().get(1);
            float[][] embeddings = new float[values.length / width][];
            for (int i = 0; i < embeddings.length; i++) {
                embeddings[i] = Arrays.copyOfRange(values, i * width, (i + 1) * width);
            }
            return embeddings;
        }
    }
}

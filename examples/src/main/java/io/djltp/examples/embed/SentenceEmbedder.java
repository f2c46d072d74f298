package io.djltp.examples.embed;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.translate.NoBatchifyTranslator;
import ai.djl.translate.TranslateException;
import ai.djl.translate.TranslatorContext;

import io.djltp.collective.CollectiveCounts;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelPredictor;
import io.djltp.zoo.minilm.BertSizes;
import io.djltp.zoo.minilm.MiniLm;
import io.djltp.zoo.minilm.MiniLmModel;
import io.djltp.zoo.minilm.WordPieces;

import java.io.IOException;

/** Computes the embeddings of texts by all-MiniLM-L6-v2, on ranks. */
final class SentenceEmbedder implements AutoCloseable {

    private final Model model;
    private final ParallelPredictor<WordPieces.Batch, float[][]> predictor;

    /**
     * Loads the model and starts the ranks.
     *
     * @param config the ranks
     * @throws IOException if the model cannot be read
     */
    SentenceEmbedder(ParallelConfig config) throws IOException {
        model = Model.newInstance("all-MiniLM-L6-v2");
        try {
            MiniLm network = new MiniLm(BertSizes.MINI_LM);
            MiniLmModel.load(network, model.getNDManager());
            model.setBlock(network);
            predictor = new ParallelPredictor<>(model, new BatchTranslator(), config);
        } catch (IOException | RuntimeException | Error e) {
            model.close(); // nobody else has it
            throw e;
        }
    }

    /**
     * Computes the embeddings of a batch.
     *
     * @param batch the batch
     * @return the embeddings, each of length 1: [texts][384]
     * @throws TranslateException if a rank fails
     */
    float[][] embed(WordPieces.Batch batch) throws TranslateException {
        return predictor.predict(batch);
    }

    /**
     * Returns how many collective operations rank 0 has taken part in.
     *
     * @return a snapshot of the counts
     */
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
            float[][] embeddings = new float[values.length / width][width];
            for (int i = 0; i < embeddings.length; i++) {
                System.arraycopy(values, i * width, embeddings[i], 0, width);
            }
            return embeddings;
        }
    }
}

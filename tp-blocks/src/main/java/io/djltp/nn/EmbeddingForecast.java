package io.djltp.nn;

import ai.djl.ndarray.types.Shape;

import io.djltp.collective.Collective;
import io.djltp.collective.Direction;
import io.djltp.forecast.ForecastArray;
import io.djltp.forecast.ForecastMappings;
import io.djltp.forecast.PassForecast;
import io.djltp.layout.Region.Rows;

/** What an {@link EmbeddingPass} will communicate, from shapes. */
final class EmbeddingForecast {

    private final VocabParallelEmbedding embedding;
    private final PassForecast pass;
    private final boolean lookups;
    private final boolean padded;

    /**
     * Creates a forecast.
     *
     * @param embedding the embedding
     * @param pass the pass of one rank
     * @param lookups whether a fused head updates the weight, with the rows that were looked up
     * @param padded whether there are ids whose rows have no gradient
     */
    EmbeddingForecast(
            VocabParallelEmbedding embedding, PassForecast pass, boolean lookups, boolean padded) {
        this.embedding = embedding;
        this.pass = pass;
        this.lookups = lookups;
        this.padded = padded;
    }

    /** Returns the rows of ids: {@link EmbeddingPass#forward}. */
    ForecastArray forward(ForecastArray ids, boolean cutTokens) {
        long features = embedding.weight().getShape().get(1);
        ForecastArray rows =
                ids.withShape(ids.shape().add(features))
                        .with(embedding.weight().requiresGradient());
        if (pass.getTensorSize() == 1) {
            look(ids);
            return rows;
        }
        if (cutTokens) {
            look(ids);
            return SequenceForecast.reduceScatter(pass, embedding, rows);
        }
        ForecastMappings mappings = pass.getMappings(embedding);
        if (!pass.getMesh().isOverlaid() || !ids.region().isRowsCut()) {
            look(ids);
            return mappings.reduceFromRegion(rows);
        }
        ForecastArray all = ids.with(Rows.WHOLE);
        pass.add(
                "the rows of the batch",
                Direction.FORWARD,
                Collective.ALL_GATHER,
                pass.getDataSize(),
                pass.local(all).size() * pass.getIdType().getNumOfBytes());
        look(all);
        return mappings.reduceScatterToSequenceRegion(rows.with(Rows.WHOLE));
    }

    private void look(ForecastArray ids) {
        pass.use(embedding.weight(), ids);
        if (lookups && ids.region().isRowsCut() && pass.getDataSize() > 1) {
            exchangeLookups(ids);
        }
    }

    /** The numbers of lookups, the places of the rows, and their gradients: {@link TiedLookups}. */
    private void exchangeLookups(ForecastArray ids) {
        if (pass.getTensorSize() > 1 || padded) {
            throw new IllegalArgumentException(
                    embedding.describe()
                            + " is tied to a fused ClassificationHead, and the gradients of its"
                            + " lookups are exchanged along the axis data: how many a rank has"
                            + " follows from the ids, and not from shapes. Build the head with"
                            + " optFusedLoss(false), or count a step with CommunicationCounter");
        }
        int size = pass.getDataSize();
        long all = ids.shape().size();
        long features = embedding.weight().getShape().get(1);
        String issuer = "the gradient of the embedding " + pass.nameOf(embedding.weight());
        for (long bytes :
                new long[] {
                    2L * size * Integer.BYTES,
                    all * Integer.BYTES,
                    pass.bytes(new Shape(all, features))
                }) {
            pass.add(issuer, Direction.STEP, Collective.ALL_GATHER, size, bytes);
        }
    }
}

package io.djltp.llm.langchain4j;

import dev.langchain4j.data.embedding.Embedding;
import dev.langchain4j.model.embedding.EmbeddingModel;
import dev.langchain4j.model.embedding.request.EmbeddingInput;
import dev.langchain4j.model.embedding.request.EmbeddingRequest;
import dev.langchain4j.model.embedding.response.EmbeddingResponse;

import io.djltp.llm.Embedder;

import java.util.List;

/** An {@link Embedder} as embedding model of LangChain4j. */
public final class EmbedderEmbeddingModel implements EmbeddingModel {

    private final Embedder embedder;

    /**
     * Creates a model.
     *
     * @param embedder the embedder, which is closed by the caller
     */
    public EmbedderEmbeddingModel(Embedder embedder) {
        this.embedder = embedder;
    }

    @Override
    public EmbeddingResponse doEmbed(EmbeddingRequest request) {
        List<String> texts = request.inputs().stream().map(EmbeddingInput::text).toList();
        return EmbeddingResponse.builder()
                .embeddings(embedder.embed(texts).stream().map(Embedding::from).toList())
                .build();
    }

    @Override
    public int dimension() {
        return embedder.getWidth();
    }
}

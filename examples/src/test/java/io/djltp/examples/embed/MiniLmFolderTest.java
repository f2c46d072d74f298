package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDList;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.Utils;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.llm.Embedder;
import io.djltp.rank.ParallelConfig;
import io.djltp.zoo.WordPieces;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** A folder of Hugging Face with all-MiniLM-L6-v2: its vectors are those of ONNX Runtime. */
public class MiniLmFolderTest {

    private static final double TOLERANCE = 1e-5;
    private static final String CONFIG =
            """
            {"architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1,
             "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
             "hidden_size": 384, "initializer_range": 0.02, "intermediate_size": 1536,
             "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
             "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0,
             "position_embedding_type": "absolute", "transformers_version": "4.8.2",
             "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522}
            """;

    private Path folder;

    @BeforeClass
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("minilm");
        try (ZooModel<NDList, NDList> model = SentenceEmbedder.load();
                InputStream tokenizer =
                        WordPieces.class.getResourceAsStream("/all-minilm-l6-v2-tokenizer.json")) {
            WeightExport.builder()
                    .setMapping(NameMapping.bert())
                    .build()
                    .write(model.getBlock(), folder);
            Files.copy(tokenizer, folder.resolve("tokenizer.json"));
        }
        Files.writeString(folder.resolve("config.json"), CONFIG);
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() {
        Utils.deleteQuietly(folder);
    }

    @Test(timeOut = 120_000)
    public void vectorsAreThoseOfOnnxRuntime() throws Exception {
        List<String> texts = Sentences.read().subList(0, 40);
        float[][] expected;
        try (WordPieces pieces = WordPieces.load();
                OnnxReference reference = new OnnxReference(2)) {
            expected = reference.embed(pieces.cut(texts));
        }
        try (Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(3))) {
            List<float[]> vectors = embedder.embed(texts);
            assertEquals(vectors.size(), texts.size());
            for (int i = 0; i < expected.length; i++) {
                double difference = EmbeddedText.largestDifference(vectors.get(i), expected[i]);
                assertEquals(difference, 0, TOLERANCE, texts.get(i));
            }
        }
    }
}

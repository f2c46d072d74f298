package io.djltp.examples.embed;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.NDList;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.Utils;

import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.zoo.MiniLm;
import io.djltp.zoo.WordPieces;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;

/** A Hugging Face folder with all-MiniLM-L6-v2, made of the files on the class path. */
final class MiniLmFolder {

    private static final String CONFIG =
            """
            {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 30522,
             "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
             "intermediate_size": 1536, "hidden_act": "gelu", "max_position_embeddings": 512,
             "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
             "position_embedding_type": "absolute"}
            """;

    private MiniLmFolder() {}

    /** Returns the folder, in DJL's cache. It is written to the side, then renamed. */
    static Path get() throws IOException {
        Path cache = Utils.getCacheDir().resolve("djltp-examples");
        Path folder = cache.resolve("all-MiniLM-L6-v2");
        if (Files.isDirectory(folder)) {
            return folder;
        }
        Path side = Files.createTempDirectory(Files.createDirectories(cache), "all-MiniLM-L6-v2");
        try {
            write(side);
            Files.move(side, folder);
        } catch (IOException e) {
            if (!Files.isDirectory(folder)) { // else another process was faster
                throw e;
            }
        } finally {
            Utils.deleteQuietly(side);
        }
        return folder;
    }

    private static void write(Path folder) throws IOException {
        try (ZooModel<NDList, NDList> model = loadNetwork();
                InputStream tokenizer =
                        MiniLm.class.getResourceAsStream("/all-minilm-l6-v2-tokenizer.json")) {
            WeightExport.builder()
                    .setMapping(NameMapping.bert())
                    .build()
                    .write(model.getBlock(), folder);
            Files.copy(Objects.requireNonNull(tokenizer), folder.resolve("tokenizer.json"));
        }
        Files.writeString(folder.resolve("config.json"), CONFIG);
        Files.writeString(
                folder.resolve("sentence_bert_config.json"),
                "{\"max_seq_length\": " + WordPieces.LONGEST + "}");
    }

    /** Loads the network of the zoo into one device. */
    static ZooModel<NDList, NDList> loadNetwork() throws IOException {
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
}

package io.djltp.examples.lm;

import ai.djl.nn.Block;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonObject;

import io.djltp.examples.lm.LmNetwork.LmSizes;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** A trained {@link LmNetwork} as a folder of Hugging Face's Llama. */
final class SavedLm {

    private static final Gson GSON =
            new GsonBuilder().setPrettyPrinting().disableHtmlEscaping().create();

    private SavedLm() {}

    /** Writes weights, configuration and tokenizer. */
    static void write(Block network, LmSizes sizes, TokenText text, Path folder)
            throws IOException {
        WeightExport.builder()
                .setMapping(NameMapping.llama(sizes.heads, sizes.keyValueHeads()))
                .build()
                .write(network, folder);
        JsonObject config = LmNetwork.config(sizes, text.vocabulary());
        config.add("architectures", GSON.toJsonTree(List.of("LlamaForCausalLM")));
        config.addProperty("bos_token_id", text.end());
        config.addProperty("eos_token_id", text.end());
        write(folder.resolve("config.json"), config);
        JsonObject ids = new JsonObject();
        ids.addProperty("bos_token_id", text.end());
        ids.addProperty("eos_token_id", text.end());
        write(folder.resolve("generation_config.json"), ids);
        JsonObject tokenizer = new JsonObject();
        tokenizer.addProperty("tokenizer_class", "PreTrainedTokenizerFast");
        tokenizer.addProperty("model_max_length", sizes.context);
        tokenizer.addProperty("bos_token", BytePairs.END);
        tokenizer.addProperty("eos_token", BytePairs.END);
        write(folder.resolve("tokenizer_config.json"), tokenizer);
        write(folder.resolve("tokenizer.json"), text.json());
    }

    private static void write(Path file, JsonObject json) throws IOException {
        Files.writeString(file, GSON.toJson(json) + "\n");
    }
}

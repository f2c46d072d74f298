package io.djltp.llm;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** The fields of {@code config.json} and {@code generation_config.json} of published models. */
public class PublishedFoldersTest {

    @DataProvider
    public static Object[][] models() {
        List<Integer> llama3 = List.of(128001, 128008, 128009);
        List<Integer> qwen = List.of(151645, 151643);
        List<Integer> two = List.of(2);
        return new Object[][] {
            {"Llama-2-7b", "llama 32000 4096 32 32/32 128 11008 4096 false", two, "0.6 50 0.9 1.0"},
            {
                "Llama-3.2-1B",
                "llama 128256 2048 16 32/8 64 8192 131072 true",
                llama3,
                "0.6 50 0.9 1.0"
            },
            {"Mistral-7B-v0.3", "mistral 32768 4096 32 32/8 128 14336 32768 false", two, null},
            {
                "Qwen2.5-0.5B-Instruct",
                "qwen2 151936 896 24 14/2 64 4864 32768 true",
                qwen,
                "0.7 20 0.8 1.1"
            },
            {
                "Qwen3-0.6B",
                "qwen3 151936 1024 28 16/8 128 3072 40960 true",
                qwen,
                "0.6 20 0.95 1.0"
            },
            {
                "SmolLM3-3B",
                "smollm3 128256 2048 36 16/4 128 11008 65536 true",
                List.of(128012),
                null
            },
            {"phi-4", "phi3 100352 5120 40 40/10 128 17920 16384 false", List.of(100265), null},
            {
                "Phi-4-mini-instruct",
                "phi3 200064 3072 32 24/8 128 8192 131072 true",
                List.of(200020, 199999),
                null
            },
            {"gpt2", "gpt2 50257 768 12 12/12 64 3072 1024 true", List.of(50256), null},
            {"SmolLM2-135M", "llama 49152 576 30 9/3 64 1536 8192 true", two, null},
            {"TinyLlama-1.1B-Chat", "llama 32000 2048 22 32/4 64 5632 2048 false", two, null},
            {"bert-base-uncased", "bert 30522 768 12 12/12 64 3072 512 true", List.of(), null},
            {
                "bert-base-multilingual-cased",
                "bert 119547 768 12 12/12 64 3072 512 true",
                List.of(),
                null
            },
            {"xlm-roberta-base", "xlm-roberta 250002 768 12 12/12 64 3072 512 true", two, null},
            {
                "distilbert-base-uncased",
                "distilbert 30522 768 6 12/12 64 3072 512 true",
                List.of(),
                null
            },
            {"all-MiniLM-L6-v2", "bert 30522 384 6 12/12 32 1536 512 true", List.of(), null},
        };
    }

    @Test(dataProvider = "models")
    public void isRead(String name, String sizes, List<Integer> ends, String sampling)
            throws Exception {
        Path resource =
                Path.of(
                        System.getProperty("basedir", "."),
                        "src/test/resources/llm/published.json");
        JsonObject all = new Gson().fromJson(Files.readString(resource), JsonObject.class);
        JsonObject files = all.getAsJsonObject(name);
        Path folder = TestFolder.create();
        for (String file : files.keySet()) {
            JsonElement json = files.get(file);
            Files.writeString(folder.resolve(file + ".json"), json.toString());
        }
        ModelConfig config = ModelConfig.read(folder);
        String read =
                "%s %d %d %d %d/%d %d %d %d %s"
                        .formatted(
                                config.getModelType(),
                                config.getVocabularySize(),
                                config.getWidth(),
                                config.getLayers(),
                                config.getHeads(),
                                config.getKeyValueHeads(),
                                config.getHeadDim(),
                                config.getHiddenFeatures(),
                                config.getMaxPositions(),
                                config.isTied());
        Assert.assertEquals(read, sizes);
        for (int i = 0; i < config.getLayers(); i++) {
            Assert.assertEquals(config.getSlidingWindow(i), 0);
        }
        GenerationOptions options = GenerationOptions.read(folder, config);
        Assert.assertEquals(options.getStopTokens(), ends);
        String chosen =
                "%s %s %s %s"
                        .formatted(
                                options.getTemperature(),
                                options.getTopK(),
                                options.getTopP(),
                                options.getRepetitionPenalty());
        Assert.assertEquals(chosen, sampling == null ? "0.0 0 1.0 1.0" : sampling);
    }
}

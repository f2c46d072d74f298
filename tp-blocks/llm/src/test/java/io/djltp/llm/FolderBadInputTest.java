package io.djltp.llm;

import ai.djl.MalformedModelException;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;

/** Folders that are not those of a model that is implemented: one error each, that names it. */
public class FolderBadInputTest extends TestFolder {

    private static final String WEIGHTS = "model.safetensors";
    private static final String TOKENIZER =
            "{'model': {'type': 'WordLevel', 'vocab': {'a': 0, 'zebra': %d}, 'unk_token': 'a'},"
                    + " 'added_tokens': [{'id': %d, 'content': '<end>', 'special': true,"
                    + " 'single_word': false, 'lstrip': false, 'rstrip': false,"
                    + " 'normalized': false}]}";

    /** What is done to a folder. */
    private interface Change {

        void apply(Path folder) throws IOException;
    }

    @BeforeMethod
    public void writeModel() throws IOException {
        RandomFolder.write(folder, config(), 1);
    }

    private static JsonObject config() {
        return RandomFolder.config("llama", "");
    }

    private static Change fields(String fields) {
        return folder ->
                Files.writeString(
                        folder.resolve("config.json"),
                        RandomFolder.config("llama", fields).toString());
    }

    private static Change tensors(Consumer<Map<String, Shape>> change) {
        return folder -> {
            Map<String, Shape> tensors = RandomFolder.tensors(config());
            change.accept(tensors);
            RandomFolder.write(folder.resolve(WEIGHTS), tensors, 1);
        };
    }

    private static Change file(String name, String text) {
        return folder -> Files.writeString(folder.resolve(name), text.replace('\'', '"'));
    }

    private static Change wholeNumbers(String name) {
        return folder -> {
            Map<String, Shape> tensors = RandomFolder.tensors(config());
            RandomFolder.write(folder.resolve(WEIGHTS), tensors, Map.of(name, DataType.INT64), 1);
        };
    }

    private static Change without(String name) {
        return folder -> Files.delete(folder.resolve(name));
    }

    private static Change renamed(String name) {
        return folder -> Files.move(folder.resolve(WEIGHTS), folder.resolve(name));
    }

    private static Change cutAt(double share) {
        return folder -> {
            try (RandomAccessFile file =
                    new RandomAccessFile(folder.resolve(WEIGHTS).toFile(), "rw")) {
                file.setLength((long) (file.length() * share));
            }
        };
    }

    private static Change shards(String index) {
        return folder -> {
            Files.move(folder.resolve(WEIGHTS), folder.resolve("model-00001-of-00002.safetensors"));
            file("model.safetensors.index.json", index).apply(folder);
        };
    }

    @DataProvider
    public static Object[][] folders() {
        String q = "model.layers.1.self_attn.q_proj.weight";
        String tokens = "tokenizer.json";
        String generation = "generation_config.json";
        Class<?> malformed = MalformedModelException.class;
        Class<?> broken = IOException.class;
        return new Object[][] {
            {fields("'model_type': 'gemma'"), malformed, "model_type is \"gemma\"; known are"},
            {fields("'attn_logit_softcapping': 30"), malformed, "attn_logit_softcapping is 30"},
            {fields("'rope_scaling': {'type': 'su', 'factor': 2}"), malformed, "known are default"},
            {fields("'vocab_size': 54"), malformed, "embed_tokens.embedding (54, 20) is not"},
            {fields("'hidden_size': 40"), malformed, "and 9 more\nconfig.json is of a llama of 2"},
            {fields("'model_type': 'gpt2'"), malformed, "n_embd"},
            {fields("'num_hidden_layers': 1"), malformed, "layers.1.mlp.down_proj.weight"},
            {fields("'num_hidden_layers': 3"), malformed, "needs model.layers.2.self_attn"},
            {fields("'attention_bias': true"), malformed, "q_proj.bias, which is missing"},
            {fields("'tie_word_embeddings': true"), malformed, "differ, but are one parameter"},
            {tensors(all -> all.remove("lm_head.weight")), malformed, "needs lm_head.weight"},
            {tensors(all -> all.remove(q)), malformed, "needs " + q},
            {tensors(all -> all.put(q, new Shape(36, 21))), malformed, q + " (36, 21)"},
            {tensors(all -> all.put("x.bias", new Shape(3))), malformed, "tensor x.bias (3)"},
            {wholeNumbers(q), malformed, q + " has the data type I64"},
            {
                file(WEIGHTS, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n"),
                broken,
                "a pointer of Git LFS"
            },
            {file(WEIGHTS, "<!DOCTYPE html><html>"), broken, "wants a login"},
            {file(WEIGHTS, "{'error': 'no such file'}"), broken, "wants a login"},
            {
                renamed("model.gguf"),
                broken,
                "only [model.gguf]. Only safetensors are read: download them"
            },
            {renamed("pytorch_model.bin"), broken, "save_pretrained(folder)"},
            {renamed(WEIGHTS + ".incomplete"), broken, "which is not complete"},
            {file("config.json", "{'model_type': 'lla"), malformed, "is not an object of JSON"},
            {file("config.json", "<!DOCTYPE html>"), malformed, "is not an object of JSON"},
            {cutAt(0.9), broken, "model.safetensors"},
            {cutAt(0.0), broken, "model.safetensors"},
            {cutAt(0.01), broken, "model.safetensors"},
            {without(WEIGHTS), broken, "neither model.safetensors"},
            {without("config.json"), FileNotFoundException.class, "/config.json: Hugging Face"},
            {
                (Change) folder -> Files.move(folder, folder.resolveSibling("other")),
                FileNotFoundException.class,
                "There is no folder "
            },
            {
                shards(
                        "{'weight_map': {'lm_head.weight': 'model-00001-of-00002.safetensors', '"
                                + q
                                + "': 'model-00002-of-00002.safetensors'}}"),
                broken,
                "what is not there: [model-00002-of-00002.safetensors]"
            },
            {
                shards("{'weight_map': {'y': 'model-00001-of-00002.safetensors'}}"),
                broken,
                "y of model-00001"
            },
            {shards("{}"), broken, "no index of safetensors"},
            {file(tokens, TOKENIZER.formatted(53, 5)), malformed, "token zebra with id 53"},
            {file(tokens, TOKENIZER.formatted(52, 60)), malformed, "token <end> with id 60"},
            {file(tokens, "{'model': {'vocab': ["), malformed, "not an object of JSON"},
            {file(tokens, "{'model': {'vocab': {}}}"), malformed, "tokenizer.json is no tokenizer"},
            {file(tokens, "{'version': '1.0'}"), malformed, "no object model"},
            {file(generation, "{'num_beams': 4}"), malformed, "num_beams is 4, which is not"},
            {file(generation, "{'top_h': 0.4}"), malformed, "top_h is 0.4, which is not"},
            {file(generation, "{'dola_layers': 'low'}"), malformed, "dola_layers is \"low\""},
            {file(generation, "{'force_words_ids': [[1]]}"), malformed, "force_words_ids is"},
            {file(generation, "{'constraints': [1]}"), malformed, "constraints is [1]"},
            {file(generation, "{'watermarking_config': {'bias': 2}}"), malformed, "watermarking"},
            {file(generation, "{'stop_strings': [1]}"), malformed, "must be strings"},
            {file(generation, "{'eos_token_id': [2, 53]}"), malformed, "are 0 to 52"},
            {
                file(generation, "{'do_sample': true, 'top_p': 1.5}"),
                malformed,
                "at most 1, not 1.5"
            },
            {file(generation, "{'do_sample': 'no'}"), malformed, "must be true or false"},
        };
    }

    @Test(dataProvider = "folders", timeOut = 60_000)
    public void testIsRefused(Change change, Class<?> type, String message) throws Exception {
        change.apply(folder);
        try (LanguageModel model = LanguageModel.load(folder)) {
            Assert.fail(model.getConfig() + " was loaded, without: " + message);
        } catch (IOException | MalformedModelException e) {
            Assert.assertTrue(type.isInstance(e), e.toString());
            Assert.assertTrue(e.getMessage().contains(message), e.getMessage());
        }
    }

    /** Weights that are all of another data type are one line. */
    @Test(timeOut = 60_000)
    public void testDataTypeIsNamedOnce() throws Exception {
        Map<String, DataType> types = new HashMap<>();
        RandomFolder.tensors(config()).keySet().forEach(name -> types.put(name, DataType.INT8));
        RandomFolder.write(folder.resolve(WEIGHTS), RandomFolder.tensors(config()), types, 1);
        String message =
                Assert.expectThrows(MalformedModelException.class, () -> LanguageModel.load(folder))
                        .getMessage();
        Assert.assertEquals(message.split("has the data type I8").length, 2, message);
        Assert.assertEquals(message.lines().count(), 3, message);
    }

    @Test(timeOut = 60_000)
    public void testUnchangedIsLoaded() throws Exception {
        file("tokenizer.json", TOKENIZER.formatted(1, 52)).apply(folder);
        file(
                        "generation_config.json",
                        "{'eos_token_id': [2, 52], 'do_sample': true, 'top_k': 7,"
                                + " 'stop_strings': 'a'}")
                .apply(folder);
        Refusals.assertContains(
                Refusals.logged(() -> LanguageModel.load(folder).close()),
                "has 3 tokens, and the model 53 ids");
        try (LanguageModel model = LanguageModel.load(folder)) {
            Assert.assertEquals(model.getGenerationOptions().getStopStrings(), List.of("a"));
            Assert.assertEquals(model.getGenerationOptions().getStopTokens().size(), 2);
            Assert.assertEquals(model.getGenerationOptions().getTopK(), 7);
            long[] ids = model.getTokenizer().encode("zebra", false, false).getIds();
            Assert.assertEquals(ids, new long[] {1});
        }
    }
}

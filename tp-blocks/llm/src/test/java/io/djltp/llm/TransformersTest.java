package io.djltp.llm;

import com.google.gson.JsonNull;
import com.google.gson.JsonObject;

import io.djltp.testing.TestFolder;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * The models of {@link ArchitecturesTest} by transformers 5 ({@code
 * src/test/resources/llm/hugging_face.py}): logits of {@code reference.py}, and ours of the folder
 * that transformers saves.
 */
public class TransformersTest {

    private static final Map<String, JsonObject> MODELS = new LinkedHashMap<>();

    static {
        ArchitecturesTest.MODELS.forEach(
                (name, config) -> {
                    JsonObject own = config.deepCopy();
                    if (own.has("head_dim") && !own.get("head_dim").isJsonNull()) {
                        // transformers takes no width of which heads are no divisor
                        int heads = own.get("num_attention_heads").getAsInt();
                        own.addProperty("hidden_size", heads * own.get("head_dim").getAsInt());
                    }
                    for (String token : List.of("pad", "bos", "eos")) {
                        own.add(token + "_token_id", JsonNull.INSTANCE); // else large ones
                    }
                    MODELS.put(name, own);
                });
    }

    private final Path folder = TestFolder.create();
    private Map<String, double[]> expected;
    private Map<String, double[]> reference;
    private long[] ids;

    @BeforeClass
    public void compute() throws Exception {
        int count = ArchitecturesTest.ROWS * ArchitecturesTest.LENGTH;
        ids = new Random(3).longs(count, 0, 53).toArray();
        Map<String, ?> input = Map.of("ids", Expected.rows(ArchitecturesTest.LENGTH, ids));
        expected = Expected.compute("transformers", "llm/hugging_face.py", folder, MODELS, input);
        reference = Expected.compute(folder, MODELS, input);
    }

    @DataProvider
    public static Object[][] models() {
        return ArchitecturesTest.models();
    }

    @Test(dataProvider = "models", timeOut = 60_000)
    public void logitsAreThoseOfTransformers(String name) throws Exception {
        float[] values = new float[reference.get(name).length];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) reference.get(name)[i];
        }
        Expected.check(values, expected.get(name), 1e-5, name + ", reference");
        try (LanguageModel model = LanguageModel.load(folder.resolve(name).resolve("saved"))) {
            float[] found = ArchitecturesTest.logits(model.getModel(), ids, 3);
            Expected.check(found, expected.get(name), 1e-5, name + ", 3 ranks");
        }
    }
}

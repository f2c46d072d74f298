package io.djltp.llm;

import ai.djl.MalformedModelException;

import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** How vectors of texts are made, as the files of sentence-transformers say it. */
public class PoolingTest {

    private static final String MODULES =
            "[{'idx': 0, 'path': '', 'type': 'sentence_transformers.models.Transformer'}, {'idx':"
                    + " 1, 'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'}%s]";
    private static final float[] FEATURES = {9, 9, 3, 0, 5, 8};

    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = TestFolder.create();
        Files.createDirectory(folder.resolve("1_Pooling"));
        write("1_Pooling/config.json", "{'pooling_mode_mean_tokens': true}");
    }

    private void write(String name, String json) throws IOException {
        Files.writeString(folder.resolve(name), json.replace('\'', '"'));
    }

    private float[] pooled() throws IOException, MalformedModelException {
        return Pooling.read(folder, 16).pool(FEATURES, 2, 2, 2);
    }

    @Test
    public void testPools() throws Exception {
        float root = (float) Math.sqrt(0.5);
        Assert.assertEquals(pooled(), new float[] {root, root}, 1e-6f); // of the mean 4, 4
        write("modules.json", MODULES.formatted(""));
        Assert.assertEquals(pooled(), new float[] {4, 4}, 0);
        write(
                "1_Pooling/config.json",
                "{'word_embedding_dimension': 2, 'pooling_mode_cls_token': true,"
                        + " 'pooling_mode_mean_tokens': false}");
        Assert.assertEquals(pooled(), new float[] {3, 0}, 0);
        String normal = ", {'type': 'sentence_transformers.models.Normalize', 'path': '2_N'}";
        write("modules.json", MODULES.formatted(normal));
        Assert.assertEquals(pooled(), new float[] {1, 0}, 0);
        Assert.assertEquals(Pooling.read(folder, 16).longest(), 16);
        write("sentence_bert_config.json", "{'max_seq_length': 7, 'do_lower_case': false}");
        Assert.assertEquals(Pooling.read(folder, 16).longest(), 7);
    }

    @DataProvider
    public static Object[][] wrong() {
        String dense = MODULES.formatted(", {'type': 'sentence_transformers.models.Dense'}");
        return new Object[][] {
            {"modules.json", dense, "models.Dense; known are Transformer"},
            {"modules.json", "{}", "is not a list of JSON"},
            {"1_Pooling/config.json", "{'pooling_mode_max_tokens': true}", "implemented is one"},
            {"1_Pooling/config.json", "{}", "has []; implemented"},
        };
    }

    @Test(dataProvider = "wrong")
    public void testRefuses(String file, String json, String message) throws Exception {
        write("modules.json", MODULES.formatted(""));
        write(file, json);
        Refusals.expect(MalformedModelException.class, this::pooled, message);
    }
}

package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.examples.TpRun;
import io.djltp.llm.Embedder;
import io.djltp.llm.RandomFolder;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** The command prints and writes embeddings, and says in one line what is wrong with its input. */
public class EmbedCommandTest {

    private final Path folder = TestFolder.create();

    @BeforeClass
    public void makeFolder() throws IOException {
        Files.writeString(folder.resolve("texts.txt"), "\uFEFFA dog barks.\n\nEin Hund bellt.\n");
    }

    @Test(timeOut = 120_000)
    public void writesTextsAndVectors() throws IOException {
        Path json = folder.resolve("vectors.json");
        TpRun run =
                TpRun.of(
                        "embed",
                        "The cat sits outside",
                        "",
                        "--file",
                        folder.resolve("texts.txt").toString(),
                        "--tp",
                        "3",
                        "--json",
                        json.toString());
        run.assertPrints(0, "Cosine similarity", "3 ranks");
        JsonArray list = JsonParser.parseString(Files.readString(json)).getAsJsonArray();
        assertEquals(list.size(), 4);
        String[] texts = {"The cat sits outside", "", "A dog barks.", "Ein Hund bellt."};
        for (int i = 0; i < 4; i++) {
            JsonObject each = list.get(i).getAsJsonObject();
            assertEquals(each.get("text").getAsString(), texts[i]);
            assertEquals(each.get("vector").getAsJsonArray().size(), 384);
            double squares = 0;
            for (var number : each.get("vector").getAsJsonArray()) {
                squares += number.getAsDouble() * number.getAsDouble();
            }
            assertEquals(squares, 1, 1e-5);
            assertEquals(each.has("ranks"), i == 0, "once");
        }
        JsonObject once = list.get(0).getAsJsonObject();
        assertEquals(once.get("ranks").getAsInt(), 3);
        assertEquals(once.get("collectives_per_layer").getAsInt(), 2);
        assertTrue(once.get("seconds").getAsDouble() > 0);
    }

    /** Processes whose folders differ say so, before they compute. */
    @Test(timeOut = 120_000)
    public void processesHaveTheSameModel() throws Exception {
        for (int i = 0; i < 2; i++) {
            Path own = folder.resolve("model" + i);
            RandomFolder.writeEncoder(own);
            String config = Files.readString(own.resolve("config.json"));
            String function = "{\"hidden_act\":" + (i == 0 ? "\"gelu\"," : "\"relu\",");
            Files.writeString(own.resolve("config.json"), function + config.substring(1));
        }
        for (ForkedTp.Result result :
                ForkedTp.job(
                        JobVariables.ofAll(2),
                        i -> "embed a --timeout 60 --model " + folder.resolve("model" + i))) {
            assertEquals(result.status(), 2, result.toString());
            assertTrue(
                    result.err()
                            .matches(
                                    "(?s).*tp: the model is a bert .* on process 0 \\(.*\\) and a"
                                            + " bert .* on process 1 \\(.*\\): open the same one"
                                            + " on all processes\\R.*"),
                    result.toString());
        }
    }

    @Test(timeOut = 60_000)
    public void weightsThatAreNoNumbersAreSaid() throws IOException {
        Path broken = folder.resolve("broken");
        RandomFolder.writeEncoder(broken);
        RandomFolder.writeNaN(broken);
        TpRun run = TpRun.line("embed a --model " + broken);
        run.assertPrints(1, "tp: A feature of a token is NaN: the weights of the model have");
        assertFalse(run.output().contains("\tat "), run.output());
    }

    @Test(timeOut = 120_000)
    public void aFolderHasTheVectorsOfItsOwn() throws Exception {
        RandomFolder.writeEncoder(folder); // of 2 layers and width 20
        String pooling = "[{\"type\": \"a.Transformer\"}, {\"type\": \"a.Pooling\"}]";
        Files.writeString(folder.resolve("modules.json"), pooling); // of any length
        Path json = folder.resolve("own.json");
        TpRun.line("embed word word --model " + folder + " --tp 3 --json " + json)
                .assertPrints(
                        0, "1.000", "of 20", "2 collective operations in each of the 2 layers");
        TpRun.line("embed word --model " + folder + " --prompt query")
                .assertPrints(2, "query is none of the prompts {}");
        TpRun.line("embed " + folder + " word")
                .assertPrints(
                        2, "is the folder of a model, not a text: give it as --model " + folder);
        JsonObject own =
                JsonParser.parseString(Files.readString(json))
                        .getAsJsonArray()
                        .get(0)
                        .getAsJsonObject();
        try (Embedder embedder = Embedder.load(folder, ParallelConfig.tensor(3))) {
            float[] expected = embedder.embed(List.of("word")).get(0);
            for (int i = 0; i < expected.length; i++) {
                assertEquals(
                        own.get("vector").getAsJsonArray().get(i).getAsFloat(), expected[i], 1e-6);
            }
        }
    }
}

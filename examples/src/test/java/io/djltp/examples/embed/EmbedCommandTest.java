package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.examples.TpRun;
import io.djltp.testing.TestFolder;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

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
                        "--file",
                        folder.resolve("texts.txt").toString(),
                        "--tp",
                        "3",
                        "--json",
                        json.toString());
        run.assertPrints(0, "Cosine similarity", "3 ranks");
        JsonArray list = JsonParser.parseString(Files.readString(json)).getAsJsonArray();
        assertEquals(list.size(), 3);
        String[] texts = {"The cat sits outside", "A dog barks.", "Ein Hund bellt."};
        for (int i = 0; i < 3; i++) {
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
}

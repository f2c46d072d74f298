package io.djltp.examples.embed;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.examples.TpRun;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The command prints and writes embeddings, and says in one line what is wrong with its input. */
public class EmbedCommandTest {

    private Path folder;

    @BeforeClass
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("embed");
        Files.write(folder.resolve("latin1.txt"), new byte[] {'n', (byte) 0xe9, 'e', '\n'});
        Files.writeString(folder.resolve("empty.txt"), "\n  \n");
        Files.writeString(folder.resolve("texts.txt"), "\uFEFFA dog barks.\n\nEin Hund bellt.\n");
    }

    @AfterClass
    public void removeFolder() throws IOException {
        try (var files = Files.walk(folder)) {
            files.sorted(java.util.Comparator.reverseOrder())
                    .forEach(file -> file.toFile().delete());
        }
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
                        "--batch",
                        "2",
                        "--compare",
                        "--json",
                        json.toString());
        assertEquals(run.status(), 0, run.output());
        assertTrue(run.output().contains("Cosine similarity"), run.output());
        assertTrue(run.output().contains("3 ranks"), run.output());
        assertTrue(run.output().contains("ONNX Runtime"), run.output());
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
        assertTrue(once.get("onnx_seconds").getAsDouble() > 0);
        assertTrue(once.get("largest_difference").getAsDouble() < 1e-5);
    }

    @DataProvider
    public Object[][] badInput() {
        return new Object[][] {
            {"There is no text", new String[] {}},
            {"Text 2 is empty", new String[] {"a", " "}},
            {"--tp must be greater than 0, not 0", new String[] {"a", "--tp", "0"}},
            {"the model has 12 heads, use --tp 12 or less", new String[] {"a", "--tp", "13"}},
            {"--batch must be greater than 0", new String[] {"a", "--batch", "0"}},
            {"expected one of", new String[] {"a", "--backend", "pigeon"}},
            {"--json", new String[] {"a", "--json", "no/such/folder/file"}},
            {"cannot be read", new String[] {"--file", "no-such-file"}},
            {"is no text in UTF-8", new String[] {"--file", "latin1.txt"}},
            {"has no text", new String[] {"--file", "empty.txt"}},
        };
    }

    @Test(dataProvider = "badInput", timeOut = 60_000)
    public void badInputIsOneLine(String message, String[] args) {
        String[] all = new String[args.length + 1];
        all[0] = "embed";
        for (int i = 0; i < args.length; i++) {
            boolean file = args[i].endsWith(".txt");
            all[i + 1] = file ? folder.resolve(args[i]).toString() : args[i];
        }
        TpRun run = TpRun.of(all);
        assertEquals(run.status(), 2, run.output());
        assertTrue(run.output().contains(message), run.output());
        assertFalse(run.output().contains("\tat "), run.output());
    }
}

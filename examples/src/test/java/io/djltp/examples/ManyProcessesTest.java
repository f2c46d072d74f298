package io.djltp.examples;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonParser;

import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** {@code tp lm} and {@code tp embed} in several processes compute what they compute in one. */
public class ManyProcessesTest {

    private static final String LM =
            "lm --layers 1 --width 16 --heads 4 --context 9 --batch 4 --steps 3 --characters 5";

    /** Two processes of two ranks each, one of them with all the rows of a data group. */
    @Test(timeOut = 240_000)
    public void languageModelOnAMesh() throws Exception {
        String arguments = LM + " --mesh 2x2 --sequence-parallel";
        assertSame(arguments, 2, "loss", "held_out_loss");
    }

    /** Three processes of a rank each, which the heads cannot be divided by. */
    @Test(timeOut = 240_000)
    public void languageModelOnThreeProcesses() throws Exception {
        assertSame(LM + " --tp 3", 3, "loss", "held_out_loss");
    }

    @Test(timeOut = 240_000)
    public void embeddings() throws Exception {
        assertSame("embed sea --tp 2", 2, "vector");
    }

    /** Only process 0 prints and writes. */
    private static void assertSame(String arguments, int processes, String... figures)
            throws Exception {
        Path folder = Files.createTempDirectory("tp-processes");
        try {
            List<ForkedTp.Result> results = run(arguments, processes, folder);
            for (int i = 0; i < processes; i++) {
                assertEquals(results.get(i).status(), 0, results.toString());
                assertEquals(results.get(i).out().isEmpty(), i > 0, results.toString());
                assertEquals(Files.exists(folder.resolve(i + ".json")), i == 0);
            }
            Path one = folder.resolve("one.json");
            TpRun run = TpRun.of((arguments + " --json " + one).split(" "));
            run.assertPrints(0);
            for (String figure : figures) {
                List<Double> expected = numbers(one, figure);
                assertFalse(expected.isEmpty(), figure);
                // sums of a group are in the order of its ranks, wherever they are
                assertEquals(numbers(folder.resolve("0.json"), figure), expected, figure);
            }
        } finally {
            try (var files = Files.list(folder)) {
                for (Path file : files.toList()) {
                    Files.delete(file);
                }
            }
            Files.delete(folder);
        }
    }

    private static List<ForkedTp.Result> run(String arguments, int processes, Path folder)
            throws Exception {
        int port = FreePort.find();
        List<ForkedTp> started = new ArrayList<>();
        List<ForkedTp.Result> results = new ArrayList<>();
        try {
            for (int i = 0; i < processes; i++) {
                String json = " --json " + folder.resolve(i + ".json");
                started.add(
                        ForkedTp.start(
                                JobVariables.of(i, processes, port),
                                Arrays.asList((arguments + json).split(" "))));
            }
            for (ForkedTp process : started) {
                results.add(process.await());
            }
        } finally {
            for (ForkedTp process : started) {
                process.close();
            }
        }
        return results;
    }

    private static List<Double> numbers(Path json, String figure) throws IOException {
        JsonElement all = JsonParser.parseString(Files.readString(json));
        JsonElement value =
                (all.isJsonArray() ? all.getAsJsonArray().get(0) : all)
                        .getAsJsonObject()
                        .get(figure);
        assertTrue(value != null, figure + " in " + all);
        List<Double> numbers = new ArrayList<>();
        if (value.isJsonArray()) {
            value.getAsJsonArray().forEach(each -> numbers.add(each.getAsDouble()));
        } else {
            numbers.add(value.getAsDouble());
        }
        return numbers;
    }
}

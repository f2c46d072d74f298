package io.djltp.llm;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.testing.PyTorch;

import org.testng.Assert;
import org.testng.Reporter;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Numbers that another implementation computes. */
final class Expected {

    private Expected() {}

    /**
     * Writes random models, and lets PyTorch compute in float64, by {@code
     * src/test/resources/llm/reference.py}.
     *
     * @param folder where each model has a folder of its name
     * @param input the fields that the script takes, but that of the folder
     * @return the numbers of each model
     */
    static Map<String, double[]> compute(
            Path folder, Map<String, JsonObject> models, Map<String, ?> input) throws Exception {
        return compute("torch", "llm/reference.py", folder, models, input);
    }

    /** The same by another script, which needs a module of Python. */
    static Map<String, double[]> compute(
            String module,
            String script,
            Path folder,
            Map<String, JsonObject> models,
            Map<String, ?> input)
            throws Exception {
        Gson gson = new Gson();
        List<String> lines = new ArrayList<>();
        for (Map.Entry<String, JsonObject> each : models.entrySet()) {
            Path own = folder.resolve(each.getKey());
            RandomFolder.write(own, each.getValue(), each.getKey().hashCode());
            JsonObject line = gson.toJsonTree(input).getAsJsonObject();
            line.addProperty("folder", own.toString());
            lines.add(line.toString());
        }
        List<String> results = PyTorch.run(module, script, lines);
        Map<String, double[]> expected = new LinkedHashMap<>();
        for (String name : models.keySet()) {
            String line = results.get(expected.size());
            expected.put(name, gson.fromJson(line, double[].class));
        }
        return expected;
    }

    /** Returns numbers in rows of a length. */
    static long[][] rows(int length, long... all) {
        long[][] rows = new long[all.length / length][];
        Arrays.setAll(rows, i -> Arrays.copyOfRange(all, i * length, (i + 1) * length));
        return rows;
    }

    /** Fails if a number differs by more than a share of the largest, and reports that share. */
    static void check(float[] found, double[] expected, double tolerance, String what) {
        Assert.assertEquals(found.length, expected.length, what);
        double largest = 0;
        double difference = 0;
        for (int i = 0; i < found.length; i++) {
            largest = Math.max(largest, Math.abs(expected[i]));
            double each = Math.abs(expected[i] - found[i]);
            difference = each <= difference ? difference : each; // NaN too
        }
        String figure =
                String.format("%s: differs by %.1e of the largest", what, difference / largest);
        Reporter.log(figure, Boolean.getBoolean("djltp.figures"));
        Assert.assertTrue(difference <= tolerance * largest, figure);
    }
}

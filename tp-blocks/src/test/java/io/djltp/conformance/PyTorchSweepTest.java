package io.djltp.conformance;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;

import io.djltp.cut.Cut;
import io.djltp.testing.TestFolder;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.lang.reflect.RecordComponent;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * Random networks of the sweep on ranks are those of PyTorch in float64, whose side is {@code
 * src/test/resources/conformance/sweep.py}: all but those with a mixture of experts. Needs a Python
 * with PyTorch, {@code -Ddjltp.python=PYTHON}, or {@code /usr/bin/python3}.
 */
public class PyTorchSweepTest {

    private static final Logger logger = LoggerFactory.getLogger(PyTorchSweepTest.class);
    private static final int FEW = 20;

    @Test(timeOut = 600_000)
    public void networksOnRanksAreThoseOfPyTorch() throws Exception {
        check(1_000, FEW);
    }

    @Test(groups = "sweep", timeOut = 3_600_000)
    public void manyNetworksOnRanksAreThoseOfPyTorch() throws Exception {
        check(
                Long.getLong("djltp.sweep.seed", 1_000 + FEW),
                Integer.getInteger("djltp.sweep.cases", 500));
    }

    private static void check(long first, int number) throws Exception {
        String python = System.getProperty("djltp.python", "/usr/bin/python3");
        if (run(List.of(python, "-c", "import torch"), null, null) != 0) {
            throw new SkipException(
                    "There is no PyTorch for Python: apt-get install python3-torch (650 MB)");
        }
        List<SweptCase> cases =
                Stream.iterate(first, seed -> seed + 1)
                        .map(SweptCase::of)
                        .filter(drawn -> !drawn.tree().isRouted())
                        .limit(number)
                        .toList();
        Path folder = TestFolder.create();
        Path file = folder.resolve("cases");
        Path results = folder.resolve("results");
        Files.write(file, cases.stream().map(each -> describe(each).toString()).toList());
        String script = Path.of("src/test/resources/conformance/sweep.py").toString();
        Assert.assertEquals(run(List.of(python, script), file, results), 0, python + script);
        List<String> lines = Files.readAllLines(results);
        Assert.assertEquals(lines.size(), number);
        SweptComparison comparison = new SweptComparison();
        List<String> failures = new ArrayList<>();
        for (int i = 0; i < number; i++) {
            JsonObject expected = JsonParser.parseString(lines.get(i)).getAsJsonObject();
            SweptCase drawn = cases.get(i);
            List<String> wrong =
                    comparison.check(
                            drawn, arrays(expected, "gradients"), arrays(expected, "steps"));
            if (!wrong.isEmpty()) {
                failures.add("-Ddjltp.sweep.seed=" + drawn.seed() + " " + drawn + ": " + wrong);
            }
        }
        logger.info(
                "{} networks, {} arrays, {} of them compared with the rounding of DJL, {} trainings"
                        + " diverged, largest differences {}, wrong {}",
                number,
                comparison.compared(),
                comparison.rounded(),
                comparison.diverged(),
                comparison.largest(),
                failures.size());
        Assert.assertTrue(failures.isEmpty(), String.join("\n", failures));
        Assert.assertTrue(comparison.rounded() <= comparison.compared() / 50);
        Assert.assertTrue(comparison.diverged() <= Math.max(1, number / 50));
    }

    private static int run(List<String> command, Path in, Path out) throws Exception {
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.redirectError(ProcessBuilder.Redirect.INHERIT);
        if (in == null) {
            builder.redirectError(ProcessBuilder.Redirect.DISCARD);
        } else {
            builder.redirectInput(in.toFile()).redirectOutput(out.toFile());
        }
        try {
            return builder.start().waitFor();
        } catch (IOException e) {
            return -1; // there is no such program
        }
    }

    private static Map<String, double[]> arrays(JsonObject results, String name) {
        Map<String, double[]> arrays = new LinkedHashMap<>();
        for (JsonElement each : results.getAsJsonArray(name)) {
            JsonObject array = each.getAsJsonObject();
            double[] values = new Gson().fromJson(array.get("values"), double[].class);
            arrays.put(array.get("name").getAsString(), values);
        }
        return arrays;
    }

    private static JsonObject describe(SweptCase drawn) {
        JsonObject described = new JsonObject();
        described.add("tree", json(drawn.tree()));
        described.addProperty("rows", drawn.rows());
        described.addProperty("optimizer", drawn.optimizer());
        SweptTraining training = SweptTraining.of(drawn, drawn.kind());
        try (NDManager manager = NDManager.newBaseManager()) {
            Engine.getInstance().setRandomSeed((int) drawn.seed());
            Block block = drawn.tree().create(false);
            block.initialize(manager, drawn.type(), training.data(manager, 0).getShapes());
            JsonArray parameters = new JsonArray();
            for (Pair<String, Parameter> named : block.getParameters()) {
                JsonObject array = array(named.getValue().getArray());
                array.addProperty("name", named.getKey());
                parameters.add(array);
            }
            described.add("parameters", parameters);
            JsonArray data = new JsonArray();
            JsonArray labels = new JsonArray();
            for (int i = 0; i < SweptTraining.STEPS; i++) {
                data.add(array(training.data(manager, i).head()));
                labels.add(array(training.labels(manager, i).head()));
            }
            described.add("data", data);
            described.add("labels", labels);
        }
        return described;
    }

    private static JsonObject array(NDArray array) {
        JsonObject described = new JsonObject();
        described.add("shape", json(array.getShape()));
        described.add("values", new Gson().toJsonTree(SweptTraining.doubles(array)));
        return described;
    }

    /** Returns the fields of a record, and of those in it, with the name of its class as kind. */
    private static JsonElement json(Object value) {
        if (value instanceof Record) {
            JsonObject object = new JsonObject();
            object.addProperty("kind", value.getClass().getSimpleName());
            for (RecordComponent each : value.getClass().getRecordComponents()) {
                try {
                    each.getAccessor().setAccessible(true);
                    object.add(each.getName(), json(each.getAccessor().invoke(value)));
                } catch (ReflectiveOperationException e) {
                    throw new AssertionError(e);
                }
            }
            return object;
        }
        if (value instanceof List<?> list) {
            JsonArray array = new JsonArray();
            list.forEach(each -> array.add(json(each)));
            return array;
        }
        if (value instanceof Shape shape) {
            return json(IntStream.range(0, shape.dimension()).mapToObj(shape::get).toList());
        }
        if (value instanceof Boolean truth) {
            return new JsonPrimitive(truth);
        }
        if (value instanceof Number number) {
            return new JsonPrimitive(number);
        }
        return value == null || value instanceof Cut // which PyTorch does not have
                ? JsonNull.INSTANCE
                : new JsonPrimitive(value.toString());
    }
}

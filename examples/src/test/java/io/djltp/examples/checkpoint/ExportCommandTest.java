package io.djltp.examples.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.checkpoint.Checkpoints;
import io.djltp.checkpoint.CutTensor;
import io.djltp.cut.Cut;
import io.djltp.examples.TpRun;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Weights of a checkpoint of two ranks, put together by the names of others. */
public class ExportCommandTest {

    private final Path root = TestFolder.create();

    @BeforeClass
    public void write() throws IOException {
        CutTensor up = cut("02body_01Linear_weight", 0, 5, 3);
        CutTensor down = cut("02body_02Linear_weight", 1, 4, 5);
        CutTensor momentum = cut("02body_01Linear_weight/momentum", 0, 5, 3);
        CutTensor norm = CutTensor.whole("03LayerNorm_gamma", DataType.FLOAT32, new Shape(4));
        Map<String, NDArray> whole = new HashMap<>();
        List<CutTensor> tensors = List.of(up, down, momentum, norm);
        try (NDManager manager = NDManager.newBaseManager()) {
            tensors.forEach(each -> whole.put(each.name(), numbers(manager, each.shape())));
            Checkpoints.write(root.resolve("run"), 7, 2, tensors, whole, new JsonObject());
        }
    }

    private static CutTensor cut(String name, int axis, long rows, long columns) {
        Shape shape = new Shape(rows, columns);
        return new CutTensor(name, DataType.FLOAT32, shape, axis, Cut.ofLengths(2, 3));
    }

    private static NDArray numbers(NDManager manager, Shape shape) {
        return manager.arange((float) shape.size()).reshape(shape);
    }

    @Test
    public void weightsGetTheNamesOfOthers() throws IOException {
        Path names = root.resolve("names");
        Files.writeString(
                names,
                "body.Linear0.weight = up.weight\n"
                        + "body.Linear1.weight = down.weight : transposed # [in, out]\n"
                        + "{path}.gamma = {path}.weight\n");
        Path out = root.resolve("out");
        TpRun run = run(out, "--names", names.toString());
        run.assertPrints(0, "The weights of step 7 of");
        try (NDManager manager = NDManager.newBaseManager();
                SafetensorsFile file = SafetensorsFile.open(out.resolve("model.safetensors"))) {
            Assert.assertEquals(
                    Set.copyOf(file.getTensors().keySet()),
                    Set.of("up.weight", "down.weight", "LayerNorm.weight"));
            NDArray up = numbers(manager, new Shape(5, 3));
            Assert.assertEquals(file.read("up.weight", manager), up);
            NDArray down = numbers(manager, new Shape(4, 5)).transpose();
            Assert.assertEquals(file.read("down.weight", manager), down);
            NDArray gamma = numbers(manager, new Shape(4));
            Assert.assertEquals(file.read("LayerNorm.weight", manager), gamma);
        }
    }

    @Test
    public void badInputIsOneError() {
        TpRun run = run(root.resolve("none"), "--llama", "4,2");
        run.assertPrints(2, "parameter body.Linear0.weight has no name in the mapping");
        Assert.assertFalse(Files.exists(root.resolve("none")));
    }

    @DataProvider
    public Object[][] badTables() throws IOException {
        Path utf16 = root.resolve("utf16");
        Files.writeString(utf16, "a = \u00fc", StandardCharsets.UTF_16);
        Path misspelled = Files.writeString(root.resolve("misspelled"), "body.Linaer0.weight = a");
        Path empty = Files.writeString(root.resolve("empty"), "# nothing");
        Path vector = Files.writeString(root.resolve("vector"), "{path}.* = {path}.* : transposed");
        return new Object[][] {
            {utf16, utf16 + " is no text in UTF-8"},
            {root, root + " is a folder"},
            {root.resolve("no"), "cannot be read"},
            {
                misspelled,
                "names none of the parameters: body.Linaer0.weight = a. They are body.Linear0.weight,"
            },
            {empty, "it has no rules"},
            {
                vector,
                "[LayerNorm.gamma] (4) cannot be written by the rule '{path}.* = {path}.* : tr"
            }
        };
    }

    @Test(dataProvider = "badTables")
    public void aBadTableIsOneLine(Path names, String message) {
        Path out = root.resolve("none");
        TpRun run = run(out, "--names", names.toString());
        run.assertPrints(2, message);
        Assert.assertFalse(Files.exists(out));
    }

    @Test
    public void aRuleThatNamesNothingIsSaid() throws IOException {
        Path names = Files.writeString(root.resolve("half"), "body.Linear0.weight = a\nbudy.x = b");
        TpRun run = run(root.resolve("half-out"), "--names", names.toString());
        run.assertPrints(0, "no parameter is named by 'budy.x = b'");
    }

    @Test
    public void onlyOneOptionHasTheNames() {
        String out = root.resolve("none").toString();
        String from = root.resolve("run").toString();
        TpRun run =
                TpRun.line(
                        "checkpoint export "
                                + from
                                + " --out "
                                + out
                                + " --llama 4,2 --names "
                                + from);
        run.assertPrints(2, "--names and --llama");
    }

    @Test
    public void theWeightsGoToAFolder() throws IOException {
        Path file = Files.writeString(root.resolve("file"), "x");
        TpRun run = run(file, "--file-bytes", "1000000");
        run.assertPrints(2, file + ": it is a file, and the weights go to a folder");
    }

    /** Files of another model that are there stay, unless they are to be replaced. */
    @Test
    public void whatIsThereIsNotReplacedSilently() throws IOException {
        Path out = Files.createDirectories(root.resolve("there"));
        Path file = Files.writeString(out.resolve("model.safetensors"), "another");
        TpRun run = run(out, "--file-bytes", "1000000");
        run.assertPrints(2, "--overwrite");
        Assert.assertEquals(Files.readString(file), "another");
        String from = root.resolve("run").toString();
        run = TpRun.line("checkpoint export " + from + " --out " + out + " --overwrite");
        run.assertPrints(0);
        Assert.assertTrue(Files.size(file) > 100);
    }

    @DataProvider
    public Object[][] shared() {
        return new Object[][] {
            {"", " is not what this library writes: shared is missing"},
            {"shared: \"w\",", " is not what this library writes: "},
            {"shared: 3,", " is not what this library writes: "},
            {"shared: {\"a\": {}},", " is not what this library writes: "}
        };
    }

    @Test(dataProvider = "shared")
    public void damagedNamesAreOneError(String shared, String message) throws IOException {
        Path run = Files.createTempDirectory(root, "shared");
        JsonObject values = new JsonObject();
        values.add(
                "trainer",
                JsonParser.parseString(
                        "{parameters: [w], "
                                + shared
                                + "optimizer: SGD, margins: {}, updates: {}, frozen: [],"
                                + " lossScale: null,"
                                + " seeds: {seed: 1, asked: 0}, participants: {}, blocks: {}, generators: []}"));
        CutTensor w = CutTensor.whole("w", DataType.FLOAT32, new Shape(2));
        try (NDManager manager = NDManager.newBaseManager()) {
            Map<String, NDArray> arrays = Map.of("w", manager.zeros(w.shape()));
            Checkpoints.write(run, 1, 1, List.of(w), arrays, values);
        }
        TpRun export =
                TpRun.of("checkpoint", "export", run.toString(), "--out", run.resolve("x") + "");
        export.assertPrints(2, "index.json cannot be used: values.trainer" + message);
    }

    private TpRun run(Path out, String option, String value) {
        String from = root.resolve("run").toString();
        return TpRun.line(
                "checkpoint export " + from + " --out " + out + " " + option + " " + value);
    }
}

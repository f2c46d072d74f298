package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Utils;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.ParallelDropout;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;

/**
 * An index that is JSON, with its right checksum, and lacks a member or has one of another kind, is
 * refused by its name before anything is changed.
 */
public class BrokenValuesTest {

    /** What older checkpoints do not have, or another kind can stand for. */
    private static final Set<String> OTHERWISE =
            Set.of(
                    "trainer.optimizer string",
                    "training.data.begun string",
                    "training.metrics removed");

    /** What is done with an open trainer. */
    private interface Body {
        void run(ParallelTrainer trainer, CheckpointListener checkpoints, ArrayDataset data)
                throws Exception;
    }

    private static void train(Path folder, Optimizer optimizer, Body body) throws Exception {
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(folder).optEverySteps(1).build();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(optimizer)
                        .optDevices(new Device[] {Device.cpu()})
                        .addTrainingListeners(TrainingListener.Defaults.basic())
                        .addTrainingListeners(checkpoints);
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(ParallelMode.MIXED).setRanks(2).build();
        Engine.getInstance().setRandomSeed(5);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(4).build())
                            .add(ParallelDropout.builder().optRate(0.3f).build())
                            .add(
                                    ClassificationHead.builder()
                                            .setUnits(7)
                                            .optBatchShardedInput(true)
                                            .build()));
            NDArray x = manager.randomNormal(new Shape(12, 3));
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(x)
                            .optLabels(x.argMax(1))
                            .setSampling(4, true)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.setMetrics(new Metrics());
                trainer.initialize(new Shape(4, 3));
                body.run(trainer, checkpoints, data);
            }
        }
    }

    @Test(timeOut = 120_000)
    public void nothingIsChanged() throws Exception {
        Path folder = Files.createTempDirectory("broken");
        try {
            train(
                    folder,
                    adam(),
                    (trainer, all, data) -> EasyTrain.fit(trainer, 1, all.resumed(data), null));
            Path step = folder.resolve("step-00000003");
            String whole = Files.readString(step.resolve("index.json"));
            train(
                    folder,
                    adam(),
                    (trainer, checkpoints, data) -> {
                        List<float[]> before = values(trainer);
                        int count = 0;
                        for (String path : paths(valuesOf(parse(whole)))) {
                            for (String kind : List.of("removed", "string")) {
                                String name = path + " " + kind;
                                boolean removed = kind.equals("removed");
                                if (!OTHERWISE.contains(name)) {
                                    JsonElement to = removed ? null : new JsonPrimitive("hello");
                                    write(step, change(whole, path, to));
                                    String parent = path.substring(0, path.indexOf('.'));
                                    assertRefused(
                                            checkpoints,
                                            trainer,
                                            removed ? path + " is missing" : parent,
                                            name);
                                    assertSame(trainer, before, name);
                                    count++;
                                }
                            }
                        }
                        Assert.assertTrue(count > 35, "" + count);
                        write(step, parse(whole)); // the trainer is as good as new
                        Assert.assertTrue(checkpoints.resume(trainer));
                        Assert.assertEquals(checkpoints.getStep(), 3);
                    });
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    /** A number that no training can have. */
    @Test(timeOut = 60_000)
    public void moreBatchesThanThereAre() throws Exception {
        Path folder = Files.createTempDirectory("broken");
        try {
            train(
                    folder,
                    adam(),
                    (trainer, all, data) -> EasyTrain.fit(trainer, 1, all.resumed(data), null));
            Path step = folder.resolve("step-00000003");
            String whole = Files.readString(step.resolve("index.json"));
            train(
                    folder,
                    adam(),
                    (trainer, checkpoints, data) -> {
                        JsonPrimitive many = new JsonPrimitive(1_000_000_000_000_000_000L);
                        write(step, change(whole, "training.data.batches", many));
                        Assert.assertTrue(checkpoints.resume(trainer)); // and ends
                        String message =
                                Assert.expectThrows(
                                                IllegalArgumentException.class,
                                                () ->
                                                        EasyTrain.fit(
                                                                trainer,
                                                                1,
                                                                checkpoints.resumed(data),
                                                                null))
                                        .getMessage();
                        Assert.assertTrue(message.contains("the training set has 3"), message);
                    });
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static Optimizer adam() {
        return Optimizer.adam().build();
    }

    private static void assertRefused(
            CheckpointListener checkpoints, ParallelTrainer trainer, String what, String name) {
        String message =
                Assert.expectThrows(
                                name, CheckpointException.class, () -> checkpoints.resume(trainer))
                        .getMessage();
        Assert.assertTrue(
                message.contains("index.json cannot be used: values." + what)
                        && message.contains(". Of step 2 there is a whole one"),
                name + ": " + message);
    }

    private static List<float[]> values(ParallelTrainer trainer) {
        List<float[]> values = new ArrayList<>();
        for (Parameter parameter : trainer.getState().getParameters().getAll()) {
            try (NDArray copy =
                    trainer.getState()
                            .getParameters()
                            .getStores()
                            .get(1)
                            .getHeld(parameter)
                            .duplicate()) {
                values.add(copy.toFloatArray());
            }
        }
        return values;
    }

    private static void assertSame(ParallelTrainer trainer, List<float[]> before, String name) {
        Assert.assertEquals(trainer.getState().getStep(), 0, name);
        List<float[]> after = values(trainer);
        for (int i = 0; i < before.size(); i++) {
            Assert.assertTrue(Arrays.equals(after.get(i), before.get(i)), name);
        }
    }

    private static JsonObject parse(String index) {
        return JsonParser.parseString(index).getAsJsonObject();
    }

    private static JsonObject valuesOf(JsonObject index) {
        return index.getAsJsonObject("values");
    }

    private static JsonObject member(JsonObject object, String name) {
        return object.getAsJsonObject(name);
    }

    /** Returns the paths of the members of trainer, training and the position in the data. */
    private static List<String> paths(JsonObject values) {
        List<String> paths = new ArrayList<>();
        for (String path : List.of("trainer", "training", "training.data")) {
            JsonObject of = values;
            for (String name : path.split("\\.")) {
                of = member(of, name);
            }
            of.keySet().forEach(name -> paths.add(path + "." + name));
        }
        return paths;
    }

    private static JsonObject change(String whole, String path, JsonElement to) {
        JsonObject index = parse(whole);
        JsonObject parent = valuesOf(index);
        String[] names = path.split("\\.");
        for (int i = 0; i < names.length - 1; i++) {
            parent = member(parent, names[i]);
        }
        String last = names[names.length - 1];
        if (to == null) {
            parent.remove(last);
        } else {
            parent.add(last, to);
        }
        return index;
    }

    private static void write(Path step, JsonObject index) throws IOException {
        byte[] bytes = (index + "\n").getBytes(StandardCharsets.UTF_8);
        Files.write(step.resolve("index.json"), bytes);
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(bytes);
            Files.writeString(
                    step.resolve("index.json.sha256"),
                    HexFormat.of().formatHex(digest) + "  index.json\n");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}

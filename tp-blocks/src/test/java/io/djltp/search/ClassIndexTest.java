package io.djltp.search;

import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.EasyTrain;
import ai.djl.util.Utils;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.classes.TextFeatures;
import io.djltp.head.Margin;
import io.djltp.head.TopClasses;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** An index finds what an exact search finds, for classes that have neighbours. */
public class ClassIndexTest {

    private static final int CLASSES = 6000;
    private static final int GROUPS = 100;
    private static final int FEATURES = 24;
    private static final int ROWS = 200;

    private NDManager manager;
    private Path folder;

    @BeforeClass
    public void open() throws IOException {
        manager = NDManager.newBaseManager("PyTorch");
        manager.getEngine().setRandomSeed(5);
        folder = Files.createTempDirectory("index");
    }

    @AfterClass
    public void close() {
        manager.close();
        Utils.deleteQuietly(folder);
    }

    private NDArray normal(long... shape) {
        return manager.randomNormal(new Shape(shape));
    }

    /** Classes in groups: class c lies near the center of group c mod 100. */
    private Linear layer(Linear layer, NDArray weight) {
        layer.initialize(manager, DataType.FLOAT32, new Shape(1, FEATURES));
        layer.getParameters().get("weight").getArray().set(weight.toByteBuffer());
        layer.getParameters()
                .forEach(each -> each.getValue().getArray().setRequiresGradient(false));
        if (layer.getParameters().contains("bias")) {
            Parameter bias = layer.getParameters().get("bias");
            bias.getArray().set(normal(CLASSES).toByteBuffer());
        }
        return layer;
    }

    private NDArray weight() {
        NDArray groups = manager.arange(CLASSES).toType(DataType.INT64, false).mod(GROUPS);
        return normal(GROUPS, FEATURES).get(groups).add(normal(CLASSES, FEATURES).mul(0.4f));
    }

    private NDArray rows(NDArray weight) {
        NDArray classes = manager.arange(ROWS).mul(7).toType(DataType.INT64, false);
        return weight.get(classes).mul(3).add(normal(ROWS, FEATURES).mul(0.4f));
    }

    @Test(timeOut = 60_000)
    public void findsNearlyAllInFewCells() throws IOException {
        NDArray weight = weight();
        NDArray rows = rows(weight);
        Linear layer = layer(Linear.builder().setUnits(CLASSES).build(), weight);
        ClassIndex built = ClassIndex.build(layer, rows);
        Assert.assertTrue(built.getRecall() > 0.96, built.toString());
        Assert.assertTrue(built.getShare() < 0.1, built.toString());
        Path file = folder.resolve("plain.safetensors");
        built.save(file);
        ClassIndex index = ClassIndex.load(file);
        Assert.assertEquals(index.toString(), built.toString());
        try (ClassSearch exact = ClassSearch.of(layer);
                ClassSearch fast = ClassSearch.of(layer, index);
                TopClasses all = exact.classify(rows, 10);
                TopClasses found = fast.classify(rows, 10)) {
            long[] right = all.classes().toLongArray();
            long[] seen = found.classes().toLongArray();
            float[] logits = found.logits().toFloatArray();
            float[] expected = all.logits().toFloatArray();
            float[] shares = found.logProbabilities().toFloatArray();
            float[] rightShares = all.logProbabilities().toFloatArray();
            float[] differences = new float[ROWS];
            int best = 0;
            for (int i = 0; i < right.length; i += 10) {
                if (right[i] == seen[i]) {
                    best++;
                    Assert.assertEquals(logits[i], expected[i], 1e-4 * Math.abs(expected[i]));
                }
                differences[i / 10] = Math.abs(shares[i] - rightShares[i]);
            }
            Arrays.sort(differences);
            Assert.assertTrue(differences[ROWS * 9 / 10] < 0.1, Arrays.toString(differences));
            Assert.assertTrue(best > 0.98 * ROWS, "best of " + best + " rows");
            // more classes than the cells have: all are looked at
            try (TopClasses many = fast.topK(rows.get("0:3"), CLASSES - 1);
                    TopClasses every = exact.topK(rows.get("0:3"), CLASSES - 1)) {
                Assert.assertEquals(many.classes().toLongArray(), every.classes().toLongArray());
            }
        }
    }

    /** Of equal logits, that of the lower class comes first, as in an exact search. */
    @Test(timeOut = 60_000)
    public void tiesAreInOrder() {
        NDArray groups = manager.arange(CLASSES).toType(DataType.INT64, false).mod(GROUPS);
        NDArray weight = normal(GROUPS, FEATURES).get(groups);
        Linear layer = layer(Linear.builder().setUnits(CLASSES).optBias(false).build(), weight);
        NDArray rows = rows(weight);
        ClassIndex index = ClassIndex.build(layer, rows);
        try (ClassSearch exact = ClassSearch.of(layer);
                ClassSearch fast = ClassSearch.of(layer, index);
                TopClasses all = exact.topK(rows, 10);
                TopClasses found = fast.topK(rows, 10)) {
            Assert.assertEquals(index.getRecall(), 1.0);
            Assert.assertEquals(found.classes().toLongArray(), all.classes().toLongArray());
        }
    }

    @Test(timeOut = 60_000)
    public void marginsCompareAngles() {
        NDArray weight = weight().mul(manager.arange(1f, 1 + CLASSES).expandDims(1));
        ClassificationHead head =
                ClassificationHead.builder()
                        .setUnits(CLASSES)
                        .optBias(false)
                        .optMargin(Margin.arcFace(30, 0.3f))
                        .build();
        layer(head, weight);
        NDArray rows = rows(weight);
        ClassIndex index = ClassIndex.build(head, rows);
        Assert.assertTrue(index.getRecall() > 0.96, index.toString());
        Assert.assertTrue(index.getShare() < 0.1, index.toString());
    }

    @Test(timeOut = 60_000)
    public void wrongOnesAreRefused() throws IOException {
        NDArray weight = weight();
        Linear layer = layer(Linear.builder().setUnits(CLASSES).build(), weight);
        ClassIndex index = ClassIndex.build(layer, rows(weight));
        layer.getParameters().get("weight").getArray().muli(1.01f);
        Throwable other =
                Assert.expectThrows(
                        IllegalArgumentException.class, () -> ClassSearch.of(layer, index));
        Assert.assertTrue(other.getMessage().contains("Build it anew"), other.getMessage());
        Linear small = Linear.builder().setUnits(5).build();
        small.initialize(manager, DataType.FLOAT32, new Shape(1, FEATURES));
        Throwable size =
                Assert.expectThrows(
                        IllegalArgumentException.class, () -> ClassSearch.of(small, index));
        Assert.assertTrue(size.getMessage().contains("of 6000 classes"), size.getMessage());
        Assert.expectThrows(
                IllegalArgumentException.class, () -> ClassIndex.build(layer, normal(1, FEATURES)));
        layer.getParameters().get("weight").getArray().set(weight.mul(Float.NaN).toByteBuffer());
        Assert.expectThrows(RuntimeException.class, () -> ClassIndex.build(layer, rows(weight)));

        Path file = folder.resolve("damaged.safetensors");
        index.save(file);
        byte[] bytes = Files.readAllBytes(file);
        bytes[bytes.length / 2] ^= 4;
        Files.write(file, bytes);
        Throwable damaged = Assert.expectThrows(IOException.class, () -> ClassIndex.load(file));
        Assert.assertTrue(damaged.getMessage().contains("is damaged"), damaged.getMessage());
        Files.write(file, Arrays.copyOf(bytes, bytes.length / 2));
        Assert.expectThrows(IOException.class, () -> ClassIndex.load(file));
    }

    @DataProvider
    public Object[][] ranks() {
        return new Object[][] {{1}, {2}, {3}};
    }

    /** An index of a model trained on some ranks is used on others, with the same answers. */
    @Test(dataProvider = "ranks", timeOut = 120_000)
    public void isUsedOverRanks(int ranks) throws Exception {
        List<String> lines = new ArrayList<>();
        for (int i = 0; i < 1200; i++) {
            lines.add("c" + i % 300 + "\tbook " + i % 300 * 7919L + "-" + i % 300 * 104729L);
        }
        Path file = Files.write(folder.resolve("titles" + ranks + ".tsv"), lines);
        ClassData data =
                ClassData.builder(file).optTextFeatures(new TextFeatures(1 << 12, 3, 6, 1)).build();
        Path saved = folder.resolve("model" + ranks);
        try (ClassModel model = ClassModel.builder(data).optDim(16).build()) {
            try (ParallelTrainer trainer = model.newTrainer(ParallelConfig.mixed(ranks))) {
                EasyTrain.fit(trainer, 4, data.newDataset(100, true, 1), null);
            }
            model.buildIndex(data);
            model.save(saved);
        }
        String text = "book 55433-733103"; // c7
        Classifications alone;
        try (ClassModel model = ClassModel.load(saved)) {
            model.useIndex(saved);
            try (Predictor<String, Classifications> predictor =
                    model.newPredictor(String.class, 3)) {
                alone = predictor.predict(text);
            }
        }
        Assert.assertEquals(alone.best().getClassName(), "c7");
        for (int degree = 1; degree <= 3; degree++) {
            try (ZooModel<String, Classifications> model = criteria(saved, degree).loadModel();
                    Predictor<String, Classifications> predictor = model.newPredictor()) {
                Classifications found = predictor.predict(text);
                Assert.assertEquals(found.best().getClassName(), "c7");
                // the same estimate for the other cells; a whole network on one rank has none
                Assert.assertEquals(
                        found.best().getProbability(),
                        alone.best().getProbability(),
                        degree == 1 ? 0.05 : 1e-5);
            }
        }
        try (ClassModel model = ClassModel.load(saved)) { // without its index
            Path kept = saved.resolve("labels.txt/kept"); // what no file can replace
            Files.delete(kept.getParent());
            Files.createDirectories(kept);
            Assert.expectThrows(IOException.class, () -> model.save(saved));
            Assert.assertTrue(Files.exists(saved.resolve(ClassModel.INDEX)));
            Files.delete(kept);
            Files.delete(kept.getParent());
            model.save(saved);
        }
        Assert.assertFalse(Files.exists(saved.resolve(ClassModel.INDEX)));
    }

    private static Criteria<String, Classifications> criteria(Path saved, int degree) {
        return Criteria.builder()
                .setTypes(String.class, Classifications.class)
                .optModelPath(saved)
                .optArgument("tensor_parallel_degree", degree)
                .optArgument("index", true)
                .optArgument("topk", 3)
                .optTranslatorFactory(new ClassModel.TranslatorFactory())
                .build();
    }
}

package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.util.Utils;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelPredictor;

import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/** Data types and properties of a model folder come back as they were written. */
public class ModelFolderFormatsTest {

    private static final float[] BATCH = SmallModels.batch(3);

    private Path folder;
    private float[] expected;

    @BeforeMethod
    public void create() throws IOException {
        folder = Files.createTempDirectory("folder");
        expected =
                SmallModels.save(
                        folder, TwoLayersFactory.network(13), TwoLayersFactory.class, BATCH);
    }

    @AfterMethod(alwaysRun = true)
    public void delete() {
        Utils.deleteQuietly(folder);
    }

    private static float[] predict(ZooModel<NDList, NDList> model) throws Exception {
        try (Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager()) {
            NDList input = new NDList(manager.create(BATCH, new Shape(3, 7)));
            return predictor.predict(input).singletonOrThrow().toFloatArray();
        }
    }

    private static ModelFolder.Builder builder(Block network) {
        return ModelFolder.builder()
                .setNetwork(network)
                .setBlockFactory(TwoLayersFactory.class)
                .optArgument("hidden", "13");
    }

    /** Half the size, 8 bits of each number: 2^-8 of it at most. */
    @Test(timeOut = 60_000)
    public void bfloat16IsWrittenAndRead() throws Exception {
        long size = Files.size(folder.resolve(ModelFolder.WEIGHTS));
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 1)) {
            Path half = folder.resolve("half");
            builder(model.getBlock()).optDataType(DataType.BFLOAT16).build().save(half);
            assertTrue(Files.size(half.resolve(ModelFolder.WEIGHTS)) < 0.85 * size);
            float[] first = null;
            for (int degree = 1; degree <= 3; degree++) {
                try (ZooModel<NDList, NDList> halved = SmallModels.load(half, degree)) {
                    float[] actual = predict(halved);
                    for (int i = 0; i < actual.length; i++) {
                        assertEquals(actual[i], expected[i], 0.1);
                    }
                    first = first == null ? actual : first;
                    SmallModels.assertClose(actual, first);
                }
            }
        }
    }

    @Test
    public void weightsAreNoIntegers() {
        expectThrows(
                IllegalArgumentException.class,
                () -> ModelFolder.builder().optDataType(DataType.INT32));
    }

    @Test
    public void propertiesAreThoseThatWereGiven() throws Exception {
        String value = "C:\\temp\\d+ = ü\nhidden=3";
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 1)) {
            builder(model.getBlock())
                    .optArgument("#pattern: of", value)
                    .build()
                    .save(folder.resolve("again"));
        }
        Properties read = new Properties();
        try (InputStream is =
                Files.newInputStream(folder.resolve("again").resolve(ModelFolder.PROPERTIES))) {
            read.load(is);
        }
        assertEquals(read.getProperty("#pattern: of"), value);
        assertEquals(read.getProperty("hidden"), "13");
        assertEquals(read.getProperty("blockFactory"), TwoLayersFactory.class.getName());
    }

    @Test
    public void aDegreeOfBillionsIsRefusedAsAnother() {
        String message =
                expectThrows(
                                IllegalArgumentException.class,
                                () -> SmallModels.load(folder, Integer.MAX_VALUE))
                        .getMessage();
        assertTrue(message.contains("The model can be cut over 13 ranks at most"), message);
    }

    /** The weights lie on ranks: the model is left as it is, and the way is named. */
    @Test(timeOut = 60_000)
    public void whatTheRanksHaveIsNotTakenForAModelOfOneDevice() throws Exception {
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 2)) {
            expectThrows(
                    UnsupportedOperationException.class,
                    () -> model.getBlock().cast(DataType.FLOAT16));
            ParallelConfig ranks =
                    ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2).build();
            String message =
                    expectThrows(
                                    IllegalStateException.class,
                                    () ->
                                            new ParallelPredictor<>(
                                                            model, model.getTranslator(), ranks)
                                                    .predict(new NDList()))
                            .getMessage();
            assertTrue(message.contains("load it with degree 1"), message);
            SmallModels.assertClose(predict(model), expected);
        }
    }
}

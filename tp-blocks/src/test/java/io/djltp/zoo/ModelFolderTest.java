package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.util.Utils;

import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.StoredTensor;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.RankThreads;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;

/** A model folder has the same outputs at any degree, and what is wrong is said at once. */
public class ModelFolderTest {

    private static final float[] BATCH = SmallModels.batch(3);

    private Path root;
    private Path folder;
    private float[] expected;

    @BeforeClass
    public void saveModel() throws IOException {
        root = Files.createTempDirectory("zoo");
        folder = root.resolve("two-layers");
        expected =
                SmallModels.save(
                        folder, TwoLayersFactory.network(13), TwoLayersFactory.class, BATCH);
    }

    @AfterClass
    public void delete() {
        Utils.deleteQuietly(root);
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{1}, {2}, {"3"}, {4.0}, {"max"}};
    }

    private static float[] predict(ZooModel<NDList, NDList> model) throws Exception {
        try (Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDArray input = manager.create(BATCH, new Shape(3, 7));
            NDList output = predictor.predict(new NDList(input));
            assertTrue(input.toFloatArray().length == BATCH.length); // still the caller's
            return output.singletonOrThrow().toFloatArray();
        }
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void theOutputsAreTheSame(Object degree) throws Exception {
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, degree)) {
            SmallModels.assertClose(predict(model), expected);
            SmallModels.assertClose(predict(model), expected);
        }
    }

    @Test(timeOut = 60_000)
    public void everyRankReadsItsShardsOnly() throws Exception {
        Map<String, StoredTensor> tensors;
        try (SafetensorsFile file = SafetensorsFile.open(folder.resolve(ModelFolder.WEIGHTS))) {
            tensors = file.getTensors();
        }
        for (int ranks = 2; ranks <= 4; ranks++) {
            try (ZooModel<NDList, NDList> model = SmallModels.load(folder, ranks)) {
                RankedNetwork network = (RankedNetwork) model.getBlock();
                assertEquals(network.getRanks(), ranks);
                long all = tensors.values().stream().mapToLong(StoredTensor::bytes).sum();
                assertEquals(network.getBytesRead(), all); // and nothing twice
            }
        }
    }

    /** A factory that gives its network values. */
    public static final class WithValues extends ParallelBlockFactory {

        private static final long serialVersionUID = 1L;

        /** {@inheritDoc} */
        @Override
        protected Block newNetwork(Path folder, Map<String, ?> arguments) {
            Block network = TwoLayersFactory.network(13);
            network.initialize(
                    NDManager.newBaseManager(), DataType.FLOAT32, TwoLayersFactory.INPUT);
            return network;
        }

        /** {@inheritDoc} */
        @Override
        protected Shape[] getInputShapes(Map<String, ?> arguments) {
            return new Shape[] {TwoLayersFactory.INPUT};
        }
    }

    @Test(timeOut = 60_000)
    public void aNetworkWithValuesGetsThoseOfTheFile() throws Exception {
        Path values = root.resolve("values");
        float[] outputs =
                SmallModels.save(values, TwoLayersFactory.network(13), WithValues.class, BATCH);
        for (int degree = 1; degree <= 2; degree++) {
            try (ZooModel<NDList, NDList> model = SmallModels.load(values, degree)) {
                SmallModels.assertClose(predict(model), outputs);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void theDegreeOfTheFolderIsThatOfWhoAsksForNone() throws Exception {
        Path copy = root.resolve("with-degree");
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 1)) {
            ModelFolder.builder()
                    .setNetwork(model.getBlock())
                    .setBlockFactory(TwoLayersFactory.class)
                    .optDegree("3")
                    .build()
                    .save(copy);
        }
        try (ZooModel<NDList, NDList> model = SmallModels.criteria(copy).build().loadModel()) {
            assertEquals(((RankedNetwork) model.getBlock()).getRanks(), 3);
            SmallModels.assertClose(predict(model), expected);
        }
        try (ZooModel<NDList, NDList> model = SmallModels.load(copy, 1)) {
            assertFalse(model.getBlock() instanceof RankedNetwork);
        }
    }

    @Test(timeOut = 60_000)
    public void aModelOverRanksIsSavedAsDjlDoes() throws Exception {
        Path saved = root.resolve("saved");
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 3)) {
            model.save(saved, "saved");
        }
        try (Model plain = Model.newInstance("saved", Device.cpu())) {
            plain.setBlock(TwoLayersFactory.network(13));
            plain.load(saved, "saved");
            Path again = root.resolve("again");
            ModelFolder.builder()
                    .setNetwork(plain.getBlock())
                    .setBlockFactory(TwoLayersFactory.class)
                    .build()
                    .save(again);
            assertEquals(
                    Files.readAllBytes(again.resolve(ModelFolder.WEIGHTS)),
                    Files.readAllBytes(folder.resolve(ModelFolder.WEIGHTS)));
        }
    }

    @Test(timeOut = 60_000)
    public void aModelOverRanksIsNotTrainedButOneOfDegreeOneIs() throws Exception {
        DefaultTrainingConfig config = new DefaultTrainingConfig(Loss.l2Loss());
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 2);
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            String message =
                    expectThrows(
                                    IllegalStateException.class,
                                    () ->
                                            model.getBlock()
                                                    .forward(
                                                            null,
                                                            new NDList(manager.ones(new Shape(7))),
                                                            true))
                            .getMessage();
            assertTrue(message.contains(TensorParallelDegree.NAME + " 1"), message);
        }
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2).build();
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 1)) {
            for (Parameter parameter : model.getBlock().getParameters().values()) {
                assertFalse(parameter.getArray().hasGradient()); // a predictor records nothing
                assertTrue(parameter.requiresGradient());
            }
            try (ParallelTrainer trainer =
                            new ParallelTrainer(model, config.optDevices(cpu()), ranks);
                    NDManager manager = trainer.getManager().newSubManager()) {
                trainer.initialize(new Shape(3, 7));
                NDList output =
                        trainer.evaluate(new NDList(manager.create(BATCH, new Shape(3, 7))));
                SmallModels.assertClose(output.singletonOrThrow().toFloatArray(), expected);
            }
        }
    }

    private static Device[] cpu() {
        return new Device[] {Device.cpu()};
    }

    private Path copy(String name) throws IOException {
        Path copy = root.resolve(name);
        Files.createDirectories(copy);
        for (String file : new String[] {ModelFolder.WEIGHTS, ModelFolder.PROPERTIES}) {
            Files.copy(folder.resolve(file), copy.resolve(file));
        }
        return copy;
    }

    private static String refusal(Class<? extends Exception> type, Path folder, Object degree) {
        return expectThrows(type, () -> SmallModels.load(folder, degree).close()).getMessage();
    }

    @DataProvider
    public static Object[][] wrongDegrees() {
        return new Object[][] {{"two"}, {0}, {-1}, {"1.5"}, {""}, {"99999999999"}};
    }

    @Test(dataProvider = "wrongDegrees", timeOut = 60_000)
    public void whatIsNoDegreeIsRefused(Object degree) {
        String message = refusal(IllegalArgumentException.class, folder, degree);
        assertTrue(message.contains("1 or more, or max, not " + degree), message);
    }

    @Test(timeOut = 60_000)
    public void moreRanksThanCanBeCutAreRefused() {
        String message = refusal(IllegalArgumentException.class, folder, 14);
        assertTrue(message.contains("tensor_parallel_degree 14"), message);
        assertTrue(message.contains("over 13 ranks at most"), message);
    }

    @Test(timeOut = 60_000)
    public void aModelWithoutParallelLayersHasDegreeOne() throws Exception {
        Path plain = root.resolve("plain");
        float[] outputs =
                SmallModels.save(
                        plain, Linear.builder().setUnits(5).build(), PlainFactory.class, BATCH);
        String message = refusal(IllegalArgumentException.class, plain, 2);
        assertTrue(message.contains("no layer that can be cut"), message);
        try (ZooModel<NDList, NDList> model = SmallModels.load(plain, "max")) {
            SmallModels.assertClose(predict(model), outputs);
        }
    }

    @Test(timeOut = 60_000)
    public void aPlanCutsAModelOfDjlsOwnBlocks() throws Exception {
        Path planned = root.resolve("planned");
        float[] outputs =
                SmallModels.save(
                        planned, ParallelizedFactory.plain(), ParallelizedFactory.class, BATCH);
        for (int degree = 1; degree <= 3; degree++) {
            try (ZooModel<NDList, NDList> model = SmallModels.load(planned, degree)) {
                SmallModels.assertClose(predict(model), outputs);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void whatIsWrongWithTheFileIsSaid() throws Exception {
        for (int degree = 1; degree <= 2; degree++) {
            Path missing = copy("missing" + degree);
            Files.delete(missing.resolve(ModelFolder.WEIGHTS));
            String message = refusal(IOException.class, missing, degree);
            assertTrue(message.contains("no model.safetensors in"), message);

            Path corrupt = copy("corrupt" + degree);
            byte[] bytes = Files.readAllBytes(corrupt.resolve(ModelFolder.WEIGHTS));
            byte[] half = Arrays.copyOf(bytes, bytes.length / 2);
            Files.write(corrupt.resolve(ModelFolder.WEIGHTS), half);
            message = refusal(IOException.class, corrupt, degree);
            assertTrue(message.contains("is not a whole safetensors file"), message);

            Criteria<NDList, NDList> other =
                    SmallModels.criteria(folder)
                            .optArgument("hidden", 12)
                            .optArgument(TensorParallelDegree.NAME, degree)
                            .build();
            message = expectThrows(IOException.class, other::loadModel).getMessage();
            assertTrue(message.contains("does not fit the model"), message);
            assertTrue(message.contains("weight (12, 7) is not "), message);
            assertTrue(message.contains("weight (13, 7)"), message);
        }
    }

    @Test(timeOut = 60_000)
    public void aFileOfDjlBesideItIsNotTaken() throws Exception {
        Path both = copy("both");
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 1)) {
            model.save(both, "both");
        }
        Path properties = both.resolve(ModelFolder.PROPERTIES);
        String text = Files.readString(properties);
        RankThreads ranks = new RankThreads();
        Criteria<NDList, NDList> asking =
                SmallModels.criteria(both)
                        .optArgument(TensorParallelDegree.NAME, 2)
                        .optOption("hasParameter", "true")
                        .build();
        String message = expectThrows(IOException.class, asking::loadModel).getMessage();
        assertTrue(message.contains("optOption(\"hasParameter\", ..)"), message);
        ranks.assertCount(0);
        // with a file that DJL would take, and with none, where DJL would fail
        for (String option : new String[] {"", "option.hasParameter=true\n"}) {
            Files.writeString(properties, text.replace("option.hasParameter=false\n", option));
            for (int degree = 1; degree <= 2; degree++) {
                message = refusal(IOException.class, both, degree);
                assertTrue(message.contains("write option.hasParameter=false into"), message);
                ranks.assertCount(0);
            }
            Files.deleteIfExists(both.resolve("both-0000.params"));
        }
    }

    @Test
    public void aDegreeThatIsNoneIsNotWritten() {
        for (String degree : new String[] {"zwei", "0", "-1", "1.5", "", "MAX"}) {
            String message =
                    expectThrows(
                                    IllegalArgumentException.class,
                                    () -> ModelFolder.builder().optDegree(degree))
                            .getMessage();
            assertTrue(message.endsWith("1 or more, or max, not " + degree), message);
        }
        ModelFolder.builder().optDegree("2").optDegree("max");
    }

    /** At any degree the output of no rows, and the ranks go on. */
    @Test(timeOut = 60_000)
    public void aBatchOfNoRowsHasAnOutputOfNoRows() throws Exception {
        for (int degree = 1; degree <= 2; degree++) {
            try (ZooModel<NDList, NDList> model = SmallModels.load(folder, degree);
                    Predictor<NDList, NDList> predictor = model.newPredictor();
                    NDManager manager = NDManager.newBaseManager()) {
                NDArray none =
                        predictor.predict(new NDList(manager.create(new Shape(0, 7)))).head();
                NDArray two = predictor.predict(new NDList(manager.ones(new Shape(2, 7)))).head();
                assertEquals(none.getShape(), new Shape(0, two.getShape().get(1)));
                assertEquals(none.getDataType(), DataType.FLOAT32);
                assertEquals(two.getShape().get(0), 2);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void halfPrecisionIsConvertedBack() throws Exception {
        Path half = root.resolve("half");
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 1)) {
            ModelFolder.builder()
                    .setNetwork(model.getBlock())
                    .setBlockFactory(TwoLayersFactory.class)
                    .optDataType(DataType.FLOAT16)
                    .build()
                    .save(half);
        }
        float[] serial;
        try (ZooModel<NDList, NDList> model = SmallModels.load(half, 1)) {
            serial = predict(model);
        }
        try (ZooModel<NDList, NDList> model = SmallModels.load(half, 3)) {
            SmallModels.assertClose(predict(model), serial);
            long bytes = ((RankedNetwork) model.getBlock()).getBytesRead();
            assertEquals(bytes, 2 * (13 * 13 + 5)); // 13 hidden features of 13 numbers, 5 biases
        }
    }

    @Test(timeOut = 60_000)
    public void whatHalfPrecisionCannotHoldIsRefused() throws Exception {
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 1)) {
            NDArray weight = model.getBlock().getParameters().valueAt(0).getArray();
            weight.addi(3.4e38f);
            for (DataType type : new DataType[] {DataType.FLOAT16, DataType.BFLOAT16}) {
                ModelFolder half =
                        ModelFolder.builder()
                                .setNetwork(model.getBlock())
                                .setBlockFactory(TwoLayersFactory.class)
                                .optDataType(type)
                                .build();
                Path unwritten = root.resolve("unwritten");
                String message =
                        expectThrows(IOException.class, () -> half.save(unwritten)).getMessage();
                assertTrue(message.contains("float16 cannot hold, such as 3.4"), message);
                assertFalse(Files.exists(unwritten.resolve(ModelFolder.WEIGHTS)));
            }
        }
    }
}

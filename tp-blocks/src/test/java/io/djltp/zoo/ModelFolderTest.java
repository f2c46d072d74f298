package io.djltp.zoo;

import static io.djltp.testing.Refusals.assertContains;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.logged;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.zoo.SmallModels.assertClose;
import static io.djltp.zoo.SmallModels.criteria;
import static io.djltp.zoo.SmallModels.load;

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
import ai.djl.nn.Parameter;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.loss.Loss;

import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.internal.safetensors.StoredTensor;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.RankThreads;
import io.djltp.testing.Ranks;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelPredictor;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;

/** A model folder has the same outputs at any degree, and what is wrong is said at once. */
public class ModelFolderTest {

    private static final float[] BATCH = SmallModels.batch(3);
    private static final ParallelConfig TWO = Ranks.config(ParallelMode.TENSOR, 2);

    private Path root;
    private Path folder;
    private float[] expected;

    @BeforeMethod
    public void saveModel() throws IOException {
        root = TestFolder.create();
        folder = root.resolve("two-layers");
        expected = SmallModels.save(folder, "two layers", BATCH);
    }

    private static float[] predict(ZooModel<NDList, NDList> model) throws Exception {
        return SmallModels.predict(model, BATCH);
    }

    @DataProvider
    public static Object[][] networks() {
        return new Object[][] {
            {"two layers", new Object[] {1, 2, "3", 4.0, "max"}},
            {"values", new Object[] {1, 2}}, // it gets those of the file
            {"planned", new Object[] {1, 2, 3}},
            {"plain", new Object[] {1, "max"}}
        };
    }

    @Test(dataProvider = "networks", timeOut = 60_000)
    public void theOutputsAreTheSame(String network, Object[] degrees) throws Exception {
        float[] outputs = SmallModels.save(root.resolve("n"), network, BATCH);
        for (Object degree : degrees) {
            try (ZooModel<NDList, NDList> model = load(root.resolve("n"), degree)) {
                assertClose(predict(model), outputs);
                assertClose(predict(model), outputs);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void everyRankReadsItsShardsOnly() throws Exception {
        Map<String, StoredTensor> tensors;
        try (SafetensorsFile file = SafetensorsFile.open(folder.resolve(ModelFolder.WEIGHTS))) {
            tensors = file.getTensors();
        }
        long all = tensors.values().stream().mapToLong(StoredTensor::bytes).sum();
        for (int ranks = 2; ranks <= 4; ranks++) {
            try (ZooModel<NDList, NDList> model = load(folder, ranks)) {
                RankedNetwork network = (RankedNetwork) model.getBlock();
                assertEquals(network.getRanks(), ranks);
                assertEquals(network.getBytesRead(), all); // and nothing twice
            }
        }
    }

    /** A model that nobody trains loses nothing: a warning would be a false one. */
    @Test(timeOut = 60_000)
    public void closingOnRanksSaysNothing() {
        String logged =
                logged(
                        () -> {
                            try (ZooModel<NDList, NDList> model = load(folder, 2)) {
                                predict(model);
                            }
                        });
        assertFalse(logged.contains("ERROR") || logged.contains(" are lost"), logged);
    }

    @Test(timeOut = 60_000)
    public void theDegreeOfTheFolderIsThatOfWhoAsksForNone() throws Exception {
        Path copy = root.resolve("with-degree");
        try (ZooModel<NDList, NDList> model = load(folder, 1)) {
            SmallModels.folder(model.getBlock()).optDegree("3").build().save(copy);
        }
        try (ZooModel<NDList, NDList> model = criteria(copy).build().loadModel()) {
            assertEquals(((RankedNetwork) model.getBlock()).getRanks(), 3);
            assertClose(predict(model), expected);
        }
        try (ZooModel<NDList, NDList> model = load(copy, 1)) {
            assertFalse(model.getBlock() instanceof RankedNetwork);
        }
    }

    @Test(timeOut = 60_000)
    public void aModelOverRanksIsSavedAsDjlDoes() throws Exception {
        Path saved = root.resolve("saved");
        try (ZooModel<NDList, NDList> model = load(folder, 3)) {
            model.save(saved, "saved");
        }
        try (Model plain = Model.newInstance("saved", Device.cpu())) {
            plain.setBlock(SmallModels.network(13));
            plain.load(saved, "saved");
            Path again = root.resolve("again");
            SmallModels.folder(plain.getBlock()).build().save(again);
            assertEquals(
                    Files.mismatch(
                            again.resolve(ModelFolder.WEIGHTS),
                            folder.resolve(ModelFolder.WEIGHTS)),
                    -1);
        }
    }

    /** The weights are on the ranks: the model is left as it is, and the way is named. */
    @Test(timeOut = 60_000)
    public void aModelOverRanksIsForPredictionsOnly() throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, 2);
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDList input = new NDList(manager.ones(new Shape(7)));
            throwsState(
                    () -> model.getBlock().forward(null, input, true),
                    TensorParallelDegree.NAME + " 1");
            expect(
                    UnsupportedOperationException.class,
                    () -> model.getBlock().cast(DataType.FLOAT16),
                    TensorParallelDegree.NAME + " 1");
            throwsState(
                    () -> new ParallelPredictor<>(model, model.getTranslator(), TWO),
                    "load it with degree 1");
            assertClose(predict(model), expected);
        }
    }

    @Test(timeOut = 60_000)
    public void aModelOfDegreeOneIsTrained() throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, 1)) {
            for (Parameter parameter : model.getBlock().getParameters().values()) {
                assertFalse(parameter.getArray().hasGradient()); // a predictor records nothing
                assertTrue(parameter.requiresGradient());
            }
            try (ParallelTrainer trainer =
                            new ParallelTrainer(model, Configs.of(Loss.l2Loss()), TWO);
                    NDManager manager = trainer.getManager().newSubManager()) {
                trainer.initialize(new Shape(3, 7));
                NDList batch = new NDList(manager.create(BATCH, new Shape(3, 7)));
                assertClose(trainer.evaluate(batch).head().toFloatArray(), expected);
            }
        }
    }

    private Path copy(String name) throws IOException {
        Path copy = Files.createDirectories(root.resolve(name));
        for (String file : new String[] {ModelFolder.WEIGHTS, ModelFolder.PROPERTIES}) {
            Files.copy(folder.resolve(file), copy.resolve(file));
        }
        return copy;
    }

    private static void refused(
            Class<? extends Exception> type, Path folder, Object degree, String... parts) {
        expect(type, () -> load(folder, degree).close(), parts);
    }

    @Test(timeOut = 60_000)
    public void whatIsNoDegreeIsRefused() throws Exception {
        for (Object degree : new Object[] {"two", 0, -1, "1.5", "", "99999999999"}) {
            refused(IllegalArgumentException.class, folder, degree, "1 or more, or max, not ");
        }
        for (String degree : new String[] {"zwei", "0", "-1", "1.5", "", "MAX"}) {
            throwsArgument(
                    () -> ModelFolder.builder().optDegree(degree),
                    "1 or more, or max, not " + degree);
        }
        ModelFolder.builder().optDegree("2").optDegree("max");
        for (int degree : new int[] {14, Integer.MAX_VALUE}) {
            refused(
                    IllegalArgumentException.class,
                    folder,
                    degree,
                    "tensor_parallel_degree " + degree,
                    "The model can be cut over 13 ranks at most");
        }
        try (Model model = Model.newInstance("refused")) {
            Map<String, ?> zero = Map.of(TensorParallelDegree.NAME, 0);
            throwsArgument(
                    () -> new SmallModels.Factory().newBlock(model, folder, zero), "1 or more");
            assertFalse(model.getNDManager().isOpen()); // DJL's loader would leave it open
        }
        SmallModels.save(root.resolve("plain"), "plain", BATCH);
        Path plain = root.resolve("plain");
        refused(IllegalArgumentException.class, plain, 2, "no layer that can be cut");
        SmallModels.save(root.resolve("heads"), "heads", BATCH);
        refused(
                IllegalArgumentException.class,
                root.resolve("heads"),
                4,
                "along the axis data. The model can be cut over 3 ranks at most: choose");
    }

    @Test(timeOut = 60_000)
    public void whatIsWrongWithTheFileIsSaid() throws Exception {
        for (int degree = 1; degree <= 2; degree++) {
            Path missing = copy("missing" + degree);
            Files.delete(missing.resolve(ModelFolder.WEIGHTS));
            refused(IOException.class, missing, degree, "no model.safetensors in");

            Path corrupt = copy("corrupt" + degree);
            byte[] bytes = Files.readAllBytes(corrupt.resolve(ModelFolder.WEIGHTS));
            byte[] half = Arrays.copyOf(bytes, bytes.length / 2);
            Files.write(corrupt.resolve(ModelFolder.WEIGHTS), half);
            refused(IOException.class, corrupt, degree, "is not a whole safetensors file");

            Criteria<NDList, NDList> other =
                    criteria(folder)
                            .optArgument("hidden", 12)
                            .optArgument(TensorParallelDegree.NAME, degree)
                            .build();
            expect(
                    IOException.class,
                    other::loadModel,
                    "does not fit the model",
                    "weight (12, 7) is not ",
                    "weight (13, 7)");
        }
    }

    @Test(timeOut = 60_000)
    public void aFileOfDjlBesideItIsNotTaken() throws Exception {
        Path both = copy("both");
        try (ZooModel<NDList, NDList> model = load(folder, 1)) {
            model.save(both, "both");
        }
        Path properties = both.resolve(ModelFolder.PROPERTIES);
        String text = Files.readString(properties);
        RankThreads ranks = new RankThreads();
        Criteria<NDList, NDList> asking =
                criteria(both)
                        .optArgument(TensorParallelDegree.NAME, 2)
                        .optOption("hasParameter", "true")
                        .build();
        expect(IOException.class, asking::loadModel, "optOption(\"hasParameter\", ..)");
        ranks.assertCount(0);
        // with a file that DJL would take, and with none, where DJL would fail
        for (String option : new String[] {"", "option.hasParameter=true\n"}) {
            Files.writeString(properties, text.replace("option.hasParameter=false\n", option));
            for (int degree = 1; degree <= 2; degree++) {
                refused(IOException.class, both, degree, "write option.hasParameter=false into");
                ranks.assertCount(0);
            }
            Files.deleteIfExists(both.resolve("both-0000.params"));
        }
    }

    /** At any degree the output of no rows, and the ranks go on. */
    @Test(timeOut = 60_000)
    public void aBatchOfNoRowsHasAnOutputOfNoRows() throws Exception {
        for (int degree = 1; degree <= 2; degree++) {
            try (ZooModel<NDList, NDList> model = load(folder, degree);
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

    @DataProvider
    public static Object[][] halves() {
        return new Object[][] {{DataType.FLOAT16}, {DataType.BFLOAT16}};
    }

    /** Half the size; of bfloat16 8 bits of each number are left, 2^-8 of it at most. */
    @Test(dataProvider = "halves", timeOut = 60_000)
    public void sixteenBitsAreConvertedBack(DataType type) throws Exception {
        Path half = root.resolve("half");
        try (ZooModel<NDList, NDList> model = load(folder, 1)) {
            SmallModels.folder(model.getBlock()).optDataType(type).build().save(half);
        }
        long size = Files.size(folder.resolve(ModelFolder.WEIGHTS));
        assertTrue(Files.size(half.resolve(ModelFolder.WEIGHTS)) < 0.85 * size);
        float[] first = null;
        for (int degree = 1; degree <= 3; degree++) {
            try (ZooModel<NDList, NDList> model = load(half, degree)) {
                float[] actual = predict(model);
                assertEquals(actual, expected, 0.1f);
                first = first == null ? actual : first;
                assertClose(actual, first);
                if (degree > 1) { // 13 hidden features of 13 numbers, 5 biases
                    long bytes = ((RankedNetwork) model.getBlock()).getBytesRead();
                    assertEquals(bytes, 2 * (13 * 13 + 5));
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void aModelIsReplacedByWhoSaysSo() throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, 1)) {
            ModelFolder.Builder builder = SmallModels.folder(model.getBlock()).optDegree("2");
            expect(
                    FileAlreadyExistsException.class,
                    () -> builder.build().save(folder),
                    "there is a model already .. optOverwrite(true)");
            assertEquals(ModelFolder.properties(folder).getProperty("network"), "two layers");
            builder.optOverwrite(true).build().save(folder);
        }
        try (ZooModel<NDList, NDList> model = criteria(folder).build().loadModel()) {
            assertEquals(((RankedNetwork) model.getBlock()).getRanks(), 2);
        }
    }

    @Test(dataProvider = "halves", timeOut = 60_000)
    public void whatSixteenBitsCannotHoldIsRefused(DataType type) throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, 1)) {
            model.getBlock().getParameters().valueAt(0).getArray().addi(3.4e38f);
            ModelFolder half = SmallModels.folder(model.getBlock()).optDataType(type).build();
            Path unwritten = root.resolve("unwritten");
            expect(
                    IOException.class,
                    () -> half.save(unwritten),
                    "float16 cannot hold, such as 3.4");
            assertFalse(Files.exists(unwritten.resolve(ModelFolder.WEIGHTS)));
        }
        for (DataType other : new DataType[] {DataType.INT64, null}) {
            String message =
                    expectThrows(
                                    IllegalArgumentException.class,
                                    () -> ModelFolder.builder().optDataType(other))
                            .getMessage();
            assertContains(message, "Weights are written as floating point numbers, not ");
        }
    }

    @Test
    public void propertiesAreThoseThatWereGiven() throws Exception {
        String value = "C:\\temp\\d+ = ü\nhidden=3";
        Path again = root.resolve("again");
        try (ZooModel<NDList, NDList> model = load(folder, 1)) {
            SmallModels.folder(model.getBlock())
                    .optArgument("hidden", "13")
                    .optArgument("#pattern: of", value)
                    .build()
                    .save(again);
        }
        assertEquals(
                ModelFolder.properties(again),
                Map.of(
                        "#pattern: of",
                        value,
                        "hidden",
                        "13",
                        "engine",
                        "PyTorch",
                        "option.hasParameter",
                        "false",
                        "blockFactory",
                        SmallModels.Factory.class.getName()));
    }

    @DataProvider
    public static Object[][] devices() {
        int processors = Runtime.getRuntime().availableProcessors();
        return new Object[][] {
            {"max", Device.gpu(0), 4, 4},
            {"max", Device.gpu(1), 4, 3}, // from the model's on
            {"max", Device.gpu(0), 16, 13}, // the model's limit
            {"max", Device.cpu(), 0, Math.min(processors, 13)},
            {"4", Device.gpu(0), 4, 4},
            {"13", Device.cpu(), 0, 13}, // more than processors
        };
    }

    private static int resolve(String degree, Device device, int gpus) {
        return TensorParallelDegree.resolve(
                degree, device, gpus, SmallModels.network(13), SmallModels.INPUT);
    }

    /**
     * What a degree means on a machine with GPUs, which a number of them stands for, and without.
     */
    @Test(dataProvider = "devices")
    public void aDegreeIsThatOfTheDevices(String degree, Device device, int gpus, int ranks) {
        assertEquals(resolve(degree, device, gpus), ranks);
    }

    @Test
    public void moreRanksThanGpusAreRefused() throws IOException {
        throwsArgument(
                () -> resolve("4", Device.gpu(1), 4),
                "tensor_parallel_degree 4 needs as many GPUs, and from gpu(1) on there are 3",
                "choose 1 to 3, or max");
        assertEquals(TensorParallelDegree.of(Map.of(), folder), "1");
    }
}

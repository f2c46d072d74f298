package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.TranslateException;
import ai.djl.util.Utils;

import io.djltp.testing.RankThreads;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Several predictors of one model at once, the end of the model, and nothing left behind. */
public class PredictorsAtOnceTest {

    private static final int THREADS = 4;
    private static final float[] BATCH = SmallModels.batch(2);

    private Path folder;
    private float[] expected;
    private ExecutorService threads;
    private RankThreads ranks;

    @BeforeClass
    public void saveModel() throws IOException {
        ranks = new RankThreads();
        folder = Files.createTempDirectory("zoo");
        expected =
                SmallModels.save(
                        folder, TwoLayersFactory.network(13), TwoLayersFactory.class, BATCH);
        threads = Executors.newFixedThreadPool(THREADS);
    }

    @AfterClass
    public void delete() {
        threads.shutdownNow();
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{1}, {2}, {3}};
    }

    private static float[] predict(Predictor<NDList, NDList> predictor) throws Exception {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDList input = new NDList(manager.create(BATCH, new Shape(2, 7)));
            return predictor.predict(input).singletonOrThrow().toFloatArray();
        }
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void allGetTheirOutputs(int degree) throws Exception {
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, degree);
                Predictor<NDList, NDList> shared = model.newPredictor()) {
            List<Future<?>> results = new ArrayList<>();
            for (int i = 0; i < THREADS; i++) {
                boolean own = i % 2 == 0;
                results.add(
                        threads.submit(
                                () -> {
                                    Predictor<NDList, NDList> predictor =
                                            own ? model.newPredictor() : shared;
                                    for (int k = 0; k < 25; k++) {
                                        SmallModels.assertClose(predict(predictor), expected);
                                    }
                                    if (own) {
                                        predictor.close();
                                    }
                                    return null;
                                }));
            }
            for (Future<?> result : results) {
                result.get();
            }
        }
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void nothingHangsWhenTheModelIsClosed(int degree) throws Exception {
        ZooModel<NDList, NDList> model = SmallModels.load(folder, degree);
        CountDownLatch running = new CountDownLatch(degree == 1 ? 0 : THREADS);
        List<Future<?>> results = new ArrayList<>();
        for (int i = 0; i < (degree == 1 ? 0 : THREADS); i++) {
            results.add(
                    threads.submit(
                            () -> {
                                Predictor<NDList, NDList> predictor = model.newPredictor();
                                predict(predictor);
                                running.countDown();
                                while (true) {
                                    SmallModels.assertClose(predict(predictor), expected);
                                }
                            }));
        }
        running.await();
        model.close();
        for (Future<?> result : results) {
            try {
                result.get();
            } catch (ExecutionException e) {
                assertTrue(e.getCause() instanceof Exception, "" + e.getCause()); // no wrong output
            }
        }
        ranks.assertCount(0);
    }

    @Test(timeOut = 60_000)
    public void loadingAndClosingLeavesNothingBehind() throws Exception {
        loadAndClose();
        long before = arrays();
        for (int i = 0; i < 5; i++) {
            loadAndClose();
            ranks.assertCount(0);
        }
        assertEquals(arrays(), before);
    }

    private void loadAndClose() throws Exception {
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, 3);
                Predictor<NDList, NDList> predictor = model.newPredictor()) {
            ranks.assertCount(3);
            long before = arrays();
            predict(predictor);
            assertEquals(arrays(), before); // nor does a prediction
        }
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void aWrongInputIsRefusedAndTheModelGoesOn(int degree) throws Exception {
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, degree);
                Predictor<NDList, NDList> predictor = model.newPredictor();
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDArray right = manager.ones(new Shape(2, 7));
            NDArray integers = manager.ones(new Shape(2, 7), DataType.INT32);
            refused(predictor, "axis has length 7", manager.ones(new Shape(2, 6)));
            refused(predictor, "takes one input, .* gets .*float32 .*, float32", right, right);
            refused(predictor, "floating point features, .*int32 \\(2, 7\\)", integers);
        }
    }

    private void refused(Predictor<NDList, NDList> predictor, String why, NDArray... wrong)
            throws Exception {
        TranslateException e =
                expectThrows(TranslateException.class, () -> predictor.predict(new NDList(wrong)));
        assertTrue(e.getMessage().matches("(?s).*" + why + ".*"), e.getMessage());
        SmallModels.assertClose(predict(predictor), expected);
    }

    @Test(timeOut = 60_000)
    public void aModelThatIsRefusedLeavesNoRanks() throws InterruptedException {
        for (Object degree : new Object[] {14, "none"}) {
            try (ZooModel<NDList, NDList> model = SmallModels.load(folder, degree)) {
                assertTrue(false, "loaded " + model);
            } catch (Exception e) {
                assertTrue(e instanceof IllegalArgumentException, "" + e);
            }
        }
        ranks.assertCount(0);
    }

    /** Returns the number of all arrays of the process. */
    private static long arrays() {
        try (NDManager manager = NDManager.newBaseManager()) {
            return manager.getParentManager().getManagedArrays().size();
        }
    }
}

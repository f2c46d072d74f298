package io.djltp.zoo;

import static io.djltp.zoo.SmallModels.assertClose;
import static io.djltp.zoo.SmallModels.load;
import static io.djltp.zoo.SmallModels.predict;

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
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;
import ai.djl.util.Utils;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.RankThreads;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.training.ParallelPredictor;

import org.testng.annotations.AfterClass;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * Several predictors of one model at once, the end of the model, and nothing left behind. A thread
 * that is interrupted while it predicts, as by {@code Future.cancel(true)}, gets its output and
 * stays interrupted, and the model serves the others on.
 */
public class PredictorsTest {

    private static final int THREADS = 4;
    private static final int INTERRUPTS = 200;
    private static final float[] BATCH = SmallModels.batch(2);

    private Path folder;
    private float[] expected;
    private ExecutorService threads;
    private RankThreads ranks;

    @BeforeClass
    public void saveModel() throws IOException {
        ranks = new RankThreads();
        folder = Files.createTempDirectory("zoo");
        expected = SmallModels.save(folder, "two layers", BATCH);
        threads = Executors.newFixedThreadPool(THREADS);
    }

    @AfterMethod
    public void awake() throws InterruptedException {
        Thread.interrupted();
        ranks.assertCount(0);
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

    private void check(Predictor<NDList, NDList> predictor) throws TranslateException {
        assertClose(predict(predictor, BATCH), expected);
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void allGetTheirOutputs(int degree) throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, degree);
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
                                        check(predictor);
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

    /** With one rank the model must not be closed while a predictor computes, as any of DJL. */
    @Test(timeOut = 60_000)
    public void nothingHangsWhenTheModelIsClosed() throws Exception {
        for (int degree = 2; degree <= 3; degree++) {
            ZooModel<NDList, NDList> model = load(folder, degree);
            CountDownLatch running = new CountDownLatch(THREADS);
            List<Future<?>> results = new ArrayList<>();
            for (int i = 0; i < THREADS; i++) {
                results.add(
                        threads.submit(
                                () -> {
                                    Predictor<NDList, NDList> predictor = model.newPredictor();
                                    check(predictor);
                                    running.countDown();
                                    while (true) {
                                        check(predictor);
                                    }
                                }));
            }
            running.await();
            model.close();
            for (Future<?> result : results) {
                try {
                    result.get();
                } catch (ExecutionException e) { // no wrong output
                    assertTrue(e.getCause() instanceof Exception, "" + e.getCause());
                }
            }
            ranks.assertCount(0);
        }
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
        try (ZooModel<NDList, NDList> model = load(folder, 3);
                Predictor<NDList, NDList> predictor = model.newPredictor()) {
            ranks.assertCount(3);
            long before = arrays();
            check(predictor);
            assertEquals(arrays(), before); // nor does a prediction
        }
    }

    /** Returns the number of all arrays of the process. */
    private static long arrays() {
        try (NDManager manager = NDManager.newBaseManager()) {
            return manager.getParentManager().getManagedArrays().size();
        }
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void aWrongInputIsRefusedAndTheModelGoesOn(int degree) throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, degree);
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
        check(predictor);
    }

    /** A model that cannot be loaded leaves nothing; nor does one that nobody waits for. */
    @Test(timeOut = 60_000)
    public void aModelThatIsRefusedLeavesNoRanks() throws InterruptedException {
        for (Object degree : new Object[] {14, "none"}) {
            Refusals.throwsArgument(() -> load(folder, degree));
            ranks.assertCount(0);
        }
        Thread.currentThread().interrupt();
        Exception e = expectThrows(Exception.class, () -> load(folder, 2));
        assertTrue(("" + e.getMessage() + e.getCause()).contains("nterrupt"), "" + e);
        assertTrue(Thread.interrupted(), "the thread stays interrupted");
    }

    /** Two threads are interrupted at any moment, a third one is not. */
    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void othersGoOn(int degree) throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, degree)) {
            List<Worker> workers = List.of(new Worker(model), new Worker(model), new Worker(model));
            List<Future<?>> results = new ArrayList<>();
            workers.forEach(worker -> results.add(threads.submit(worker::predictOn)));
            Random random = new Random(7);
            for (int i = 0; i < INTERRUPTS; i++) {
                LockSupport.parkNanos(random.nextInt(1_000_000));
                workers.get(random.nextInt(2)).interrupt();
            }
            workers.forEach(worker -> worker.ended = true);
            for (Future<?> result : results) {
                result.get();
            }
            assertEquals(workers.get(2).seen.get(), 0);
            assertClose(predict(model, BATCH), expected);
        }
    }

    /** Predicts on and on, and counts the interrupts that it sees after a prediction. */
    private final class Worker {

        private final Predictor<NDList, NDList> predictor;
        private final AtomicInteger seen = new AtomicInteger();
        private volatile Thread thread;
        private volatile boolean ended;

        Worker(ZooModel<NDList, NDList> model) {
            predictor = model.newPredictor();
        }

        Void predictOn() throws Exception {
            thread = Thread.currentThread();
            try (predictor) {
                while (!ended) {
                    check(predictor);
                    if (Thread.interrupted()) {
                        seen.incrementAndGet();
                    }
                }
            }
            return null;
        }

        /** Interrupts the thread, and waits until it has seen it: the prediction has kept it. */
        void interrupt() {
            while (thread == null) {
                LockSupport.parkNanos(50_000); // the thread has not begun
            }
            int before = seen.get();
            thread.interrupt();
            long end = System.nanoTime() + 20_000_000_000L;
            while (seen.get() == before) {
                assertTrue(System.nanoTime() < end, "the interrupt is lost, or nothing goes on");
                LockSupport.parkNanos(50_000);
            }
        }
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void anInterruptedThreadPredictsAndCloses(int degree) throws Exception {
        try (ZooModel<NDList, NDList> model = load(folder, degree);
                Predictor<NDList, NDList> predictor = model.newPredictor()) {
            Thread.currentThread().interrupt();
            check(predictor);
            check(predictor);
        }
        assertTrue(Thread.interrupted(), "the thread stays interrupted");
    }

    /** The first prediction hands the weights out, and closing takes them back. */
    @Test(timeOut = 60_000)
    public void aParallelPredictorKeepsTheWeights() throws Exception {
        try (Model model = Model.newInstance("interrupted", Device.cpu())) {
            model.setBlock(SmallModels.network(13));
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, SmallModels.INPUT);
            float[] output;
            try (Predictor<NDList, NDList> predictor =
                    new ParallelPredictor<>(
                            model, new NoopTranslator(), Ranks.config(ParallelMode.TENSOR, 2))) {
                Thread.currentThread().interrupt();
                output = predict(predictor, BATCH);
                assertClose(predict(predictor, BATCH), output);
            }
            assertTrue(Thread.interrupted(), "the thread stays interrupted");
            try (Predictor<NDList, NDList> plain = model.newPredictor(new NoopTranslator())) {
                assertClose(predict(plain, BATCH), output);
            }
            assertFalse(Thread.interrupted());
        }
    }
}

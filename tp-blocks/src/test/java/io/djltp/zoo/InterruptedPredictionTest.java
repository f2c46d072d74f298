package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.translate.NoopTranslator;
import ai.djl.util.Utils;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.RankThreads;
import io.djltp.testing.Ranks;
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
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * A thread that is interrupted while it predicts, as by {@code Future.cancel(true)}: it gets its
 * output and stays interrupted, and the model serves the others on.
 */
public class InterruptedPredictionTest {

    private static final int INTERRUPTS = 200;
    private static final float[] BATCH = SmallModels.batch(2);

    private Path folder;
    private float[] expected;
    private RankThreads ranks;

    @BeforeClass
    public void saveModel() throws IOException {
        ranks = new RankThreads();
        folder = Files.createTempDirectory("zoo");
        expected =
                SmallModels.save(
                        folder, TwoLayersFactory.network(13), TwoLayersFactory.class, BATCH);
    }

    @AfterMethod
    public void awake() throws InterruptedException {
        Thread.interrupted();
        ranks.assertCount(0);
    }

    @AfterClass
    public void delete() {
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    public static Object[][] degrees() {
        return new Object[][] {{1}, {2}, {3}};
    }

    private void predict(Predictor<NDList, NDList> predictor) throws Exception {
        try (NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDList input = new NDList(manager.create(BATCH, new Shape(2, 7)));
            NDList output = predictor.predict(input);
            SmallModels.assertClose(output.singletonOrThrow().toFloatArray(), expected);
        }
    }

    /** Two threads are interrupted at any moment, a third one is not. */
    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void othersGoOn(int degree) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(3);
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, degree)) {
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
            try (Predictor<NDList, NDList> fresh = model.newPredictor()) {
                predict(fresh);
            }
        } finally {
            threads.shutdownNow();
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
                    predict(predictor);
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
        try (ZooModel<NDList, NDList> model = SmallModels.load(folder, degree);
                Predictor<NDList, NDList> predictor = model.newPredictor()) {
            Thread.currentThread().interrupt();
            predict(predictor);
            predict(predictor);
        }
        assertTrue(Thread.interrupted(), "the thread stays interrupted");
    }

    /** Nobody else has this model: to load it fails, and leaves nothing behind. */
    @Test(timeOut = 60_000)
    public void anInterruptedThreadLoadsNoRanks() {
        Thread.currentThread().interrupt();
        Exception e = expectThrows(Exception.class, () -> SmallModels.load(folder, 2));
        assertTrue(("" + e.getMessage() + e.getCause()).contains("nterrupt"), "" + e);
        assertTrue(Thread.interrupted(), "the thread stays interrupted");
    }

    /** The first prediction hands the weights out, and closing takes them back. */
    @Test(timeOut = 60_000)
    public void aParallelPredictorKeepsTheWeights() throws Exception {
        try (Model model = Model.newInstance("interrupted");
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            model.setBlock(TwoLayersFactory.network(13));
            model.getBlock().initialize(manager, DataType.FLOAT32, TwoLayersFactory.INPUT);
            NDList input = new NDList(manager.create(BATCH, new Shape(2, 7)));
            float[] output;
            try (Predictor<NDList, NDList> predictor =
                    new ParallelPredictor<>(
                            model, new NoopTranslator(), Ranks.config(ParallelMode.TENSOR, 2))) {
                Thread.currentThread().interrupt();
                output = predictor.predict(input).singletonOrThrow().toFloatArray();
                SmallModels.assertClose(
                        predictor.predict(input).singletonOrThrow().toFloatArray(), output);
            }
            assertTrue(Thread.interrupted(), "the thread stays interrupted");
            try (Predictor<NDList, NDList> plain = model.newPredictor(new NoopTranslator())) {
                SmallModels.assertClose(
                        plain.predict(input).singletonOrThrow().toFloatArray(), output);
            }
            assertFalse(Thread.interrupted());
        }
    }
}

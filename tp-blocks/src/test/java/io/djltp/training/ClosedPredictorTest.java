package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Refusals.throwsState;

import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.LambdaBlock;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Blocks;
import io.djltp.testing.Ranks;

import org.testng.annotations.Test;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;

/** A predictor that is closed says so: to who predicts later, and to who is predicting. */
public class ClosedPredictorTest {

    private static final Shape INPUT = new Shape(5, 6);

    private static Model model(Runnable inThePass) {
        Model model = Model.newInstance("model");
        model.setBlock(
                Blocks.sequence(
                        column(7),
                        new LambdaBlock(
                                list -> {
                                    inThePass.run();
                                    return list;
                                }),
                        row(4)));
        model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
        return model;
    }

    private static Predictor<NDList, NDList> predictor(Model model) {
        ParallelConfig ranks = Ranks.config(ParallelMode.TENSOR, 2);
        return new ParallelPredictor<>(model, new NoopTranslator(), ranks);
    }

    @Test(timeOut = 60_000)
    public void predictsNoMore() {
        try (NDManager manager = NDManager.newBaseManager();
                Model model = model(() -> {})) {
            NDList input = new NDList(manager.ones(INPUT));
            Predictor<NDList, NDList> predictor = predictor(model);
            predictor.close();
            throwsState(() -> predictor.predict(input), "ParallelPredictor is closed");
        }
    }

    /** The ranks are in a pass when another thread closes them. */
    @Test(timeOut = 60_000)
    public void closedByAnotherThread() throws Exception {
        CountDownLatch inPass = new CountDownLatch(1);
        CountDownLatch closing = new CountDownLatch(1);
        AtomicBoolean waits = new AtomicBoolean();
        Runnable pause =
                () -> {
                    if (waits.compareAndSet(true, false)) { // one rank, which lets the other wait
                        inPass.countDown();
                        try {
                            closing.await();
                            Thread.sleep(500);
                        } catch (InterruptedException e) {
                            Thread.currentThread().interrupt();
                        }
                    }
                };
        try (NDManager manager = NDManager.newBaseManager();
                Model model = model(pause)) {
            NDList input = new NDList(manager.ones(INPUT));
            Predictor<NDList, NDList> predictor = predictor(model);
            predictor.predict(input);
            waits.set(true);
            CompletableFuture<NDList> prediction =
                    CompletableFuture.supplyAsync(
                            () -> {
                                try {
                                    return predictor.predict(input);
                                } catch (TranslateException e) {
                                    throw new IllegalArgumentException(e);
                                }
                            });
            inPass.await();
            closing.countDown();
            predictor.close();
            ExecutionException e = expectThrows(ExecutionException.class, () -> prediction.get());
            assertFalse(e.getCause() instanceof RankFailedException, "" + e.getCause());
            StringBuilder messages = new StringBuilder();
            for (Throwable t = e; t != null; t = t.getCause()) {
                messages.append(t.getMessage());
            }
            assertTrue(
                    messages.toString().contains("closed by another thread during this prediction"),
                    "" + messages);
        }
    }
}

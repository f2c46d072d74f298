package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.map;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import io.djltp.collective.CollectiveCounts;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Blocks;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicBoolean;

/** A predictor on ranks says what DJL's own says. */
public class ParallelPredictorTest extends RecordedTest {

    private static final Shape INPUT = new Shape(5, 6);

    /** Where to predict, and what a prediction communicates. */
    @DataProvider
    public Object[][] kinds() {
        String two = "1 all-reduce, 1 all-gather";
        return new Object[][] {
            {TENSOR_1, "none"},
            {TENSOR_2, two},
            {TENSOR_3, two},
            {TENSOR_4, two},
            {MESH_2X2, two},
        };
    }

    private static Block network(boolean gather) {
        return sequence(column(7), tanh(), row(4), gather ? gatheredOfAll() : column(5));
    }

    private static Block gatheredOfAll() {
        return ColumnParallelLinear.builder().setUnits(5).optGatherOutput(true).build();
    }

    private static Model initialized(Block block) {
        Engine.getInstance().setRandomSeed(3);
        Model model = Model.newInstance("model");
        model.setBlock(block);
        model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
        return model;
    }

    private static ParallelPredictor<NDList, NDList> predictor(Model model, TrainerKind kind) {
        return new ParallelPredictor<>(model, new NoopTranslator(), kind.config());
    }

    private static float[] predict(Predictor<NDList, NDList> predictor, NDList input)
            throws TranslateException {
        return predictor.predict(input).singletonOrThrow().toFloatArray();
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void predictsAsDjlDoes(TrainerKind kind, String communicated) throws TranslateException {
        try (Model model = initialized(network(true));
                Predictor<NDList, NDList> djls = model.newPredictor(new NoopTranslator())) {
            NDList input = new NDList(random(manager, 1, 5, 6));
            float[] expected = predict(djls, input);
            try (ParallelPredictor<NDList, NDList> predictor = predictor(model, kind)) {
                for (int i = 0; i < 3; i++) {
                    CollectiveCounts before = predictor.getCollectiveCounts();
                    assertClose(predict(predictor, input), expected, 1e-5, "prediction");
                    CollectiveCounts counts = predictor.getCollectiveCounts().minus(before);
                    assertEquals(counts.toString(), communicated);
                }
            }
            // the model has its weights again
            assertEquals(predict(djls, input), expected);
        }
    }

    @Test(timeOut = 60_000)
    public void aModelWithoutValues() {
        try (Model model = Blocks.model(network(true))) {
            throwsState(() -> predictor(model, TENSOR_2), "weight has no value");
        }
    }

    /** As a network that was trained with a vocabulary parallel loss has it. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void gathersAnOutputThatIsCut(TrainerKind kind, String communicated)
            throws TranslateException {
        try (Model model = initialized(network(false));
                Predictor<NDList, NDList> djls = model.newPredictor(new NoopTranslator())) {
            for (int rows : new int[] {5, 1}) { // and fewer rows than ranks
                NDList input = new NDList(random(manager, rows, rows, 6));
                float[] expected = predict(djls, input);
                try (ParallelPredictor<NDList, NDList> predictor = predictor(model, kind)) {
                    assertClose(predict(predictor, input), expected, 1e-5, "prediction");
                    CollectiveCounts before = predictor.getCollectiveCounts();
                    predictor.predict(input);
                    CollectiveCounts counts = predictor.getCollectiveCounts().minus(before);
                    assertEquals(counts.toString(), communicated);
                }
            }
        }
    }

    @Test(timeOut = 60_000)
    public void aModelThatIsClosedBeforeItsPredictor() {
        Model model = initialized(network(true));
        try (ParallelPredictor<NDList, NDList> predictor = predictor(model, TENSOR_2)) {
            model.close();
            throwsState(
                    () -> predictor.predict(new NDList(manager.ones(INPUT))),
                    "The model model was closed while its ParallelPredictor was open");
        }
    }

    @Test(timeOut = 60_000)
    public void namesPredictorsWhereAnotherOneHoldsTheModel() throws TranslateException {
        String taken = "ParallelTrainer or ParallelPredictor";
        try (Model model = initialized(network(true));
                ParallelPredictor<NDList, NDList> first = predictor(model, TENSOR_2);
                Predictor<NDList, NDList> djls = model.newPredictor(new NoopTranslator())) {
            NDList input = new NDList(manager.ones(INPUT));
            first.predict(input);
            throwsState(() -> predictor(model, TENSOR_2), taken, "shared by threads");
            expect(TranslateException.class, () -> djls.predict(input), taken);
        }
    }

    /** It says so: to who predicts later, and to who is predicting. */
    @Test(timeOut = 60_000)
    public void closedByAnotherThread() throws Exception {
        CountDownLatch inPass = new CountDownLatch(1);
        CountDownLatch closing = new CountDownLatch(1);
        AtomicBoolean waits = new AtomicBoolean();
        Thread closer = Thread.currentThread();
        Block pause =
                map(
                        x -> {
                            if (waits.compareAndSet(true, false)) { // a rank: the other one waits
                                inPass.countDown();
                                try {
                                    closing.await();
                                    awaitWaiting(closer);
                                } catch (InterruptedException e) {
                                    Thread.currentThread().interrupt();
                                }
                            }
                            return x;
                        });
        try (Model model = initialized(sequence(column(7), pause, row(4)))) {
            NDList input = new NDList(manager.ones(INPUT));
            ParallelPredictor<NDList, NDList> predictor = predictor(model, TENSOR_2);
            predictor.predict(input);
            waits.set(true);
            FutureTask<NDList> prediction = new FutureTask<>(() -> predictor.predict(input));
            new Thread(prediction).start();
            inPass.await();
            closing.countDown();
            predictor.close();
            Throwable cause = expectThrows(ExecutionException.class, prediction::get).getCause();
            StringBuilder messages = new StringBuilder();
            for (Throwable t = cause; t != null; t = t.getCause()) {
                assertFalse(t == cause && t instanceof RankFailedException, "" + t);
                messages.append(t.getMessage());
            }
            Refusals.assertContains(
                    "" + messages, "closed by another thread during this prediction");
            throwsState(() -> predictor.predict(input), "ParallelPredictor is closed");
        }
    }

    private static void awaitWaiting(Thread thread) throws InterruptedException {
        while (thread.getState() != Thread.State.WAITING
                && thread.getState() != Thread.State.TIMED_WAITING) {
            Thread.sleep(5);
        }
    }
}

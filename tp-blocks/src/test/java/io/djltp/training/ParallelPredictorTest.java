package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import io.djltp.collective.Collective;
import io.djltp.collective.CollectiveCounts;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

/** A predictor on ranks says what DJL's own says. */
public class ParallelPredictorTest {

    private static final Shape INPUT = new Shape(5, 6);

    /** The meshes to predict on, and the all-reduces and all-gathers of a prediction. */
    @DataProvider
    public Object[][] meshes() {
        return new Object[][] {
            {DeviceMesh.of(ParallelMode.TENSOR, 1), 0, 0},
            {DeviceMesh.of(ParallelMode.TENSOR, 2), 1, 1},
            {DeviceMesh.of(ParallelMode.TENSOR, 3), 1, 1},
            {DeviceMesh.of(ParallelMode.TENSOR, 4), 1, 1},
            {DeviceMesh.parse("2x2"), 1, 1},
        };
    }

    private static Model model(boolean gather) {
        Model model = Model.newInstance("model");
        model.setBlock(
                sequence(
                        column(7),
                        tanh(),
                        row(4),
                        ColumnParallelLinear.builder()
                                .setUnits(5)
                                .optGatherOutput(gather)
                                .build()));
        return model;
    }

    private static Model initialized(boolean gather) {
        Engine.getInstance().setRandomSeed(3);
        Model model = model(gather);
        model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
        return model;
    }

    private static ParallelConfig on(DeviceMesh mesh) {
        return ParallelConfig.builder().setMesh(mesh).build();
    }

    @Test(dataProvider = "meshes", timeOut = 60_000)
    public void predictsAsDjlDoes(DeviceMesh mesh, int reduces, int gathers)
            throws TranslateException {
        try (NDManager manager = NDManager.newBaseManager();
                Model model = initialized(true)) {
            NDArray input = manager.randomUniform(-1, 1, INPUT);
            NDArray expected = predict(model.newPredictor(new NoopTranslator()), input);
            try (ParallelPredictor<NDList, NDList> predictor =
                    new ParallelPredictor<>(model, new NoopTranslator(), on(mesh))) {
                CollectiveCounts before = predictor.getCollectiveCounts(); // groups were formed
                for (int i = 0; i < 3; i++) {
                    NDArray actual = predictor.predict(new NDList(input)).singletonOrThrow();
                    assertTrue(expected.allClose(actual, 1e-5, 1e-6, false), actual.toString());
                    CollectiveCounts counts = predictor.getCollectiveCounts().minus(before);
                    assertEquals(counts.get(Collective.ALL_REDUCE), (i + 1) * reduces);
                    assertEquals(counts.get(Collective.ALL_GATHER), (i + 1) * gathers);
                    assertEquals(counts.total(), (i + 1) * (reduces + gathers), "" + counts);
                }
            }
            // the model has its weights again
            NDArray after = predict(model.newPredictor(new NoopTranslator()), input);
            assertEquals(after.toFloatArray(), expected.toFloatArray());
        }
    }

    private static NDArray predict(Predictor<NDList, NDList> predictor, NDArray input)
            throws TranslateException {
        try (predictor) {
            NDArray output = predictor.predict(new NDList(input)).singletonOrThrow();
            output.attach(input.getManager());
            return output;
        }
    }

    @Test(timeOut = 60_000)
    public void refusesAModelWithoutValues() {
        try (Model model = model(true)) {
            IllegalStateException e =
                    expectThrows(
                            IllegalStateException.class,
                            () ->
                                    new ParallelPredictor<>(
                                            model,
                                            new NoopTranslator(),
                                            on(DeviceMesh.of(ParallelMode.TENSOR, 2))));
            assertTrue(e.getMessage().contains("weight has no value"), e.getMessage());
        }
    }

    @Test(timeOut = 60_000)
    public void refusesAnOutputThatIsCut() {
        try (NDManager manager = NDManager.newBaseManager();
                Model model = initialized(false);
                ParallelPredictor<NDList, NDList> predictor =
                        new ParallelPredictor<>(
                                model,
                                new NoopTranslator(),
                                on(DeviceMesh.of(ParallelMode.TENSOR, 2)))) {
            TranslateException e =
                    expectThrows(
                            TranslateException.class,
                            () -> predictor.predict(new NDList(manager.ones(INPUT))));
            assertTrue(e.getMessage().contains("optGatherOutput(true)"), e.getMessage());
        }
    }

    @Test(timeOut = 60_000)
    public void namesPredictorsWhereAnotherOneHoldsTheModel() throws TranslateException {
        ParallelConfig config = on(DeviceMesh.of(ParallelMode.TENSOR, 2));
        try (NDManager manager = NDManager.newBaseManager();
                Model model = initialized(true);
                ParallelPredictor<NDList, NDList> first =
                        new ParallelPredictor<>(model, new NoopTranslator(), config);
                Predictor<NDList, NDList> djls = model.newPredictor(new NoopTranslator())) {
            NDList input = new NDList(manager.ones(INPUT));
            first.predict(input);
            IllegalStateException second =
                    expectThrows(
                            IllegalStateException.class,
                            () -> new ParallelPredictor<>(model, new NoopTranslator(), config));
            assertTrue(
                    second.getMessage().contains("ParallelTrainer or ParallelPredictor")
                            && second.getMessage().contains("shared by threads"),
                    second.getMessage());
            TranslateException other =
                    expectThrows(TranslateException.class, () -> djls.predict(input));
            assertTrue(
                    other.getMessage().contains("ParallelTrainer or ParallelPredictor"),
                    other.getMessage());
        }
    }
}

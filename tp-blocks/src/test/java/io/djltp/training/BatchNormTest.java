package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.reshape;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.GraphBlock.graph;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.logged;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.steps;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.translate.NoopTranslator;

import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.List;

/** The statistics of rank 0 are those of all: what is evaluated is what is saved. */
public class BatchNormTest {

    private static final Network.Batches BATCHES = Network.batches("13x6", "13:7");

    // fp32: the parts of the batch are multiplied in another order than the whole
    private static final double TOLERANCE = 1e-6;

    private static Block block() {
        return sequence(linear(8), BatchNorm.builder().build(), gathered(7));
    }

    private static DefaultTrainingConfig config() {
        return Configs.of(Loss.softmaxCrossEntropyLoss(), Configs.sgd(0.1f));
    }

    private static TrainingRun run(TrainerKind kind, Block block, TrainingRun.Loop loop) {
        return TrainingRun.of(kind, block, config(), BATCHES.shapes(), loop);
    }

    private static NDList rows(NDManager manager, int rows) {
        return new NDList(random(manager, 99, rows, 6));
    }

    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void whatIsEvaluatedIsWhatIsSaved(TrainerKind kind) throws Exception {
        Path folder = TestFolder.create();
        float[][] seen = new float[2][];
        try (NDManager base = NDManager.newBaseManager()) {
            NDList data = rows(base, 13);
            Model[] model = new Model[1];
            TrainingRun.Loop loop =
                    (trainer, manager, losses) -> {
                        trainer.evaluate(data); // before the first step
                        for (int i = 0; i < 4; i++) {
                            steps(trainer, losses, BATCHES, i, i + 1);
                            seen[0] = values(trainer.evaluate(data)); // which changes nothing
                        }
                        model[0] = trainer.getModel();
                        model[0].save(folder, "open");
                        // statistics of a pass without a step count too
                        trainer.forward(data);
                        seen[1] = values(trainer.evaluate(data));
                        trainer.close();
                        model[0].save(folder, "closed");
                    };
            run(kind, block(), loop);
            assertClose(seen[0], predict(folder, "open", data), TOLERANCE, "saved while open");
            assertClose(seen[1], predict(folder, "closed", data), TOLERANCE, "closed");
            assertNotEquals(seen[1], seen[0]);
        }
    }

    private static float[] predict(Path folder, String name, NDList data) throws Exception {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(block());
            model.load(folder, name);
            try (Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator())) {
                return values(predictor.predict(data));
            }
        }
    }

    private static float[] values(NDList output) {
        return output.singletonOrThrow().toFloatArray();
    }

    /** Whether there are evaluations in between makes no difference to the training. */
    @Test(dataProvider = "smallKinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void evaluatingChangesNothing(TrainerKind kind) {
        TrainingRun plain = TrainingRun.of(kind, block(), config(), BATCHES, 4);
        TrainingRun.Loop evaluating =
                (trainer, manager, losses) -> {
                    for (int i = 0; i < 4; i++) {
                        steps(trainer, losses, BATCHES, i, i + 1);
                        trainer.evaluate(rows(manager, 13));
                    }
                };
        run(kind, block(), evaluating).assertBitEqual(plain);
        if (kind.mode() == ParallelMode.TENSOR) { // all ranks see the whole batch
            TrainingRun ofDjl = TrainingRun.of(PLAIN, block(), config(), BATCHES, 4);
            assertClose(mean(plain), mean(ofDjl), 5e-6, "statistics");
        }
    }

    private static float[] mean(TrainingRun run) {
        return run.getWeights().get(4); // behind the weight and the bias of two layers
    }

    /** As the last batch of an epoch: nobody has begun, and the training can go on. */
    @Test(timeOut = 60_000)
    public void oneRowOfARank() {
        for (TrainerKind kind : List.of(DATA_2, MIXED_2, MESH_2X2)) {
            TrainingRun.Loop loop =
                    (trainer, manager, losses) -> {
                        steps(trainer, losses, BATCHES, 0, 1);
                        for (int rows = 1; rows < 4; rows++) {
                            NDList few = rows(manager, rows);
                            String text =
                                    throwsArgument(
                                            () -> trainer.forward(few),
                                            "batch normalization",
                                            rows + " row",
                                            "setSampling");
                            for (String part : List.of("SyncBatchNorm", "TENSOR mode")) {
                                // which one row in all does not help
                                assertEquals(text.contains(part), rows > 1, part + ": " + text);
                            }
                            trainer.evaluate(few); // with the running statistics
                        }
                        trainer.forward(rows(manager, 4));
                        steps(trainer, losses, BATCHES, 1, 2);
                    };
            run(kind, block(), loop);
        }
        // in TENSOR mode the whole batch has one row: nobody else's statistics help
        run(
                TENSOR_2,
                block(),
                (trainer, manager, losses) -> {
                    String text =
                            throwsArgument(
                                    () -> trainer.forward(rows(manager, 1)),
                                    "the batch has 1 row. .. Leave an incomplete last batch out");
                    assertFalse(text.contains("SyncBatchNorm") || text.contains("TENSOR"), text);
                });
    }

    /** Behind the layer that gathers the batch there are all rows; pixels are values too. */
    @Test(timeOut = 60_000)
    public void moreThanOneValue() {
        Block pixels = sequence(reshape(-1, 2, 3), BatchNorm.builder().build());
        Block gathered = sequence(gathered(5), BatchNorm.builder().build());
        run(DATA_2, pixels, (trainer, manager, n) -> trainer.forward(rows(manager, 3)));
        run(MIXED_2, gathered, (trainer, manager, n) -> trainer.forward(rows(manager, 3)));
        // a block of which it is not known what it gives the normalization: libtorch throws
        Block unknown =
                graph(6, (call, x) -> call.call("norm", x))
                        .add("norm", BatchNorm.builder().build(), 6, 2); // of two values
        run(
                DATA_2,
                unknown,
                (trainer, manager, n) ->
                        expect(
                                RuntimeException.class,
                                () -> trainer.forward(rows(manager, 2)),
                                "SyncBatchNorm"));
    }

    /** One warning with all names: a network of DJL's zoo has dozens. */
    @Test(timeOut = 60_000)
    public void oneWarningNamesAll() {
        Block two = sequence(linear(8), BatchNorm.builder().build(), gathered(7));
        ((SequentialBlock) two).add(BatchNorm.builder().build());
        String text = logged(() -> run(DATA_2, two, (trainer, manager, losses) -> {}));
        assertTrue(text.contains("02BatchNorm, 04BatchNorm: where the batch is cut"), text);
        assertEquals(text.split("statistics of all rows", -1).length, 2, text);
    }
}

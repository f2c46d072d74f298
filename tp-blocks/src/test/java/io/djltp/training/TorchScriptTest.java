package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertNotEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.TorchScript;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** A body from a file of TorchScript under a head that is cut. */
public class TorchScriptTest {

    private static final int ROWS = 7;
    private static final int FEATURES = 5;
    private static final int HIDDEN = 6;
    private static final int CLASSES = 9;
    private static final double TOLERANCE = 5e-6;

    private Path folder;

    @BeforeClass
    public void saveBody() throws Exception {
        folder = Files.createTempDirectory("torch-script");
        try (NDManager manager = NDManager.newBaseManager()) {
            TorchScript.saveTanhLayer(
                    folder.resolve("body.pt"),
                    random(manager, 1, HIDDEN, FEATURES),
                    random(manager, 2, HIDDEN));
        }
    }

    @AfterClass
    public void deleteBody() throws Exception {
        Files.delete(folder.resolve("body.pt"));
        Files.delete(folder);
    }

    @DataProvider
    public Object[][] oneRank() {
        return TrainerKind.parallel(1);
    }

    @DataProvider
    public Object[][] severalRanks() {
        return TrainerKind.parallel(2, 3);
    }

    @Test(dataProvider = "oneRank", timeOut = 60_000)
    public void aBodyIsTrainedByOneRank(TrainerKind kind) throws Exception {
        List<float[]> expected = train(PLAIN, true);
        List<float[]> actual = train(kind, true);
        assertSame(actual, expected);
        assertNotEquals(expected.get(1), train(kind, false).get(1), "not trained");
    }

    @Test(dataProvider = "severalRanks", timeOut = 60_000)
    public void aFrozenBody(TrainerKind kind) throws Exception {
        assertSame(train(kind, false), train(PLAIN, false));
    }

    private static void assertSame(List<float[]> actual, List<float[]> expected) {
        assertAllClose(actual, expected, TOLERANCE, "parameter");
    }

    @Test(dataProvider = "severalRanks", timeOut = 60_000)
    public void aBodyIsNotTrainedBySeveralRanks(TrainerKind kind) throws Exception {
        try (Model body = load(true);
                Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(network(kind, body.getBlock()));
            try (Trainer trainer =
                    new ParallelTrainer(
                            model,
                            new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss()),
                            kind.config())) {
                expect(
                        UnsupportedOperationException.class,
                        () -> trainer.initialize(new Shape(ROWS, FEATURES)),
                        "01PtSymbolBlock",
                        "(6, 5)",
                        kind.ranks() + " ranks",
                        "trainParam");
            }
        }
    }

    private Model load(boolean train) throws Exception {
        Model body = Model.newInstance("body", Device.cpu());
        body.load(folder, "body", Map.of("trainParam", "" + train));
        return body;
    }

    private static Block network(TrainerKind kind, Block body) {
        return sequence(body, kind.equals(PLAIN) ? linear(CLASSES) : head(CLASSES));
    }

    /** Returns the losses and the weights. */
    private List<float[]> train(TrainerKind kind, boolean trainBody) throws Exception {
        try (Model body = load(trainBody);
                Model model = Model.newInstance("net", Device.cpu());
                NDManager manager = NDManager.newBaseManager()) {
            Block network = network(kind, body.getBlock());
            model.setBlock(network);
            Loss loss =
                    kind.equals(PLAIN)
                            ? Loss.softmaxCrossEntropyLoss()
                            : new VocabParallelCrossEntropyLoss();
            DefaultTrainingConfig config = Configs.of(loss, Configs.sgd(0.3f));
            manager.getEngine().setRandomSeed(6);
            float[] losses = new float[4];
            try (Trainer trainer = kind.open(model, config, new Shape(ROWS, FEATURES))) {
                for (int i = 0; i < losses.length; i++) {
                    NDArray data = random(manager, i, ROWS, FEATURES);
                    NDArray labels = labels(manager, i, ROWS, CLASSES);
                    losses[i] = backward(trainer, data, labels);
                    trainer.step();
                }
            }
            List<float[]> result = new ArrayList<>();
            result.add(losses);
            result.addAll(weights(network));
            return result;
        }
    }
}

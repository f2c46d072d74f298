package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertNotEquals;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.loss.Loss;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TorchScript;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.Map;

/** A body from a file of TorchScript under a head that is cut. */
public class TorchScriptTest {

    private static final Network.Batches BATCHES = Network.batches("7x5", "7:9");

    private final Path folder = TestFolder.create();

    @BeforeClass
    public void saveBody() throws Exception {
        try (NDManager manager = NDManager.newBaseManager()) {
            TorchScript.saveTanhLayer(
                    folder.resolve("body.pt"), random(manager, 1, 6, 5), random(manager, 2, 6));
        }
    }

    @Test(timeOut = 60_000)
    public void aBodyIsTrainedByOneRank() throws Exception {
        TrainingRun expected = train(PLAIN, true);
        TrainingRun frozen = train(PLAIN, false);
        for (TrainerKind kind : TrainerKind.all(1)) {
            train(kind, true).assertSame(expected, 5e-6);
        }
        assertNotEquals(expected.getWeights().get(0), frozen.getWeights().get(0), "not trained");
    }

    @DataProvider
    public Object[][] severalRanks() {
        return TrainerKind.parallel(2, 3);
    }

    /** A body that is frozen is trained by several ranks, another one is not. */
    @Test(dataProvider = "severalRanks", timeOut = 60_000)
    public void severalRanks(TrainerKind kind) throws Exception {
        train(kind, false).assertSame(train(PLAIN, false), 5e-6);
        expect(
                UnsupportedOperationException.class,
                () -> train(kind, true),
                "01PtSymbolBlock",
                "(6, 5)",
                kind.ranks() + " ranks",
                "trainParam");
    }

    private TrainingRun train(TrainerKind kind, boolean trainBody) throws Exception {
        boolean plain = kind.equals(PLAIN);
        Loss loss = plain ? Loss.softmaxCrossEntropyLoss() : new VocabParallelCrossEntropyLoss();
        try (Model body = Model.newInstance("body", Device.cpu())) {
            body.load(folder, "body", Map.of("trainParam", "" + trainBody));
            Block network = sequence(body.getBlock(), plain ? linear(9) : head(9));
            return TrainingRun.of(kind, network, Configs.of(loss, Configs.sgd(0.3f)), BATCHES, 4);
        }
    }
}

package io.djltp.nn;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;

import io.djltp.head.Margin;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Path;

/** What a head was trained with is saved with its weights and read back. */
public class SavedMarginTest {

    private static final int CLASSES = 7;
    private static final int FEATURES = 4;
    private static final Margin ARC = Margin.arcFace(16, 0.5f);

    private NDManager manager;

    @BeforeMethod
    public void open() {
        manager = NDManager.newBaseManager();
    }

    @AfterMethod
    public void close() {
        manager.close();
    }

    private static ClassificationHead.Builder head() {
        return ClassificationHead.builder().setUnits(CLASSES).optBias(false);
    }

    private <T extends Block> T initialized(T block) {
        block.initialize(manager, DataType.FLOAT32, new Shape(1, FEATURES));
        return block;
    }

    private static byte[] saved(Block block) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        block.saveParameters(new DataOutputStream(bytes));
        return bytes.toByteArray();
    }

    private <T extends Block> T loaded(T block, byte[] bytes)
            throws IOException, MalformedModelException {
        block.loadParameters(manager, new DataInputStream(new ByteArrayInputStream(bytes)));
        return block;
    }

    private float[] output(Block block) {
        NDArray data = TrainingRun.random(manager, 1, 3, FEATURES);
        ParameterStore store = new ParameterStore(manager, false);
        return block.forward(store, new NDList(data), false).head().toFloatArray();
    }

    @Test
    public void aHeadWithoutAMarginTakesThatOfTheFile() throws Exception {
        ClassificationHead trained = initialized(head().optMargin(ARC).build());
        ClassificationHead read = loaded(head().build(), saved(trained));
        Assert.assertEquals(read.getMargin(), ARC);
        Assert.assertEquals(output(read), output(trained));
        // saved once more, it is the same
        Assert.assertEquals(saved(read), saved(trained));
        ClassificationHead same = loaded(head().optMargin(ARC).build(), saved(trained));
        Assert.assertEquals(output(same), output(trained));
    }

    @Test
    public void withoutAMarginTheFileIsThatOfALinearLayer() throws Exception {
        Linear linear = initialized(linear(CLASSES, false));
        byte[] bytes = saved(linear);
        ClassificationHead read = loaded(head().build(), bytes);
        Assert.assertNull(read.getMargin());
        Assert.assertEquals(output(read), output(linear));
        Assert.assertEquals(saved(read), bytes);
        // what earlier versions have saved of a head with a margin
        ClassificationHead old = loaded(head().optMargin(ARC).build(), bytes);
        Assert.assertEquals(old.getMargin(), ARC);
    }

    @Test(expectedExceptions = MalformedModelException.class)
    public void aLinearLayerDoesNotTakeTheWeightsOfCosines() throws Exception {
        byte[] bytes = saved(initialized(head().optMargin(ARC).build()));
        loaded(linear(CLASSES, false), bytes);
    }

    @DataProvider
    public Object[][] others() {
        return new Object[][] {
            {head().optMargin(Margin.cosFace(16, 0.35f)), "m3=0.35"},
            {head().optBias(true), "a bias"},
            {head().optFusedLoss(false), "optFusedLoss(false)"}
        };
    }

    @Test(dataProvider = "others")
    public void anotherHeadIsRefused(ClassificationHead.Builder other, String named)
            throws Exception {
        byte[] bytes = saved(initialized(head().optMargin(ARC).build()));
        Refusals.expect(
                MalformedModelException.class,
                () -> loaded(initialized(other.build()), bytes),
                ARC.toString(),
                named);
    }

    @Test
    public void aFormatThatIsNotKnown() throws Exception {
        byte[] bytes = saved(initialized(head().optMargin(ARC).build()));
        bytes[1] = 2;
        Exception e =
                Refusals.expect(
                        MalformedModelException.class,
                        () -> loaded(head().build(), bytes),
                        "format 2");
        bytes[1] = 1;
        bytes[2] = (byte) 0xff; // a scale below 0
        e = Assert.expectThrows(MalformedModelException.class, () -> loaded(head().build(), bytes));
        Assert.assertTrue(e.getMessage().contains("damaged"), e.getMessage());
    }

    @Test(timeOut = 60_000)
    public void whatATrainerSavesHasTheMargin() throws Exception {
        Path folder = TestFolder.create();
        float[] expected;
        try (Model model = Blocks.model(head().optMargin(ARC).build())) {
            DefaultTrainingConfig config = Configs.of(new VocabParallelCrossEntropyLoss());
            try (ParallelTrainer trainer =
                    new ParallelTrainer(model, config, Ranks.config(ParallelMode.TENSOR, 2))) {
                trainer.initialize(new Shape(1, FEATURES));
                trainer.getModel().save(folder, "net"); // the shards of the ranks
                NDList data = new NDList(TrainingRun.random(manager, 1, 3, FEATURES));
                expected = trainer.evaluate(data).head().toFloatArray();
            }
        }
        try (Model model = Model.newInstance("net")) {
            ClassificationHead read = head().build();
            model.setBlock(read);
            model.load(folder, "net");
            Assert.assertEquals(read.getMargin(), ARC);
            ArrayAssert.assertClose(output(read), expected, 1e-5, "logits");
        }
    }

    /** Another layer says what the file is, and what reads it. */
    @Test
    public void anotherLayerNamesTheHead() throws Exception {
        byte[] bytes = saved(initialized(head().optMargin(ARC).build()));
        for (Block other : new Block[] {column(CLASSES), row(CLASSES)}) {
            Refusals.expect(
                    MalformedModelException.class,
                    () -> loaded(other, bytes),
                    "a ClassificationHead with a margin",
                    other.getClass().getSimpleName(),
                    "optBias(false)");
        }
    }
}

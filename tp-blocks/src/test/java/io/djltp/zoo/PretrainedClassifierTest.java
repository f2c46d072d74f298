package io.djltp.zoo;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.basicmodelzoo.basic.Mlp;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * A pretrained network with a new head trains alike on any number of ranks, as under DJL. The
 * script, with a batch normalization and a dropout, was made by PyTorch 1.13:
 *
 * <pre>
 * torch.manual_seed(1)
 * m = torch.nn.Sequential(torch.nn.Linear(7, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(),
 *                         torch.nn.Dropout(0.5))
 * for _ in range(5):
 *     m(torch.randn(8, 7) * 2 + 1)
 * torch.jit.script(m.eval()).save("features.pt")
 * </pre>
 */
public class PretrainedClassifierTest {

    private static final int ROWS = 6;
    private static final int CLASSES = 11;
    private static final float[] BATCH = SmallModels.batch(ROWS);
    private static final float[] LABELS = {0, 3, 10, 7, 3, 1};

    private final Path root = TestFolder.create();

    @BeforeClass
    public void saveBackbone() throws IOException {
        Engine.getInstance().setRandomSeed(3);
        try (Model model = Model.newInstance("mlp", Device.cpu())) {
            model.setBlock(mlp());
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 7));
            model.save(root.resolve("mlp"), "mlp");
        }
    }

    private static Block mlp() {
        return new Mlp(7, 4, new int[] {9, 8});
    }

    /** What can be loaded without this library: blocks of DJL's zoo, and a script. */
    private ZooModel<NDList, NDList> load(boolean script)
            throws IOException, ModelNotFoundException, MalformedModelException {
        return script
                ? SmallModels.criteria(Path.of("src/test/resources/zoo/features.pt"))
                        .build()
                        .loadModel()
                : SmallModels.criteria(root.resolve("mlp")).optBlock(mlp()).build().loadModel();
    }

    @DataProvider
    public static Object[][] kinds() {
        return new Object[][] {{false, false}, {false, true}, {true, false}};
    }

    @Test(dataProvider = "kinds", timeOut = 120_000)
    public void trainsAlikeOnAnyNumberOfRanks(boolean script, boolean trained) throws Exception {
        float[] serial = train(script, trained, ParallelMode.TENSOR, 0);
        for (int ranks = 1; ranks <= 3; ranks++) {
            for (ParallelMode mode : new ParallelMode[] {ParallelMode.TENSOR, ParallelMode.MIXED}) {
                SmallModels.assertClose(train(script, trained, mode, ranks), serial);
            }
        }
    }

    /** Returns the losses of the steps and then the outputs; 0 ranks is DJL's own trainer. */
    private float[] train(boolean script, boolean trained, ParallelMode mode, int ranks)
            throws Exception {
        Engine.getInstance().setRandomSeed(5);
        try (ZooModel<NDList, NDList> pretrained = load(script);
                Model model = Model.newInstance("classifier", Device.cpu())) {
            model.setBlock(
                    PretrainedClassifier.builder()
                            .setBackbone(pretrained.getBlock())
                            .optTrained(trained)
                            .setClasses(CLASSES)
                            .optDropLast(script ? 0 : 1) // the head of the pretrained network
                            .build());
            Loss loss =
                    ranks == 0
                            ? Loss.softmaxCrossEntropyLoss()
                            : new VocabParallelCrossEntropyLoss();
            DefaultTrainingConfig config = Configs.of(loss, Configs.sgd(0.3f));
            try (Trainer trainer =
                    ranks == 0
                            ? new Trainer(model, config) // newTrainer would thaw what is frozen
                            : new ParallelTrainer(model, config, Ranks.config(mode, ranks))) {
                trainer.initialize(new Shape(ROWS, 7));
                float[] losses = {step(trainer), step(trainer), step(trainer)};
                assertTrue(losses[2] < losses[0], Arrays.toString(losses));
                float[] outputs = outputs(trainer);
                float[] all = Arrays.copyOf(losses, losses.length + outputs.length);
                System.arraycopy(outputs, 0, all, losses.length, outputs.length);
                return all;
            }
        }
    }

    private static float step(Trainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray batch = manager.create(BATCH, new Shape(ROWS, 7));
            float loss = TrainingRun.backward(trainer, batch, manager.create(LABELS));
            trainer.step();
            return loss;
        }
    }

    private static float[] outputs(Trainer trainer) {
        NDArray batch = trainer.getManager().create(BATCH, new Shape(ROWS, 7));
        return trainer.evaluate(new NDList(batch)).singletonOrThrow().duplicate().toFloatArray();
    }

    @Test(timeOut = 60_000)
    public void aFileOfDjlsLinearIsThatOfAHeadAndBack() throws Exception {
        Path stock = root.resolve("stock");
        Path trained = root.resolve("trained");
        try (Model model = Model.newInstance("stock", Device.cpu())) {
            model.setBlock(sequence(linear(CLASSES)));
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 7));
            model.save(stock, "stock");
        }
        float[] expected;
        Block head = sequence(ClassificationHead.builder().setUnits(CLASSES).build());
        try (ZooModel<NDList, NDList> model =
                        SmallModels.criteria(stock).optBlock(head).build().loadModel();
                ParallelTrainer trainer =
                        new ParallelTrainer(
                                model,
                                Configs.of(new VocabParallelCrossEntropyLoss()),
                                Ranks.config(ParallelMode.TENSOR, 3))) {
            trainer.initialize(new Shape(ROWS, 7));
            step(trainer);
            expected = outputs(trainer);
            trainer.save(trained, "trained");
        }
        Block plain = sequence(linear(CLASSES));
        try (ZooModel<NDList, NDList> model =
                SmallModels.criteria(trained).optBlock(plain).build().loadModel()) {
            SmallModels.assertClose(SmallModels.predict(model, BATCH), expected);
        }
    }

    @Test(timeOut = 60_000)
    public void whatIsMissingIsSaid() throws Exception {
        refused(
                PretrainedClassifier.builder().setBackbone(mlp()).setClasses(3),
                "a backbone with values");
        try (ZooModel<NDList, NDList> model = load(false)) {
            Block backbone = model.getBlock();
            refused(PretrainedClassifier.builder().setBackbone(backbone), "1 class or more, not 0");
            int blocks = backbone.getChildren().size();
            refused(
                    PretrainedClassifier.builder()
                            .setBackbone(backbone)
                            .setClasses(3)
                            .optDropLast(blocks),
                    "optDropLast(" + blocks);
            assertEquals(backbone.getChildren().size(), blocks);
        }
    }

    private static void refused(PretrainedClassifier.Builder builder, String message) {
        Refusals.throwsArgument(builder::build, message);
    }
}

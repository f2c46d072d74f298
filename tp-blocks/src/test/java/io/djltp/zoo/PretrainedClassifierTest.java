package io.djltp.zoo;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

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
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelNotFoundException;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.util.Utils;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

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
    private static final int STEPS = 3;
    private static final float[] BATCH = SmallModels.batch(ROWS);
    private static final float[] LABELS = {0, 3, 10, 7, 3, 1};

    private Path root;

    @BeforeClass
    public void saveBackbone() throws IOException {
        root = Files.createTempDirectory("pretrained");
        Engine.getInstance().setRandomSeed(3);
        try (Model model = Model.newInstance("mlp", Device.cpu())) {
            model.setBlock(mlp());
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 7));
            model.save(root.resolve("mlp"), "mlp");
        }
    }

    @AfterClass
    public void delete() {
        Utils.deleteQuietly(root);
    }

    private static Block mlp() {
        return new Mlp(7, 4, new int[] {9, 8});
    }

    /** What can be loaded without this library: blocks of DJL's zoo, and a script. */
    private ZooModel<NDList, NDList> load(boolean script)
            throws IOException, ModelNotFoundException, MalformedModelException {
        Criteria.Builder<NDList, NDList> criteria =
                Criteria.builder().setTypes(NDList.class, NDList.class).optDevice(Device.cpu());
        if (script) {
            return criteria.optModelPath(Path.of("src/test/resources/zoo/features.pt"))
                    .build()
                    .loadModel();
        }
        return criteria.optModelPath(root.resolve("mlp")).optBlock(mlp()).build().loadModel();
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
            PretrainedClassifier.Builder builder =
                    PretrainedClassifier.builder()
                            .setBackbone(pretrained.getBlock())
                            .optTrained(trained)
                            .setClasses(CLASSES);
            if (!script) {
                builder.optDropLast(1); // the head of the pretrained network
            }
            model.setBlock(builder.build());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(
                                    ranks == 0
                                            ? Loss.softmaxCrossEntropyLoss()
                                            : new VocabParallelCrossEntropyLoss())
                            .optDevices(new Device[] {Device.cpu()})
                            .optOptimizer(
                                    Optimizer.sgd()
                                            .setLearningRateTracker(Tracker.fixed(0.3f))
                                            .build());
            List<Float> numbers = new ArrayList<>();
            try (Trainer trainer = newTrainer(model, config, mode, ranks)) {
                trainer.initialize(new Shape(ROWS, 7));
                for (int step = 0; step < STEPS; step++) {
                    numbers.add(step(trainer));
                }
                NDArray batch = trainer.getManager().create(BATCH, new Shape(ROWS, 7));
                NDArray logits = trainer.evaluate(new NDList(batch)).singletonOrThrow();
                for (float logit : logits.duplicate().toFloatArray()) {
                    numbers.add(logit);
                }
            }
            assertTrue(numbers.get(STEPS - 1) < numbers.get(0), numbers.toString());
            float[] result = new float[numbers.size()];
            for (int i = 0; i < result.length; i++) {
                result[i] = numbers.get(i);
            }
            return result;
        }
    }

    private static Trainer newTrainer(
            Model model, DefaultTrainingConfig config, ParallelMode mode, int ranks) {
        if (ranks == 0) {
            return new Trainer(model, config); // model.newTrainer would thaw what is frozen
        }
        return new ParallelTrainer(
                model, config, ParallelConfig.builder().setMode(mode).setRanks(ranks).build());
    }

    private static float step(Trainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDList labels = new NDList(manager.create(LABELS));
            NDList data = new NDList(manager.create(BATCH, new Shape(ROWS, 7)));
            NDArray loss = trainer.getLoss().evaluate(labels, trainer.forward(data, labels));
            collector.backward(loss);
            trainer.step();
            return loss.getFloat();
        }
    }

    @Test(timeOut = 60_000)
    public void aFileOfDjlsLinearIsThatOfAHeadAndBack() throws Exception {
        Path stock = root.resolve("stock");
        Path trained = root.resolve("trained");
        try (Model model = Model.newInstance("stock", Device.cpu())) {
            model.setBlock(new SequentialBlock().add(Linear.builder().setUnits(CLASSES).build()));
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 7));
            model.save(stock, "stock");
        }
        Criteria<NDList, NDList> head =
                Criteria.builder()
                        .setTypes(NDList.class, NDList.class)
                        .optModelPath(stock)
                        .optDevice(Device.cpu())
                        .optBlock(
                                new SequentialBlock()
                                        .add(
                                                ClassificationHead.builder()
                                                        .setUnits(CLASSES)
                                                        .build()))
                        .build();
        float[] expected;
        try (ZooModel<NDList, NDList> model = head.loadModel()) {
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optDevices(new Device[] {Device.cpu()});
            try (Trainer trainer = newTrainer(model, config, ParallelMode.TENSOR, 3)) {
                trainer.initialize(new Shape(ROWS, 7));
                step(trainer);
                expected = outputs(trainer);
                ((ParallelTrainer) trainer).save(trained, "trained");
            }
        }
        Criteria<NDList, NDList> linear =
                Criteria.builder()
                        .setTypes(NDList.class, NDList.class)
                        .optModelPath(trained)
                        .optDevice(Device.cpu())
                        .optBlock(
                                new SequentialBlock()
                                        .add(Linear.builder().setUnits(CLASSES).build()))
                        .build();
        try (ZooModel<NDList, NDList> model = linear.loadModel();
                NDManager manager = NDManager.newBaseManager(Device.cpu())) {
            NDList batch = new NDList(manager.create(BATCH, new Shape(ROWS, 7)));
            SmallModels.assertClose(
                    model.newPredictor().predict(batch).singletonOrThrow().toFloatArray(),
                    expected);
        }
    }

    private static float[] outputs(Trainer trainer) {
        NDArray batch = trainer.getManager().create(BATCH, new Shape(ROWS, 7));
        return trainer.evaluate(new NDList(batch)).singletonOrThrow().duplicate().toFloatArray();
    }

    @Test(timeOut = 60_000)
    public void whatIsMissingIsSaid() throws Exception {
        String message = refusal(PretrainedClassifier.builder().setBackbone(mlp()).setClasses(3));
        assertTrue(message.contains("a backbone with values"), message);
        try (ZooModel<NDList, NDList> model = load(false)) {
            message = refusal(PretrainedClassifier.builder().setBackbone(model.getBlock()));
            assertTrue(message.contains("1 class or more, not 0"), message);
            int blocks = model.getBlock().getChildren().size();
            message =
                    refusal(
                            PretrainedClassifier.builder()
                                    .setBackbone(model.getBlock())
                                    .setClasses(3)
                                    .optDropLast(blocks));
            assertTrue(message.contains("optDropLast(" + blocks), message);
            assertEquals(model.getBlock().getChildren().size(), blocks);
        }
    }

    private static String refusal(PretrainedClassifier.Builder builder) {
        return expectThrows(IllegalArgumentException.class, builder::build).getMessage();
    }
}

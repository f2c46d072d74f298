package io.djltp.training;

import static io.djltp.testing.Blocks.linear;

import static org.testng.Assert.assertTrue;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.NoopTranslator;

import io.djltp.collective.ForkedJvm;
import io.djltp.head.TopClasses;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.EmbeddingBag;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.search.ClassSearch;
import io.djltp.testing.Configs;

import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;

/** Blocks, losses and optimizers under plain DJL, where nothing of ours has loaded libtorch. */
public class FirstUseTest {

    @DataProvider
    public Object[][] uses() {
        return new Object[][] {{"predictor"}, {"trainer"}, {"loss"}, {"search"}};
    }

    @Test(dataProvider = "uses", timeOut = 90_000)
    public void theProcessHoldsOneLibtorchAndEndsWell(String use) throws Exception {
        if (!Files.isReadable(Path.of("/proc/self/maps"))) {
            throw new SkipException("this system does not tell what is loaded");
        }
        ForkedJvm jvm = new ForkedJvm().option("-XX:ErrorFile=/dev/null");
        String text = jvm.option("-XX:-CreateCoredumpOnCrash").succeed(getClass(), use).strip();
        assertTrue(text.endsWith("copies=1"), text);
    }

    /**
     * Uses one of this library's classes, as the first thing in a JVM.
     *
     * @param args which one
     * @throws Exception if it fails
     */
    public static void main(String[] args) throws Exception {
        try (NDManager manager = NDManager.newBaseManager()) {
            switch (args[0]) {
                case "predictor" -> predict(manager);
                case "trainer" -> train(manager, Loss.l2Loss());
                case "loss" -> train(manager, new VocabParallelCrossEntropyLoss());
                default -> search(manager);
            }
        }
        long copies =
                Files.readAllLines(Path.of("/proc/self/maps")).stream()
                        .filter(line -> line.contains("libtorch_cpu."))
                        .map(line -> line.substring(line.indexOf('/')))
                        .distinct()
                        .count();
        System.out.println("copies=" + copies);
    }

    private static void predict(NDManager manager) throws Exception {
        try (Model model = Model.newInstance("model", "PyTorch")) {
            EmbeddingBag bag = new EmbeddingBag(9, 2);
            bag.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 3));
            model.setBlock(bag);
            try (Predictor<NDList, NDList> predictor = model.newPredictor(new NoopTranslator())) {
                NDArray ids = manager.create(new int[] {1, 2, 0}, new Shape(1, 3));
                predictor.predict(new NDList(ids)).singletonOrThrow().toFloatArray();
            }
        }
    }

    private static void train(NDManager manager, Loss loss) {
        try (Model model = Model.newInstance("model", "PyTorch")) {
            model.setBlock(linear(2));
            DefaultTrainingConfig config =
                    Configs.of(
                            loss,
                            RowwiseAdagrad.builder()
                                    .optLearningRateTracker(Tracker.fixed(0.1f))
                                    .build());
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, 2));
                NDList x = new NDList(manager.ones(new Shape(1, 2)));
                boolean isClass = loss instanceof VocabParallelCrossEntropyLoss;
                NDList y = new NDList(manager.ones(isClass ? new Shape(1) : new Shape(1, 2)));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    collector.backward(loss.evaluate(y, trainer.forward(x)));
                }
                if (!isClass) { // DJL takes gradients that sum to zero, as a softmax's, for none
                    trainer.step();
                }
            }
        }
    }

    private static void search(NDManager manager) {
        Linear layer = Linear.builder().setUnits(4).optBias(false).build();
        layer.initialize(manager, DataType.FLOAT32, new Shape(1, 3));
        try (ClassSearch search = ClassSearch.of(layer);
                TopClasses best = search.topK(manager.ones(new Shape(1, 3)), 2)) {
            best.classes().toLongArray();
        }
    }
}

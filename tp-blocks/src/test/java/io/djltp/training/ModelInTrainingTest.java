package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertBitEqual;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;

import io.djltp.head.TopClasses;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.RankFailedException;
import io.djltp.search.ClassSearch;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainerKind;

import org.testng.Assert.ThrowingRunnable;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;

/**
 * While ranks hold the parts of a model, whoever takes it for a whole one gets an error, and never
 * numbers; when the trainer is closed everything works again.
 */
public class ModelInTrainingTest {

    private static final int ROWS = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 9;

    private Model model;
    private ColumnParallelLinear head;
    private NDManager manager;

    @BeforeMethod
    public void createModel() {
        Engine.getInstance().setRandomSeed(5);
        model = Model.newInstance("net", Device.cpu());
        head = gathered(CLASSES);
        model.setBlock(sequence(linear(FEATURES), head));
        manager = NDManager.newBaseManager();
    }

    @AfterMethod
    public void closeModel() {
        manager.close();
        model.close();
    }

    /** Modes in which something is cut. */
    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_2, MIXED_3);
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aPredictor(TrainerKind kind) throws Exception {
        NDList data = data();
        try (Predictor<NDList, NDList> unused = predictor();
                Predictor<NDList, NDList> used = predictor()) {
            model.getBlock()
                    .initialize(model.getNDManager(), model.getDataType(), data.getShapes());
            float[] start = values(used.predict(data));
            Predictor<NDList, NDList> meanwhile;
            try (Trainer trainer = open(kind)) {
                assertClose(values(trainer.evaluate(data)), start, 1e-6, "before");
                step(trainer);
                meanwhile = predictor();
                assertRefused(unused, data);
                assertRefused(used, data);
                assertRefused(meanwhile, data);
                step(trainer); // which goes on
            }
            float[] trained = values(unused.predict(data));
            assertNotEquals(trained, start);
            assertBitEqual(values(used.predict(data)), trained, "used before");
            assertBitEqual(values(meanwhile.predict(data)), trained, "made meanwhile");
            meanwhile.close();
        }
    }

    private static void assertRefused(Predictor<NDList, NDList> predictor, NDList data) {
        assertMessage(
                expectThrows(TranslateException.class, () -> predictor.predict(data)).getCause());
    }

    private static void assertMessage(Throwable e) {
        assertEquals(e.getClass(), IllegalStateException.class);
        for (String part :
                new String[] {
                    "weight (9, 5)", "open ParallelTrainer", "evaluate", "close", "save"
                }) {
            assertTrue(e.getMessage().contains(part), part + " in: " + e.getMessage());
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aSecondTrainer(TrainerKind kind) {
        try (Trainer trainer = open(kind)) {
            step(trainer);
            for (ParallelMode mode : ParallelMode.values()) {
                throwsState(
                        () -> new ParallelTrainer(model, config(), Ranks.config(mode, 2)),
                        "Another open ParallelTrainer",
                        "close it first");
            }
            trainer.initialize(new Shape(ROWS, FEATURES)); // the same one may
            try (Trainer other = model.newTrainer(Configs.of(Loss.softmaxCrossEntropyLoss()))) {
                other.initialize(new Shape(ROWS, FEATURES));
                assertMessage(
                        expectThrows(IllegalStateException.class, () -> other.forward(data())));
            }
        }
        try (Trainer trainer = open(kind)) {
            step(trainer);
        }
        try (Trainer plain = PLAIN.open(model, config())) {
            plain.initialize(new Shape(ROWS, FEATURES));
            step(plain);
        }
    }

    /** Its arrays are gone, those of the ranks too. */
    @Test(timeOut = 60_000)
    public void aModelThatIsClosedFirst() {
        for (ParallelMode mode : ParallelMode.values()) {
            createModel();
            try (Trainer trainer = open(new TrainerKind(mode, 2))) {
                step(trainer);
                model.close();
                for (ThrowingRunnable call :
                        new ThrowingRunnable[] {
                            () -> step(trainer), () -> trainer.evaluate(data()), trainer::step
                        }) {
                    throwsState(call, "model net was closed", "close the trainer before");
                }
            }
            manager.close();
        }
    }

    /** DJL's trainer would train the other one; the ranks have the weights of the first. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void anotherBlockForTheModel(TrainerKind kind) {
        try (Trainer trainer = open(kind)) {
            step(trainer);
            Block block = model.getBlock();
            model.setBlock(linear(CLASSES));
            for (ThrowingRunnable call :
                    new ThrowingRunnable[] {
                        () -> step(trainer), () -> trainer.evaluate(data()), trainer::step
                    }) {
                throwsState(call, "model net was given another block", "close the trainer");
            }
            model.setBlock(block);
            step(trainer); // nothing is lost
        }
    }

    /** What DJL's trainer makes of a parameter that is not cut is that of rank 0 alone. */
    @Test(timeOut = 60_000)
    public void aTrainerOfDjlOnReplicas() {
        expect(
                RankFailedException.class,
                () -> {
                    try (Trainer trainer = open(DATA_2)) {
                        step(trainer);
                        try (Trainer other = PLAIN.open(model, config())) {
                            other.initialize(new Shape(ROWS, FEATURES));
                            step(other);
                        }
                        step(trainer);
                    }
                },
                "another trainer of the model");
    }

    /** One that was opened before, and refused what it was given. */
    @Test(timeOut = 60_000)
    public void aTrainerOpenedBeforeTheOtherWasInitialized() {
        try (Trainer first =
                        new ParallelTrainer(model, config(), Ranks.config(ParallelMode.TENSOR, 2));
                Trainer second =
                        new ParallelTrainer(
                                model, config(), Ranks.config(ParallelMode.TENSOR, 3))) {
            first.initialize(new Shape(ROWS, FEATURES));
            expectThrows(
                    IllegalStateException.class,
                    () -> second.initialize(new Shape(ROWS, FEATURES)));
            step(first);
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aSearchAndABlock(TrainerKind kind) {
        NDArray features = random(manager, 1, ROWS, FEATURES);
        ParameterStore store = new ParameterStore(manager, false);
        try (Trainer trainer = open(kind)) {
            step(trainer);
            assertMessage(expectThrows(IllegalStateException.class, () -> ClassSearch.of(head)));
            assertMessage(
                    expectThrows(
                            IllegalStateException.class,
                            () -> head.forward(store, new NDList(features), false)));
        }
        float[] logits = values(head.forward(store, new NDList(features), false));
        try (ClassSearch search = ClassSearch.of(head);
                TopClasses best = search.topK(features, 1)) {
            float largest = Float.NEGATIVE_INFINITY;
            for (int i = 0; i < CLASSES; i++) {
                largest = Math.max(largest, logits[i]);
            }
            assertEquals(best.logits().toFloatArray()[0], largest, 1e-6f);
        }
    }

    /** Nobody can throw there: the second line of defence. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void theArrayItselfIsNaN(TrainerKind kind) {
        try (Trainer trainer = open(kind)) {
            step(trainer);
            Parameter weight = head.getDirectParameters().get("weight");
            assertEquals(weight.getArray().getShape(), new Shape(CLASSES, FEATURES));
            assertTrue(weight.getArray().isNaN().all().getBoolean());
            assertTrue(weight.getArray().sum().isNaN().getBoolean());
        }
        assertFalse(head.getDirectParameters().get("weight").getArray().isNaN().any().getBoolean());
    }

    /** A trainer that cannot be initialized leaves the model as it was. */
    @Test(timeOut = 60_000)
    public void aTrainerThatRefusesTheModel() {
        Block wide = column(8);
        Block narrow = column(3);
        model.setBlock(sequence(wide, narrow));
        model.getBlock()
                .initialize(model.getNDManager(), model.getDataType(), new Shape(ROWS, FEATURES));
        float[] before = wide.getParameters().valueAt(0).getArray().toFloatArray();
        for (TrainerKind kind : new TrainerKind[] {TENSOR_4, MIXED_2}) {
            try (Trainer trainer = kind.open(model, config())) {
                expectThrows(
                        IllegalArgumentException.class,
                        () -> trainer.initialize(new Shape(ROWS, FEATURES)));
            }
            assertBitEqual(
                    wide.getParameters().valueAt(0).getArray().toFloatArray(), before, "" + kind);
        }
    }

    /** A loaded weight lies in a buffer of Java's, which nobody may go on reading or writing. */
    @Test(timeOut = 60_000)
    public void aLoadedModel() throws Exception {
        model.getBlock()
                .initialize(model.getNDManager(), model.getDataType(), new Shape(ROWS, FEATURES));
        Path folder = Files.createTempDirectory("in-training");
        try {
            model.save(folder, "net");
            model.load(folder, "net");
            NDList data = data();
            try (Predictor<NDList, NDList> predictor = predictor()) {
                float[] start = values(predictor.predict(data));
                try (Trainer trainer = open(TENSOR_2)) {
                    assertClose(values(trainer.evaluate(data)), start, 1e-6, "before");
                    System.gc();
                    step(trainer);
                }
                assertNotEquals(values(predictor.predict(data)), start);
            }
        } finally {
            Files.delete(folder.resolve("net-0000.params"));
            Files.delete(folder);
        }
    }

    private Predictor<NDList, NDList> predictor() {
        return model.newPredictor(new NoopTranslator());
    }

    private Trainer open(TrainerKind kind) {
        Trainer trainer = kind.open(model, config());
        trainer.initialize(new Shape(ROWS, FEATURES));
        return trainer;
    }

    private static DefaultTrainingConfig config() {
        return Configs.of(Loss.softmaxCrossEntropyLoss());
    }

    private NDList data() {
        return new NDList(random(manager, 3, ROWS, FEATURES));
    }

    private void step(Trainer trainer) {
        backward(trainer, random(manager, 4, ROWS, FEATURES), labels(manager, 4, ROWS, CLASSES));
        trainer.step();
    }

    private static float[] values(NDList output) {
        return output.singletonOrThrow().toFloatArray();
    }
}

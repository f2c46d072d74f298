package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.ArrayAssert.assertBitEqual;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.gathered;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.logged;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.steps;
import static io.djltp.testing.TrainingRun.weights;

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
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.translate.NoopTranslator;
import ai.djl.translate.TranslateException;
import ai.djl.util.PairList;

import io.djltp.head.TopClasses;
import io.djltp.internal.loss.ShardedLoss;
import io.djltp.internal.rank.ParallelContext;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.RankFailedException;
import io.djltp.search.ClassSearch;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.RankThreads;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * While ranks hold the parts of a model, whoever takes it for a whole one gets an error, and never
 * numbers; when the trainer is closed everything works again.
 */
public class ModelInTrainingTest {

    private static final int CLASSES = 9;
    private static final Network.Batches BATCHES = Network.batches("6x5", "6:9");
    private static final Shape INPUT = new Shape(6, 5);
    private static final String[] TAKEN = {
        "weight (9, 5)", "open ParallelTrainer", "evaluate", "close", "save"
    };

    private Model model;
    private ColumnParallelLinear head;
    private NDManager manager;
    private NDList data;

    @BeforeMethod
    public void createModel() {
        Engine.getInstance().setRandomSeed(5);
        model = Model.newInstance("net", Device.cpu());
        head = gathered(CLASSES);
        model.setBlock(sequence(linear(5), head));
        manager = NDManager.newBaseManager();
        data = BATCHES.make(manager, 3)[0];
    }

    @AfterMethod(alwaysRun = true)
    public void closeModel() {
        manager.close();
        model.close();
    }

    /** Modes in which something is cut. */
    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.rows(TENSOR_2, MIXED_3);
    }

    private static DefaultTrainingConfig config() {
        return Configs.of(Loss.softmaxCrossEntropyLoss());
    }

    private Trainer open(TrainerKind kind) {
        return kind.open(model, config(), INPUT);
    }

    private static void step(Trainer trainer) {
        steps(trainer, new ArrayList<>(), BATCHES, 4, 5);
    }

    private Predictor<NDList, NDList> predictor() {
        return model.newPredictor(new NoopTranslator());
    }

    private static float[] values(NDList output) {
        return output.singletonOrThrow().toFloatArray();
    }

    /** Ranks that all compute the same are warned of, once. */
    @Test(timeOut = 60_000)
    public void aNetworkWithoutParallelLayers() {
        String warning = "No layer of SequentialBlock is split: each of the 2 ranks";
        String said = "";
        for (TrainerKind kind : new TrainerKind[] {TENSOR_2, DATA_2, MESH_2X2}) {
            model.setBlock(sequence(linear(5), linear(CLASSES)));
            String each =
                    logged(
                            () -> {
                                try (Trainer trainer = open(kind)) {
                                    trainer.initialize(INPUT);
                                    step(trainer);
                                }
                            });
            said += each.contains(warning) ? kind + " " : "";
            assertTrue(each.split(warning, -1).length <= 2, each);
        }
        assertEquals(said, TENSOR_2 + " " + MESH_2X2 + " ");
        model.setBlock(sequence(linear(5), gathered(CLASSES)));
        assertEquals(logged(() -> open(TENSOR_2).close()), "");
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aPredictor(TrainerKind kind) throws Exception {
        Predictor<NDList, NDList> meanwhile;
        try (Predictor<NDList, NDList> unused = predictor();
                Predictor<NDList, NDList> used = predictor()) {
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
            float[] start = values(used.predict(data));
            try (Trainer trainer = open(kind)) {
                assertClose(values(trainer.evaluate(data)), start, 1e-6, "before");
                step(trainer);
                meanwhile = predictor();
                for (Predictor<NDList, NDList> each : List.of(unused, used, meanwhile)) {
                    throwsState(
                            () -> {
                                throw expectThrows(
                                                TranslateException.class, () -> each.predict(data))
                                        .getCause();
                            },
                            TAKEN);
                }
                step(trainer); // which goes on
            }
            float[] trained = values(unused.predict(data));
            assertNotEquals(trained, start);
            assertBitEqual(values(used.predict(data)), trained, "used before");
            assertBitEqual(values(meanwhile.predict(data)), trained, "made meanwhile");
            meanwhile.close();
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aSecondTrainer(TrainerKind kind) {
        try (Trainer trainer = open(kind)) {
            step(trainer);
            for (TrainerKind other : List.of(TENSOR_2, DATA_2, MIXED_2)) {
                throwsState(
                        () -> other.open(model, config()),
                        "Another open ParallelTrainer .. close it first");
            }
            trainer.initialize(INPUT); // the same one may
            try (Trainer other = PLAIN.open(model, config(), INPUT)) {
                throwsState(() -> other.forward(data), TAKEN);
            }
        }
        for (TrainerKind next : List.of(kind, PLAIN)) {
            try (Trainer trainer = open(next)) {
                step(trainer);
            }
        }
        // one that was opened before the other was initialized
        try (Trainer first = TENSOR_2.open(model, config());
                Trainer second = TENSOR_3.open(model, config())) {
            first.initialize(INPUT);
            throwsState(() -> second.initialize(INPUT));
            step(first);
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
                        try (Trainer other = open(PLAIN)) {
                            step(other);
                        }
                        step(trainer);
                    }
                },
                "another trainer of the model");
    }

    private void assertAllThrow(Trainer trainer, String... parts) {
        throwsState(() -> step(trainer), parts);
        throwsState(() -> trainer.evaluate(data), parts);
        throwsState(trainer::step, parts);
        throwsState(() -> ((ParallelTrainer) trainer).save(Path.of("unused"), "net"), parts);
    }

    /** Its arrays are gone, those of the ranks too. */
    @Test(timeOut = 60_000)
    public void aModelThatIsClosedFirst() {
        String closed = "model net was closed .. close the trainer before";
        for (TrainerKind kind : List.of(TENSOR_2, DATA_2, MIXED_2)) {
            createModel();
            try (Trainer trainer = open(kind)) {
                step(trainer);
                NDList labels = BATCHES.make(manager, 3)[1];
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList output = trainer.forward(data, labels);
                    NDArray loss = trainer.getLoss().evaluate(labels, output);
                    model.close();
                    throwsState(() -> collector.backward(loss), closed);
                    throwsState(collector::zeroGradients, closed);
                    throwsState(() -> trainer.getLoss().evaluate(labels, output), closed);
                    throwsState(() -> ClassSearch.of(head), "closed with its model");
                }
                assertAllThrow(trainer, closed);
                throwsState(() -> trainer.getModel().save(Path.of("closed"), "net"), closed);
            }
            String reason = kind == DATA_2 ? "closed with its model" : "closed before the Parallel";
            throwsState(() -> ClassSearch.of(head), "weight (9, 5) .. " + reason + " .. load");
        }
    }

    /** DJL's trainer would train the other one; the ranks have the weights of the first. */
    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void anotherBlockForTheModel(TrainerKind kind) {
        try (Trainer trainer = open(kind)) {
            step(trainer);
            Block block = model.getBlock();
            model.setBlock(linear(CLASSES));
            assertAllThrow(trainer, "model net was given another block .. close the trainer");
            model.setBlock(block);
            step(trainer); // nothing is lost
        }
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void aSearchAndABlock(TrainerKind kind) {
        ParameterStore store = new ParameterStore(manager, false);
        Parameter weight = head.getDirectParameters().get("weight");
        try (Trainer trainer = open(kind)) {
            step(trainer);
            throwsState(() -> ClassSearch.of(head), TAKEN);
            throwsState(() -> head.forward(store, data, false), TAKEN);
            // the array itself is NaN: nobody can throw there, it is the second line of defence
            assertEquals(weight.getArray().getShape(), new Shape(CLASSES, 5));
            assertTrue(weight.getArray().isNaN().all().getBoolean());
            assertTrue(weight.getArray().sum().isNaN().getBoolean());
        }
        assertFalse(weight.getArray().isNaN().any().getBoolean());
        NDArray logits = head.forward(store, data, false).head();
        try (ClassSearch search = ClassSearch.of(head);
                TopClasses best = search.topK(data.head(), 1)) {
            float largest = logits.get(0).max().getFloat();
            assertEquals(best.logits().toFloatArray()[0], largest, 1e-6f);
        }
    }

    /** A trainer that cannot be initialized leaves the model as it was. */
    @Test(timeOut = 60_000)
    public void aTrainerThatRefusesTheModel() {
        model.setBlock(sequence(column(8), column(3)));
        model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
        List<float[]> before = weights(model.getBlock());
        for (TrainerKind kind : List.of(TENSOR_4, MIXED_2)) {
            try (Trainer trainer = kind.open(model, config())) {
                throwsArgument(() -> trainer.initialize(INPUT));
            }
            assertAllBitEqual(weights(model.getBlock()), before, "" + kind);
        }
    }

    /** A loaded weight lies in a buffer of Java's, which nobody may go on reading or writing. */
    @Test(timeOut = 60_000)
    public void aLoadedModel() throws Exception {
        model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
        Path folder = TestFolder.create();
        try (Predictor<NDList, NDList> predictor = predictor()) {
            model.save(folder, "net");
            model.load(folder, "net");
            float[] start = values(predictor.predict(data));
            try (Trainer trainer = open(TENSOR_2)) {
                assertClose(values(trainer.evaluate(data)), start, 1e-6, "before");
                System.gc();
                step(trainer);
            }
            assertNotEquals(values(predictor.predict(data)), start);
        }
    }

    /** A block that is no child of another one is initialized once, before the ranks begin. */
    @Test(timeOut = 60_000)
    public void aBlockInAField() {
        AtomicInteger initialized = new AtomicInteger();
        LambdaBlock inner =
                new LambdaBlock(input -> input) {
                    @Override
                    public void initialize(NDManager m, DataType type, Shape... shapes) {
                        initialized.incrementAndGet();
                        super.initialize(m, type, shapes);
                    }
                };
        LambdaBlock outer =
                new LambdaBlock(input -> input) {
                    private final Block field = inner;

                    @Override
                    protected NDList forwardInternal(
                            ParameterStore store,
                            NDList inputs,
                            boolean training,
                            PairList<String, Object> p) {
                        return field.forward(store, inputs, training);
                    }
                };
        model.setBlock(sequence(linear(3), outer));
        try (Trainer trainer = DATA_4.open(model, Configs.of(Loss.l1Loss()), INPUT)) {
            assertEquals(initialized.get(), 1);
            steps(trainer, new ArrayList<>(), Network.batches("6x5", "6x3"), 0, 1);
            assertEquals(initialized.get(), 1); // and by none of the ranks
        }
    }

    /** A trainer that cannot be made leaves nothing behind. */
    @Test(timeOut = 60_000)
    public void theRanksOfATrainerThatWasNotMadeEnd() throws InterruptedException {
        int arrays = model.getNDManager().getManagedArrays().size();
        RankThreads ranks = new RankThreads();
        for (int i = 0; i < 3; i++) {
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss(), null);
            expect(RuntimeException.class, () -> TENSOR_2.open(model, config));
        }
        ranks.assertCount(0);
        assertEquals(model.getNDManager().getManagedArrays().size(), arrays);
    }

    /**
     * What a rank computes with belongs to managers of its own, which are on its device: a constant
     * that a block or a loss makes beside an array is then where the array is. On a CPU all devices
     * are one; that no manager serves two ranks is what can be seen of it there.
     */
    @Test(timeOut = 60_000)
    public void noManagerServesTwoRanks() {
        for (TrainerKind kind : List.of(TENSOR_2, DATA_2, MIXED_2)) {
            Owners owners = new Owners();
            Block block = kind == DATA_2 ? linear(CLASSES) : head(CLASSES);
            TrainingRun.of(kind, block, Configs.of(owners), BATCHES, 1);
            assertTrue(owners.ranks.size() >= 4, owners.ranks.toString());
        }
    }

    /** Notes which rank has arrays of which manager. */
    private static final class Owners extends Loss implements ShardedLoss {
        private final Loss loss = new VocabParallelCrossEntropyLoss();
        private final Map<NDManager, Integer> ranks =
                Collections.synchronizedMap(new IdentityHashMap<>());

        Owners() {
            super("owners");
        }

        @Override
        public NDArray evaluate(NDList labels, NDList predictions) {
            NDArray value = loss.evaluate(labels, predictions);
            for (NDArray array : List.of(labels.head(), predictions.head(), value)) {
                ParallelContext context = ParallelContext.current();
                assertEquals(array.getManager().getDevice(), context.getDevice());
                Integer other = ranks.put(array.getManager(), context.getRank());
                assertTrue(other == null || other == context.getRank(), "shared: " + array);
            }
            return value;
        }

        @Override
        public float getWeight(NDList labels, Shape predictions) {
            return labels.head().size();
        }
    }
}

package io.djltp.nn;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.PLAIN;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import com.google.gson.Gson;

import io.djltp.internal.rank.ParallelContext;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.optimizer.RowwiseAdagrad;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.PyTorch;
import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.TrainerKind;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;

/**
 * Rows that a step has used are updated as a gradient of the whole table would update them. Every
 * second batch has weights, and wider bags.
 */
public class EmbeddingBagTest extends RecordedTest {

    private static final int ROWS = 37;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;
    private static final int PLACES = 4;
    private static final int LONG = 300;
    private static final int DOCUMENT = 5_000; // terms, from this step on
    private static final int STEP_OF_DOCUMENTS = 500;
    private static final int BATCH = 9; // uneven over 2 and 4 ranks
    private static final int STEPS = 5;

    private float[][] ofPyTorch;

    @DataProvider
    public Object[][] cases() {
        Tracker rate = Tracker.fixed(0.5f);
        List<Supplier<Optimizer>> optimizers =
                List.of(
                        () -> Optimizer.sgd().setLearningRateTracker(rate).build(),
                        () -> RowwiseAdagrad.builder().optLearningRateTracker(rate).build(),
                        // these move rows without a gradient too: the table has one as a whole
                        () -> Configs.sgd(0.5f, 0.9f),
                        () -> Configs.adam(.1f));
        List<Object[]> cases = new ArrayList<>();
        for (Supplier<Optimizer> optimizer : optimizers) {
            for (Object[] kind : TrainerKind.parallel()) {
                // those with a gradient of the whole table go the way of any parameter
                boolean sparse = optimizers.indexOf(optimizer) < 2;
                if (sparse || ((TrainerKind) kind[0]).ranks() == 3) {
                    cases.add(new Object[] {optimizer, kind[0]});
                }
            }
        }
        return cases.toArray(new Object[0][]);
    }

    /** Five steps, each of two batches whose gradients add up, or of one behind a forgotten one. */
    @Test(dataProvider = "cases", timeOut = 60_000)
    public void equalsDjlsTrainer(Supplier<Optimizer> optimizer, TrainerKind kind) {
        Passes two = EmbeddingBagTest::twoBatches;
        float[][] expected = train(optimizer.get(), PLAIN, two);
        assertSame(train(optimizer.get(), kind, two), expected);
        assertSame(train(optimizer.get(), kind, EmbeddingBagTest::badIds), expected);
        Passes zeros = EmbeddingBagTest::zeroGradients;
        assertSame(train(optimizer.get(), kind, zeros), train(optimizer.get(), PLAIN, zeros));
    }

    @DataProvider
    public Object[][] kinds() {
        return TrainerKind.parallel();
    }

    @Test(dataProvider = "kinds", timeOut = 60_000)
    public void equalsPyTorchInFloat64(TrainerKind kind) throws IOException, InterruptedException {
        float rate = 0.5f;
        Passes documents =
                (trainer, manager, step) -> twoBatches(trainer, manager, STEP_OF_DOCUMENTS + step);
        assertSame(train(Configs.sgd(rate), kind, documents), expectedOfPyTorch(rate));
    }

    private float[][] expectedOfPyTorch(float rate) throws IOException, InterruptedException {
        if (ofPyTorch == null) {
            List<Object> steps = new ArrayList<>();
            try (NDManager manager = NDManager.newBaseManager()) {
                for (int i = 0; i < STEPS; i++) {
                    int step = STEP_OF_DOCUMENTS + i;
                    List<Object> batches = new ArrayList<>();
                    for (int number : new int[] {2 * step, 2 * step + 1}) {
                        NDList input = ids(manager, number);
                        batches.add(
                                Arrays.asList(
                                        rows(input.head()),
                                        input.size() == 1 ? null : rows(input.get(1)),
                                        labels(manager, number).head().toLongArray()));
                    }
                    steps.add(batches);
                }
            }
            List<Object> parameters = new ArrayList<>();
            train(
                    Configs.sgd(0),
                    PLAIN,
                    (trainer, manager, step) -> {
                        twoBatches(trainer, manager, step);
                        parameters.clear();
                        for (Parameter each :
                                trainer.getModel().getBlock().getParameters().values()) {
                            long[] shape = each.getShape().getShape();
                            parameters.add(List.of(shape, each.getArray().toFloatArray()));
                        }
                    });
            Map<String, Object> input =
                    Map.of("rate", rate, "parameters", parameters, "steps", steps);
            String result = PyTorch.run("nn/bags.py", List.of(new Gson().toJson(input))).get(0);
            ofPyTorch = new Gson().fromJson(result, float[][].class);
        }
        return ofPyTorch;
    }

    private static List<Number[]> rows(NDArray array) {
        int width = (int) array.getShape().get(1);
        Number[] all = array.toArray();
        return IntStream.range(0, BATCH)
                .mapToObj(row -> Arrays.copyOfRange(all, row * width, (row + 1) * width))
                .toList();
    }

    private static void assertSame(float[][] actual, float[][] expected) {
        ArrayAssert.assertAllClose(
                Arrays.asList(actual), Arrays.asList(expected), 1e-5, "parameter");
    }

    /** Gradients are set to zero before each backward pass, when the forward pass is over. */
    private static void zeroGradients(Trainer trainer, NDManager manager, int step) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            backward(trainer, collector, manager, 100 + step); // forgotten
            NDList labels = labels(manager, step);
            NDList output = trainer.forward(ids(manager, step), labels);
            NDArray loss = trainer.getLoss().evaluate(labels, output);
            collector.zeroGradients();
            collector.backward(loss);
        }
    }

    /** Of every rank, in training and in evaluation; then the batch might not have been. */
    @SuppressWarnings("try") // a collector is used by being open
    private static void badIds(Trainer trainer, NDManager manager, int step) {
        NDList labels = labels(manager, step);
        // as int32 the third would be 1
        for (long id : new long[] {-1, ROWS, (1L << 32) + 1, Long.MAX_VALUE}) {
            NDArray bad = ids(manager, step).head().toType(DataType.INT64, true);
            bad.set(new NDIndex("{}, 2", step % 2 == 0 ? 0 : BATCH - 1), id);
            refuses(id, () -> trainer.evaluate(new NDList(bad)));
            try (GradientCollector collector = trainer.newGradientCollector()) {
                refuses(id, () -> trainer.forward(new NDList(bad), labels));
            }
        }
        twoBatches(trainer, manager, step);
    }

    /** Ranks whose part of the batch gives the table no gradient take part in the sum. */
    @Test(timeOut = 60_000)
    public void aGradientOnSomeRanksOnly() {
        int[] present = new int[1];
        train(
                RowwiseAdagrad.builder().build(),
                DATA_3,
                list -> {
                    ParallelContext context = ParallelContext.current(); // null for shapes
                    boolean used = context == null || context.getRank() == present[0];
                    return used ? list : new NDList(list.head().stopGradient());
                },
                (trainer, manager, step) -> {
                    present[0] = step == 3 ? -1 : step % 3; // in one step on none
                    float[] before = table(trainer, 0);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        backward(trainer, collector, manager, step);
                    }
                    for (int rank = 0; rank < 3; rank++) {
                        Assert.assertEquals(table(trainer, rank), before, "rank " + rank);
                    }
                });
    }

    private static float[] table(Trainer trainer, int rank) {
        Parameter table = trainer.getModel().getBlock().getParameters().valueAt(0);
        return ((ParallelTrainer) trainer)
                .getParameterStore(rank)
                .getValue(table, null, true)
                .toFloatArray();
    }

    /** A loop that only reads losses, between two steps. */
    @Test(timeOut = 60_000)
    @SuppressWarnings("try") // a collector is used by being open
    public void passesThatAreNotDifferentiatedLeaveNothing() {
        train(
                RowwiseAdagrad.builder().build(),
                DATA_3,
                (trainer, manager, step) -> {
                    Parameter table = trainer.getModel().getBlock().getParameters().valueAt(0);
                    NDManager lasting =
                            ((ParallelTrainer) trainer)
                                    .getParameterStore(1)
                                    .getValue(table, Device.cpu(), true)
                                    .getManager();
                    int kept = 0;
                    for (int pass = 0; pass < 6; pass++) {
                        try (NDManager batch = manager.newSubManager();
                                GradientCollector collector = trainer.newGradientCollector()) {
                            NDList labels = labels(batch, step);
                            NDList output = trainer.forward(ids(batch, step), labels);
                            trainer.getLoss().evaluate(labels, output).getFloat();
                        }
                        int now = lasting.getManagedArrays().size();
                        Assert.assertTrue(pass < 2 || now == kept, now + " in pass " + pass);
                        kept = now;
                    }
                    twoBatches(trainer, manager, step);
                });
    }

    /** The passes of a step. */
    @FunctionalInterface
    private interface Passes {
        void run(Trainer trainer, NDManager manager, int step);
    }

    /** Two batches whose gradients add up. */
    private static void twoBatches(Trainer trainer, NDManager manager, int step) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            backward(trainer, collector, manager, 2 * step);
            backward(trainer, collector, manager, 2 * step + 1);
        }
    }

    private static float[][] train(Optimizer optimizer, TrainerKind kind, Passes passes) {
        return train(optimizer, kind, list -> list, passes);
    }

    private static float[][] train(
            Optimizer optimizer, TrainerKind kind, UnaryOperator<NDList> between, Passes passes) {
        Engine.getInstance().setRandomSeed(3);
        try (Model model = Model.newInstance("bag")) {
            EmbeddingBag bag = new EmbeddingBag(ROWS, FEATURES);
            bag.setInitializer(new NormalInitializer(1f), Parameter.Type.WEIGHT);
            model.setBlock(sequence(bag, new LambdaBlock(between), head(CLASSES)));
            DefaultTrainingConfig config =
                    Configs.of(new VocabParallelCrossEntropyLoss(), optimizer);
            try (Trainer trainer = kind.open(model, config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(BATCH, PLACES));
                int kept = 0;
                for (int step = 0; step < STEPS; step++) {
                    passes.run(trainer, manager, step);
                    trainer.step();
                    if (kind.isParallel() && step > 0) {
                        Assert.assertEquals(kept(trainer), kept, "arrays after step " + step);
                    }
                    kept = kind.isParallel() ? kept(trainer) : 0;
                }
            }
            return model.getBlock().getParameters().values().stream()
                    .map(parameter -> parameter.getArray().toFloatArray())
                    .toArray(float[][]::new);
        }
    }

    /** Returns how many arrays live as long as the parameters. */
    private static int kept(Trainer trainer) {
        NDManager manager = ((ParallelTrainer) trainer).getParameterStore(0).getManager();
        return manager.getManagedArrays().size();
    }

    private static void backward(
            Trainer trainer, GradientCollector collector, NDManager manager, int number) {
        NDList labels = labels(manager, number);
        NDList output = trainer.forward(ids(manager, number), labels);
        collector.backward(trainer.getLoss().evaluate(labels, output));
    }

    private static NDList ids(NDManager manager, int number) {
        int most = number < 2 * STEP_OF_DOCUMENTS ? LONG : DOCUMENT;
        int places = number % 2 == 0 ? PLACES : most;
        Shape shape = new Shape(BATCH, places);
        NDArray counted = manager.arange(BATCH * places);
        NDArray ids =
                counted.add(5 * number)
                        .mod(19) // of which one is 0; rows 19 and above are never used
                        .toType(DataType.INT32, true)
                        .reshape(shape);
        if (number % 2 == 0) {
            return new NDList(ids);
        }
        NDArray isLong = manager.arange(BATCH).eq(number % BATCH).reshape(-1, 1);
        NDArray isShort = manager.arange(places).lt(PLACES).reshape(1, -1);
        NDArray mask = isLong.logicalOr(isShort).toType(DataType.INT64, true);
        NDArray weights = counted.toType(DataType.FLOAT32, true).sin().reshape(shape);
        return new NDList(ids.toType(DataType.INT64, true).mul(mask), weights);
    }

    private static NDList labels(NDManager manager, int number) {
        return new NDList(
                manager.arange(BATCH).add(number).mod(CLASSES).toType(DataType.INT64, true));
    }

    @Test
    public void anIdIsNamedOutsideOfRanks() {
        EmbeddingBag bag = new EmbeddingBag(ROWS, FEATURES);
        bag.initialize(manager, DataType.FLOAT32, new Shape(1, PLACES));
        NDArray ids = manager.create(new int[] {1, 0, 37, 0}, new Shape(1, PLACES));
        for (boolean training : new boolean[] {false, true}) {
            ParameterStore store = new ParameterStore(manager, false);
            refuses(37, () -> bag.forward(store, new NDList(ids), training));
        }
    }

    private static void refuses(long id, Assert.ThrowingRunnable pass) {
        Refusals.throwsArgument(
                pass,
                "EmbeddingBag (37, 5) was asked for the id " + id + ", at the",
                ", 2] of ids (",
                "a vocabulary of 37 are the whole numbers 0 to 36");
    }

    /** Bags may be empty, and a row may be in a bag twice. */
    @Test
    public void sumsWhatIsThere() {
        EmbeddingBag bag = new EmbeddingBag(3, 1);
        bag.initialize(manager, DataType.FLOAT32, new Shape(1, PLACES));
        bag.getParameters().valueAt(0).getArray().set(new float[] {100, 2, 3});
        NDArray ids = manager.create(new int[] {0, 0, 0, 0, 1, 2, 0, 2}, new Shape(2, PLACES));
        NDArray sums =
                bag.forward(new ParameterStore(manager, false), new NDList(ids), false)
                        .singletonOrThrow();
        Assert.assertEquals(sums.toFloatArray(), new float[] {0, 8});
    }

    /** The weight of a place that is filled up is none; NaN and infinity are weights. */
    @Test
    public void weightsMultiplyRows() {
        EmbeddingBag bag = new EmbeddingBag(3, 1);
        bag.initialize(manager, DataType.FLOAT32, new Shape(1, 2), new Shape(1, 2));
        bag.getParameters().valueAt(0).getArray().set(new float[] {100, 2, 3});
        Shape shape = new Shape(4, 2);
        NDArray ids = manager.create(new long[] {1, 2, 0, 0, 2, 0, 1, 1}, shape);
        float nan = Float.NaN;
        NDArray weights = manager.create(new float[] {.5f, -1, nan, 7, nan, 1, 0, 2}, shape);
        ParameterStore store = new ParameterStore(manager, false);
        for (boolean training : new boolean[] {false, true}) {
            NDArray sums = bag.forward(store, new NDList(ids, weights), training).head();
            Assert.assertEquals(sums.toFloatArray(), new float[] {-2, 0, nan, 4});
        }
        NDList none = new NDList(manager.create(new Shape(3, 0), DataType.INT32));
        Assert.assertEquals(bag.forward(store, none, true).head().toFloatArray(), new float[3]);
    }

    @DataProvider
    public Object[][] inputs() {
        DataType whole = DataType.INT32;
        DataType real = DataType.FLOAT32;
        Shape shape = new Shape(2, 3);
        return new Object[][] {
            {"row numbers of an embedding bag must be int32 or int64, not float32", real, shape},
            {"must be row numbers [batch, places], and maybe", whole, new Shape(6)},
            {
                "float32 (2, 3), as its row numbers are, not int32 (2, 3)",
                whole,
                shape,
                whole,
                shape
            },
            {"not float32 (2, 2)", whole, shape, real, new Shape(2, 2)},
            {"not 3 array(s), the first (2, 3)", whole, shape, real, shape, real, shape},
        };
    }

    @Test(dataProvider = "inputs")
    public void inputsAreRowNumbersAndWeights(Object[] arguments) {
        EmbeddingBag bag = new EmbeddingBag(ROWS, FEATURES);
        bag.initialize(manager, DataType.FLOAT32, new Shape(2, 3));
        NDList input = new NDList();
        for (int i = 1; i < arguments.length; i += 2) {
            input.add(manager.ones((Shape) arguments[i + 1], (DataType) arguments[i]));
        }
        Refusals.throwsArgument(
                () -> bag.forward(new ParameterStore(manager, false), input, false),
                (String) arguments[0]);
    }
}

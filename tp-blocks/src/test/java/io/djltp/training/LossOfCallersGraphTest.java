package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllBitEqual;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.util.Pair;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.LossScaling;
import io.djltp.testing.HalfSquareLoss;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * What a loop of the caller's own adds to a loss, and gives to a pass, in a graph of its own. Of
 * what is in that graph a step has the gradients of DJL's trainer, or it is refused before anything
 * is computed, and the training goes on as though nothing had been.
 */
@SuppressWarnings("try") // a collector is used by being open
public class LossOfCallersGraphTest {

    private static final int ROWS = 5;
    private static final Shape INPUT = new Shape(ROWS, 4);
    private static final int CLASSES = 11;
    private static final double TOLERANCE = 1e-5;

    /** In the order of the parameters: a layer that is not cut, then one that is. */
    private static final int REPLICATED = 0;

    private static final int CUT = 2;

    private static final Predicate<Parameter> CUT_WEIGHT =
            parameter -> parameter.getShape().equals(new Shape(7, 6));

    private static final String HEAD = "head"; // the name of its loss

    @DataProvider
    public Object[][] all() {
        return rows(TENSOR_1, TENSOR_2, DATA_2, MIXED_2, MESH_2X2);
    }

    /** Where the ranks have parts of what is cut. */
    @DataProvider
    public Object[][] cutting() {
        return rows(TENSOR_2, MIXED_2, MESH_2X2);
    }

    /** Where the gradient of rank 0's array comes to all ranks, and of which parameter. */
    @DataProvider
    public Object[][] summing() {
        return new Object[][] {
            {TENSOR_1, REPLICATED},
            {TENSOR_1, CUT},
            {DATA_2, REPLICATED},
            {DATA_2, CUT},
            {MIXED_2, REPLICATED},
        };
    }

    /** Where it does not. */
    @DataProvider
    public Object[][] repeating() {
        return rows(TENSOR_2, MESH_2X2);
    }

    private static Object[][] rows(TrainerKind... kinds) {
        return List.of(kinds).stream().map(kind -> new Object[] {kind}).toArray(Object[][]::new);
    }

    /** Of batches, too, of which a rank has no row. */
    @Test(dataProvider = "summing", timeOut = 60_000)
    public void aTermOfASummedParameter(TrainerKind kind, int parameter) {
        for (int rows : new int[] {ROWS, 1}) {
            assertSame(kind, (trainer, manager) -> penalized(trainer, manager, parameter, rows));
        }
    }

    /** The term is scaled with the loss, and the scale taken from both. */
    @Test(timeOut = 60_000)
    public void aTermOfASummedParameterIsScaled() {
        TrainerKind scaled = DATA_2.scaledBy(LossScaling.builder().build());
        assertSame(scaled, (trainer, manager) -> penalized(trainer, manager, REPLICATED));
    }

    /** The engine's seed is that of all threads. */
    private static void initialize(Block block, NDManager manager) {
        block.initialize(manager, DataType.FLOAT32, INPUT);
        int seed = 0;
        for (Pair<String, Parameter> parameter : block.getParameters()) {
            NDArray array = parameter.getValue().getArray();
            random(manager, seed++, array.getShape().getShape()).copyTo(array);
        }
    }

    /** Leaves of the caller's own have their gradient, and are nothing to the ranks. */
    @Test(dataProvider = "all", timeOut = 60_000)
    public void aTermOfTheCallersOwn(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager) -> {
                    NDArray own = random(manager, 5, 7, 6); // the shape of a parameter
                    own.setRequiresGradient(true);
                    NDArray number = own.getManager().create(0.3f);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray term = own.square().sum().mul(number);
                        collector.backward(loss(trainer, manager).mul(term));
                    }
                    trainer.step();
                    return own.getGradient().sum().getFloat();
                });
    }

    @Test(dataProvider = "all", timeOut = 60_000)
    public void aDetachedTermOfAReplicatedParameter(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager) -> {
                    float value;
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray array = parameter(trainer, REPLICATED).getArray().stopGradient();
                        NDArray loss = loss(trainer, manager).add(array.square().sum());
                        collector.backward(loss);
                        value = loss.getFloat();
                    }
                    trainer.step();
                    return value;
                });
    }

    @Test(dataProvider = "all", timeOut = 60_000)
    public void anInputThatRequiresAGradient(TrainerKind kind) {
        assertRefused(
                kind,
                LossOfCallersGraphTest::network,
                (trainer, manager) -> {
                    NDArray leaf = data(manager).head();
                    leaf.setRequiresGradient(true);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList labels = labels(manager);
                        String[] parts = {"Input (", "(5, 4)", "stopGradient()"};
                        for (NDArray input : List.of(leaf, leaf.tanh())) {
                            NDList inputs = new NDList(input);
                            assertThrows(() -> trainer.forward(inputs, labels), parts);
                            assertThrows(() -> trainer.forward(inputs), parts);
                        }
                    }
                });
    }

    @Test(dataProvider = "all", timeOut = 60_000)
    public void labelsThatRequireAGradient(TrainerKind kind) {
        assertRefused(
                kind,
                LossOfCallersGraphTest::network,
                (trainer, manager) -> {
                    NDList labels = labels(manager);
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.forward(data(manager), labels);
                        labels.head().setRequiresGradient(true);
                        for (NDArray label : List.of(labels.head(), labels.head().tanh())) {
                            NDList others = new NDList(label);
                            String[] parts = {"Label (", "(5, 3)", "stopGradient()"};
                            assertThrows(() -> trainer.forward(data(manager), others), parts);
                            assertThrows(() -> trainer.getLoss().evaluate(others, output), parts);
                        }
                    }
                });
    }

    /** Values that have left the caller's graph are values as all others. */
    @Test(dataProvider = "all", timeOut = 60_000)
    public void detachedInputsAndLabels(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager) -> {
                    NDArray leaf = data(manager).head();
                    NDArray target = labels(manager).head();
                    leaf.setRequiresGradient(true);
                    target.setRequiresGradient(true);
                    float value;
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList labels = new NDList(target.tanh().stopGradient());
                        NDList output =
                                trainer.forward(new NDList(leaf.tanh().stopGradient()), labels);
                        NDArray loss = trainer.getLoss().evaluate(labels, output);
                        collector.backward(loss);
                        value = loss.getFloat();
                    }
                    trainer.step();
                    return value;
                });
    }

    /** An evaluation has no gradient to lose. */
    @Test(dataProvider = "all", timeOut = 60_000)
    public void evaluationsTakeThem(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager) -> {
                    NDArray leaf = data(manager).head();
                    leaf.setRequiresGradient(true);
                    NDList output;
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        output = trainer.evaluate(new NDList(leaf.tanh()));
                    }
                    return output.head().sum().getFloat();
                });
    }

    @Test(dataProvider = "all", timeOut = 60_000)
    public void aDetachedTermOfAnEvaluation(TrainerKind kind) {
        assertSame(
                kind,
                (trainer, manager) -> {
                    float value;
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDList output = trainer.evaluate(data(manager));
                        NDArray other = trainer.getLoss().evaluate(labels(manager), output);
                        NDArray loss = loss(trainer, manager).mul(other.stopGradient());
                        collector.backward(loss);
                        value = loss.getFloat();
                    }
                    trainer.step();
                    return value;
                });
    }

    private interface Work {
        /** Does something with a trainer, and returns a number to compare. */
        float run(Trainer trainer, NDManager manager);
    }

    private static float penalized(Trainer trainer, NDManager manager, int parameter) {
        return penalized(trainer, manager, parameter, ROWS);
    }

    private static float penalized(Trainer trainer, NDManager manager, int parameter, int rows) {
        float value;
        try (GradientCollector collector = trainer.newGradientCollector()) {
            NDArray loss = loss(trainer, manager, rows).add(square(trainer, parameter));
            collector.backward(loss);
            value = loss.getFloat();
        }
        trainer.step();
        return value;
    }

    private static NDArray square(Trainer trainer, int parameter) {
        NDArray array = parameter(trainer, parameter).getArray();
        return array.square().sum().mul(trainer.getManager().create(0.01f));
    }

    private static Parameter parameter(Trainer trainer, int index) {
        return trainer.getModel().getBlock().getParameters().valueAt(index);
    }

    private static NDArray loss(Trainer trainer, NDManager manager) {
        return loss(trainer, manager, ROWS);
    }

    private static NDArray loss(Trainer trainer, NDManager manager, int rows) {
        boolean head = trainer.getLoss().getName().equals(HEAD);
        NDArray classes = TrainingRun.labels(manager, 2, ROWS, CLASSES);
        NDArray all = head ? classes : labels(manager).head();
        NDList labels = new NDList(all.get(new NDIndex().addSliceDim(0, rows)));
        NDList data = new NDList(data(manager).head().get(new NDIndex().addSliceDim(0, rows)));
        return trainer.getLoss().evaluate(labels, trainer.forward(data, labels));
    }

    private static NDList data(NDManager manager) {
        return new NDList(random(manager, 1, INPUT.getShape()));
    }

    private static NDList labels(NDManager manager) {
        return new NDList(random(manager, 2, ROWS, 3));
    }

    private static Block network() {
        return sequence(linear(6), tanh(), first(true, 7), tanh(), row(true, 3));
    }

    /** Asserts that the steps before and after are those of a training in which nothing failed. */
    private static void assertRefused(
            TrainerKind kind, Supplier<Block> network, BiConsumer<Trainer, NDManager> refused) {
        List<float[]> expected = train(kind, network.get(), (trainer, manager) -> {});
        List<float[]> actual = train(kind, network.get(), refused);
        assertAllBitEqual(actual, expected, "parameter");
    }

    private static List<float[]> train(
            TrainerKind kind, Block block, BiConsumer<Trainer, NDManager> between) {
        boolean head = block.getChildren().size() == 3;
        Loss loss = head ? new VocabParallelCrossEntropyLoss(HEAD, -100) : new HalfSquareLoss();
        return TrainingRun.of(
                        kind,
                        block,
                        loss,
                        INPUT,
                        (trainer, manager, numbers) -> {
                            step(trainer, manager);
                            between.accept(trainer, manager);
                            step(trainer, manager);
                        })
                .getWeights();
    }

    private static void step(Trainer trainer, NDManager manager) {
        try (GradientCollector collector = trainer.newGradientCollector()) {
            collector.backward(loss(trainer, manager));
        }
        trainer.step();
    }

    /** Asserts that three steps are those of DJL's trainer. */
    private static void assertSame(TrainerKind kind, Work work) {
        run(kind, work).assertSame(run(PLAIN, work), TOLERANCE);
    }

    private static TrainingRun run(TrainerKind kind, Work work) {
        return TrainingRun.of(
                kind,
                network(),
                new HalfSquareLoss(),
                INPUT,
                (trainer, manager, numbers) -> {
                    for (int i = 0; i < 3; i++) {
                        numbers.add(work.run(trainer, manager));
                    }
                });
    }

    private static String assertThrows(Assert.ThrowingRunnable call, String... parts) {
        String message = throwsArgument(call, parts);
        return message;
    }
}

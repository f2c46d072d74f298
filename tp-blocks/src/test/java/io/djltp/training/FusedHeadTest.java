package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.ArrayAssert.floats;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.Refusals.throwsArgument;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.counted;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;
import static io.djltp.testing.TrainingRun.weights;
import static io.djltp.testing.TrainingRun.zeroGradients;
import static io.djltp.training.FusedTraining.CLASSES;
import static io.djltp.training.FusedTraining.DEFAULT;
import static io.djltp.training.FusedTraining.FEATURES;
import static io.djltp.training.FusedTraining.ROWS;
import static io.djltp.training.FusedTraining.adagrad;
import static io.djltp.training.FusedTraining.assertSame;
import static io.djltp.training.FusedTraining.backward;
import static io.djltp.training.FusedTraining.data;
import static io.djltp.training.FusedTraining.fused;
import static io.djltp.training.FusedTraining.labels;
import static io.djltp.training.FusedTraining.loss;
import static io.djltp.training.FusedTraining.network;
import static io.djltp.training.FusedTraining.sgd;
import static io.djltp.training.FusedTraining.use;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.TopKAccuracy;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.head.LossOptions;
import io.djltp.head.Margin;
import io.djltp.head.Reduction;
import io.djltp.head.TopClasses;
import io.djltp.internal.rank.StepParticipant;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelTopK;
import io.djltp.nn.ClassificationHead;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * What a head that is fused with its loss does beside training as DJL's: it is evaluated as a plain
 * one, without its logits ever being there, counts what it communicates, changes in steps alone,
 * and throws for what it cannot compute. Heads that draw classes, and margins, too.
 */
public class FusedHeadTest {

    private static final Margin MARGIN = Margin.combined(8, 1.1f, 0.3f, 0.1f);
    private static final int K = 5;

    /** Loss, accuracy and best classes, and everything of DJL's that reads the logits. */
    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void isEvaluatedAsThePlainLayer(TrainerKind kind) {
        List<float[]> expected = new ArrayList<>();
        List<float[]> seen = new ArrayList<>();
        Loss loss = loss(new LossOptions(3, 0.2f, 0.05f));
        use(PLAIN, fused(), loss, sgd(), (trainer, m) -> evaluate(trainer, m, expected));
        use(kind, fused(), loss, sgd(), (trainer, m) -> evaluate(trainer, m, seen));
        assertAllClose(seen, expected, 1e-5, "result");
    }

    private static void evaluate(Trainer trainer, NDManager manager, List<float[]> results) {
        NDList labels = labels(manager, 0);
        NDList predictions = trainer.evaluate(data(manager, 0));
        results.add(trainer.getLoss().evaluate(labels, predictions).toFloatArray());
        results.add(accuracy(new VocabParallelAccuracy(), labels, predictions));
        results.add(accuracy(new VocabParallelAccuracy(K), labels, predictions));
        try (TopClasses best = new VocabParallelTopK(K, true).evaluate(predictions)) {
            results.add(floats(best.classes()));
            results.add(best.logits().toFloatArray());
            results.add(best.logProbabilities().toFloatArray());
        }
        NDArray logits = predictions.head();
        assertEquals(logits.getShape(), new Shape(ROWS, CLASSES));
        NDList djl = logits.topK(K, 1, true, true);
        results.add(floats(djl.get(1)));
        results.add(djl.get(0).toFloatArray());
        results.add(accuracy(new Accuracy(), labels, predictions));
        results.add(accuracy(new TopKAccuracy(K), labels, predictions));
        Loss plain = Loss.softmaxCrossEntropyLoss();
        results.add(plain.evaluate(labels, predictions).toFloatArray());
        results.add(manager.ones(logits.getShape()).sub(logits).toFloatArray());
        int size = results.size(); // the best are those that DJL finds
        assertClose(results.get(size - 9), results.get(size - 6), 0, "classes");
        assertClose(results.get(size - 8), results.get(size - 5), 1e-6, "logits");
    }

    private static float[] accuracy(Evaluator evaluator, NDList labels, NDList predictions) {
        evaluator.addAccumulator("all");
        evaluator.updateAccumulator("all", labels, predictions);
        return new float[] {evaluator.getAccumulator("all")};
    }

    private static long right(NDList labels, NDList predictions) {
        NDArray right = new VocabParallelAccuracy(K).evaluate(labels, predictions);
        return right.countNonzero().getLong();
    }

    /** Predictions and their accuracy, in training and in evaluation. */
    @Test(timeOut = 60_000)
    public void evaluatesInTraining() {
        for (TrainerKind kind : List.of(PLAIN, TENSOR_1, TENSOR_2)) {
            FusedTraining.Use use =
                    (trainer, manager) -> {
                        NDList data = data(manager, 0);
                        NDList labels = labels(manager, 0);
                        NDList evaluated = trainer.evaluate(data);
                        NDArray loss = trainer.getLoss().evaluate(labels, evaluated);
                        long seen = right(labels, evaluated);
                        try (GradientCollector collector = trainer.newGradientCollector()) {
                            NDList output = trainer.forward(data, labels);
                            assertEquals(output.head().getShape().get(1), CLASSES);
                            NDArray trained = trainer.getLoss().evaluate(labels, output);
                            assertEquals(right(labels, output), seen);
                            collector.backward(trained);
                            assertEquals(trained.getFloat(), loss.getFloat(), 1e-6);
                        }
                    };
            use(kind, fused(), use);
        }
    }

    /** A whole evaluation between the backward pass and the step changes nothing. */
    @Test(timeOut = 60_000)
    public void anEvaluationDoesNotDisturbAStep() {
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4)) {
            TrainingRun plain = FusedTraining.run(kind, fused(), DEFAULT);
            FusedTraining.Pass evaluated =
                    (trainer, manager, step) -> {
                        float loss = backward(trainer, manager, step);
                        evaluate(trainer, manager, new ArrayList<>());
                        return loss;
                    };
            FusedTraining.run(kind, fused(), loss(DEFAULT), sgd(), 5, evaluated)
                    .assertBitEqual(plain);
        }
    }

    /** What would mix old features with new weights throws, and the trainer goes on. */
    @Test(timeOut = 60_000)
    public void predictionsEndWithTheStep() {
        FusedTraining.Use use =
                (trainer, manager) -> {
                    NDList predictions = trainer.evaluate(data(manager, 0));
                    for (int i = 0; i < 2; i++) {
                        step(trainer, data(manager, 0), labels(manager, 0));
                        throwsState(
                                () -> new VocabParallelTopK(1).evaluate(predictions),
                                "evaluate them before the step");
                        throwsState(() -> predictions.head().toFloatArray());
                    }
                };
        use(TENSOR_2, fused(), use);
    }

    /** More classes than there are: the trainer goes on. */
    @Test(timeOut = 60_000)
    public void aKThatIsTooLarge() {
        FusedTraining.Use use =
                (trainer, manager) -> {
                    NDList predictions = trainer.evaluate(data(manager, 0));
                    String expected =
                            "The 24 best of 23 classes were asked for: 1 to 23 can be had";
                    String message =
                            throwsArgument(() -> new VocabParallelTopK(24).evaluate(predictions));
                    assertEquals(message, expected);
                    TopClasses all = new VocabParallelTopK(23).evaluate(predictions);
                    assertEquals(all.classes().getShape().get(1), 23);
                };
        use(TENSOR_2, fused(), use);
    }

    /** The logits would take 98 MiB; they come only when something reads them. */
    @Test(timeOut = 60_000)
    public void noLogitsInMemory() {
        int rows = 128;
        int classes = 200_000;
        FusedTraining.Use use =
                (trainer, manager) -> {
                    NDList labels = new NDList(TrainingRun.labels(manager, 1, rows, classes));
                    NDList data = new NDList(random(manager, 2, rows, FEATURES));
                    trainer.evaluate(data);
                    long before = resetPeak();
                    NDList predictions = trainer.evaluate(data);
                    trainer.getLoss().evaluate(labels, predictions);
                    accuracy(new VocabParallelAccuracy(K), labels, predictions);
                    new VocabParallelTopK(K, true).evaluate(predictions);
                    assertTrue(peak() - before < 49 << 20, "peak " + (peak() - before));
                    predictions.head().get(0).toFloatArray();
                    assertTrue(peak() - before > 98 << 20, "peak " + (peak() - before));
                };
        use(TENSOR_2, sequence(ClassificationHead.builder().setUnits(classes).build()), use);
    }

    private static long resetPeak() throws IOException {
        Path reset = Path.of("/proc/self/clear_refs");
        if (!Files.isWritable(reset)) {
            throw new SkipException("this system does not tell the peak of memory");
        }
        Files.writeString(reset, "5");
        return peak();
    }

    private static long peak() throws IOException {
        String status = Files.readString(Path.of("/proc/self/status"));
        return 1024 * Long.parseLong(status.replaceAll("(?s).*VmHWM:\\s*(\\d+).*", "$1"));
    }

    @DataProvider
    public Object[][] counts() {
        return new Object[][] {
            {TENSOR_2, fused(), "1 all-reduce, 1 all-gather"},
            // and the body's two
            {MIXED_2, fused(), "2 all-gather, 1 reduce-scatter"},
            // the draw is known to all
            {TENSOR_2, margin(0.4f), "1 all-reduce, 1 all-gather"},
        };
    }

    /** Statistics of the rows, and the gradient of the features. */
    @Test(dataProvider = "counts", timeOut = 60_000)
    public void communicatesOncePerQuantity(TrainerKind kind, Block block, String expected) {
        FusedTraining.Use use =
                (trainer, manager) -> {
                    for (int i = 0; i < 2; i++) { // the third step compares no replicas
                        step(trainer, data(manager, 0), labels(manager, 0));
                    }
                    Runnable pass = () -> backward(trainer, manager, 0);
                    assertEquals(counted(trainer, pass).toString(), expected);
                    if (kind == TENSOR_2) {
                        assertEquals(counted(trainer, trainer::step).total(), 0);
                    }
                };
        use(kind, block, use);
    }

    /** Weights change in step() and not before; zeroed gradients change nothing. */
    @Test(timeOut = 60_000)
    public void weightsChangeInTheStep() {
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2)) {
            FusedTraining.Use use =
                    (trainer, manager) -> {
                        float[] before = held(trainer, 0, 2).toFloatArray();
                        backward(trainer, manager, 0);
                        assertEquals(held(trainer, 0, 2).toFloatArray(), before);
                        zeroGradients(trainer);
                        trainer.step();
                        assertEquals(held(trainer, 0, 2).toFloatArray(), before);
                        backward(trainer, manager, 0);
                        trainer.step();
                        assertNotEquals(held(trainer, 0, 2).toFloatArray(), before);
                    };
            use(kind, fused(), use);
        }
    }

    /** What a fused head writes while it is trained, a plain layer reads. */
    @Test(timeOut = 60_000)
    public void savesAsAPlainLayer() {
        FusedTraining.Use use =
                (trainer, manager) -> {
                    step(trainer, data(manager, 0), labels(manager, 0));
                    NDList data = data(manager, 1);
                    Block trained = trainer.getModel().getBlock();
                    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
                    trained.saveParameters(new DataOutputStream(bytes));
                    trainer.close();
                    Block loaded = sequence(linear(6), tanh(), linear(CLASSES));
                    InputStream saved = new ByteArrayInputStream(bytes.toByteArray());
                    loaded.loadParameters(manager, new DataInputStream(saved));
                    ParameterStore store = new ParameterStore(manager, false);
                    assertEquals(
                            loaded.forward(store, data, false).head(),
                            trained.forward(store, data, false).head());
                };
        use(TENSOR_2, fused(), use);
    }

    @DataProvider
    public Object[][] refusals() {
        LossOptions weighted = new LossOptions(3, 0.2f, 0.05f).withClassWeights(new float[23]);
        LossOptions ofTwo = DEFAULT.withClassWeights(1, 2);
        LossOptions ofRows = DEFAULT.withReduction(Reduction.NONE);
        Supplier<Block> drawing = () -> fused(head -> head.optSampleShare(0.5f));
        Supplier<Block> fused = FusedTraining::fused;
        Supplier<Block> plain = FusedTraining::plain;
        Supplier<Block> two =
                () -> sequence(fused(), ClassificationHead.builder().setUnits(5).build());
        Loss usual = loss(DEFAULT);
        Optimizer unknown =
                new Optimizer(new AnyBuilder()) {
                    @Override
                    public void update(String id, NDArray weight, NDArray gradient) {}
                };
        return new Object[][] {
            {fused, loss(weighted), sgd(), 1, "optFusedLoss(false)"},
            {fused, loss(ofTwo), sgd(), 1, "weights of 2 classes"},
            {plain, loss(ofTwo), sgd(), 1, "weights of 2 classes"},
            {fused, loss(ofRows), sgd(), 1, "Reduction.MEAN"},
            {plain, loss(ofRows), sgd(), 1, "Reduction.MEAN"},
            // the classes of two batches are others
            {drawing, usual, sgd(), 2, "keeps the gradient of one batch"},
            // on one rank, too, it is not the number of features that is wrong
            {two, usual, sgd(), 1, "a fused head whose logits are never computed"},
            {
                fused,
                Loss.softmaxCrossEntropyLoss(),
                sgd(),
                1,
                "a fused head never computes.*Use VocabParallelCrossEntropyLoss"
            },
            {fused, usual, unknown, 1, "Sgd, Adam, AdamW, Adagrad or RowwiseAdagrad"},
        };
    }

    /** A builder of DJL's. */
    private static final class AnyBuilder extends Optimizer.OptimizerBuilder<AnyBuilder> {

        @Override
        protected AnyBuilder self() {
            return this;
        }
    }

    @Test(dataProvider = "refusals", timeOut = 60_000)
    public void isNotTrained(
            Supplier<Block> block, Loss loss, Optimizer optimizer, int batches, String part) {
        FusedTraining.Pass pass =
                (trainer, manager, step) -> {
                    for (int i = 1; i < batches; i++) {
                        backward(trainer, manager, 9);
                    }
                    return backward(trainer, manager, step);
                };
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2)) {
            RuntimeException e =
                    expectThrows(
                            RuntimeException.class,
                            () -> FusedTraining.run(kind, block.get(), loss, optimizer, 1, pass));
            String text = e.getMessage();
            assertTrue(text.replace('\n', ' ').matches(".*" + quoted(part) + ".*"), text);
            assertFalse(text.contains("slice"), text); // it has no slice of the classes
        }
    }

    private static String quoted(String part) {
        return "\\Q" + part.replace(".*", "\\E.*\\Q") + "\\E";
    }

    @DataProvider
    public Object[][] bad() {
        String noClass = "The label of row 0 is 23, but the labels of 23 classes";
        String noNumber = "(?s).*The features hold NaN or infinite values on rank \\d in step 2.*";
        return new Object[][] {
            {TENSOR_1, 1 << 20, false, 23, ".*\\Q" + noClass + "\\E.*"},
            {TENSOR_2, 1 << 20, false, 23, ".*\\Q" + noClass + "\\E.*"},
            {MIXED_2, 1 << 20, false, 23, ".*\\Q" + noClass + "\\E.*"},
            {DATA_2, 1 << 20, false, 23, ".*\\Q" + noClass + "\\E.*"},
            {TENSOR_1, 1 << 20, true, 0, noNumber},
            {TENSOR_2, 1 << 20, true, 0, noNumber},
            {TENSOR_1, 100, false, 0, ".*23 classes take 736 bytes.*"}, // in the first step
        };
    }

    /** A good step and then a bad one: one error, and the weights are as they were. */
    @Test(dataProvider = "bad", timeOut = 60_000)
    public void aBadStep(TrainerKind kind, int budget, boolean nan, long label, String expected) {
        FusedTraining.Use use =
                (trainer, manager) -> {
                    NDList data = data(manager, 0);
                    NDList labels = labels(manager, 0);
                    if (budget > 100) {
                        step(trainer, data, labels);
                    }
                    NDList x = nan ? new NDList(data.head().mul(Float.NaN)) : data;
                    labels.head().set(new NDIndex(0), label);
                    float[] before = budget > 100 ? held(trainer, 0, 2).toFloatArray() : null;
                    RuntimeException e =
                            expectThrows(RuntimeException.class, () -> step(trainer, x, labels));
                    assertTrue(("" + e.getMessage()).matches(expected), "" + e.getMessage());
                    if (before != null) {
                        assertEquals(held(trainer, 0, 2).toFloatArray(), before);
                    }
                };
        use(kind, fused(head -> head.optFusedMemory(budget)), use);
    }

    @Test
    public void aNegativeWeight() {
        throwsArgument(() -> DEFAULT.withClassWeights(-1));
    }

    private static Block margin(float share) {
        return fused(head -> head.optMargin(MARGIN).optBias(false).optSampleShare(share));
    }

    private static TrainingRun drawn(TrainerKind kind, float share, long seed, Optimizer rule) {
        Block block = fused(head -> head.optSampleShare(share).optSampleSeed(seed));
        return FusedTraining.run(kind, block, loss(new LossOptions(3, 0.1f, 0.01f)), rule);
    }

    /** A share of 1 is the full softmax to the last bit. */
    @Test(timeOut = 60_000)
    public void aShareOfOneIsTheFullSoftmax() {
        LossOptions options = new LossOptions(3, 0.1f, 0.01f);
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_2, TENSOR_4, MIXED_3, DATA_1)) {
            Block one = fused(head -> head.optSampleShare(1));
            FusedTraining.run(kind, one, options)
                    .assertBitEqual(FusedTraining.run(kind, fused(), options));
        }
    }

    /** The seed alone decides what is drawn, and what is learned. */
    @Test(timeOut = 60_000)
    public void theSeedDecides() {
        List<Float> first = drawn(TENSOR_2, 0.5f, 1, sgd()).getNumbers();
        assertEquals(drawn(TENSOR_2, 0.5f, 1, sgd()).getNumbers(), first);
        assertNotEquals(drawn(TENSOR_2, 0.5f, 2, sgd()).getNumbers(), first);
        first.forEach(loss -> assertTrue(loss > 0 && loss < 4, "a loss of " + loss));
    }

    /** What is drawn, and what is learned, does not depend on the number of ranks. */
    @Test(timeOut = 60_000)
    public void drawsAsOneRank() {
        for (float share : new float[] {0.1f, 0.5f}) { // of 23 classes, uneven over the ranks
            TrainingRun one = drawn(TENSOR_1, share, 1, sgd());
            TrainingRun adagrad = drawn(TENSOR_1, share, 1, adagrad(0.1f));
            for (TrainerKind kind : List.of(TENSOR_2, TENSOR_3, TENSOR_4, MIXED_2, MIXED_4)) {
                assertSame(drawn(kind, share, 1, sgd()), one);
                assertSame(drawn(kind, share, 1, adagrad(0.1f)), adagrad);
            }
        }
    }

    /** The number of steps is the state of a head that draws: a training that is continued. */
    @Test(timeOut = 60_000)
    public void theStateContinuesTheDraws() {
        float[][] losses = {new float[3], new float[3]};
        for (int first = 0; first <= 2; first += 2) {
            int begin = first;
            use(
                    TENSOR_2,
                    fused(head -> head.optSampleShare(0.5f)),
                    loss(DEFAULT),
                    Configs.sgd(0), // losses differ by what is drawn alone
                    (trainer, manager) -> {
                        trainer.evaluate(data(manager, 0));
                        setSteps((ParallelTrainer) trainer, manager, begin);
                        for (int i = begin; i < 3; i++) {
                            losses[begin / 2][i] = backward(trainer, manager, 0);
                            trainer.step();
                        }
                    });
        }
        assertEquals(losses[1][2], losses[0][2]);
        assertNotEquals(losses[0][2], losses[0][0]);
    }

    private static void setSteps(ParallelTrainer trainer, NDManager manager, long steps) {
        for (int rank = 0; rank < 2; rank++) {
            StepParticipant head =
                    trainer.getRanks().getContext(rank).getParticipants().iterator().next();
            assertEquals(head.getState(manager).get("steps").toLongArray()[0], 0);
            head.setState(Map.of("steps", manager.create(new long[] {steps})));
            throwsArgument(() -> head.setState(Map.of("step", manager.create(1L))));
        }
    }

    /** Outside of training there is no margin, and the nearest class has the largest output. */
    @Test(timeOut = 60_000)
    public void aMarginEvaluatesToScaledCosines() {
        List<float[]> seen = new ArrayList<>();
        for (TrainerKind kind : List.of(PLAIN, TENSOR_1, TENSOR_2, TENSOR_3)) {
            use(kind, margin(0.5f), (trainer, m) -> seen.add(evaluateCosines(trainer, m)));
            assertClose(seen.get(seen.size() - 1), seen.get(0), 1e-6, "" + kind);
        }
    }

    private static float[] evaluateCosines(Trainer trainer, NDManager manager) {
        NDList data = data(manager, 0);
        NDList labels = labels(manager, 0);
        NDList output = trainer.evaluate(data);
        float loss = trainer.getLoss().evaluate(labels, output).getFloat();
        long right = right(labels, output);
        if (trainer instanceof ParallelTrainer) { // of all classes, whatever is drawn
            try (GradientCollector collector = trainer.newGradientCollector()) {
                NDList trained = trainer.forward(data, labels);
                NDArray value = trainer.getLoss().evaluate(labels, trained);
                assertEquals(right(labels, trained), right);
                collector.backward(value);
            }
            trainer.step();
        } else {
            assertClose(output.head().toFloatArray(), cosines(trainer, data), 1e-6, "cosines");
        }
        return new float[] {loss, right};
    }

    /** Row by row in float64, from the weights of the network. */
    private static float[] cosines(Trainer trainer, NDList data) {
        List<float[]> weights = weights(trainer.getModel().getBlock());
        float[] x = data.head().toFloatArray();
        float[] logits = new float[ROWS * CLASSES];
        for (int row = 0; row < ROWS; row++) {
            double[] hidden = new double[6];
            for (int j = 0; j < 6; j++) {
                double sum = weights.get(1)[j];
                for (int i = 0; i < FEATURES; i++) {
                    sum += (double) x[row * FEATURES + i] * weights.get(0)[j * FEATURES + i];
                }
                hidden[j] = Math.tanh(sum);
            }
            for (int k = 0; k < CLASSES; k++) {
                double dot = 0;
                double xx = 0;
                double ww = 0;
                for (int j = 0; j < 6; j++) {
                    double w = weights.get(2)[k * 6 + j];
                    dot += hidden[j] * w;
                    xx += hidden[j] * hidden[j];
                    ww += w * w;
                }
                logits[row * CLASSES + k] = (float) (MARGIN.scale() * dot / Math.sqrt(xx * ww));
            }
        }
        return logits;
    }

    @DataProvider
    public Object[][] options() {
        Map<String, Consumer<ClassificationHead.Builder>> options = new LinkedHashMap<>();
        options.put(
                "A sample share of 0.02 of 23 classes leaves no negatives: it is no class. The"
                        + " least share is 0.0653",
                head -> head.optFusedLoss(true).optSampleShare(0.02f));
        options.put("exclude optFusedLoss(false)", head -> head.optSampleShare(0.5f));
        options.put("exclude optFusedLoss(false", head -> head.optMargin(MARGIN).optBias(false));
        options.put(
                "above 0 and up to 1, not 0.0", head -> head.optFusedLoss(true).optSampleShare(0));
        options.put(
                "above 0 and up to 1, not 1.5",
                head -> head.optFusedLoss(true).optSampleShare(1.5f));
        options.put(
                "set optBias(false) with optMargin",
                head -> head.optFusedLoss(true).optMargin(MARGIN));
        return options.entrySet().stream()
                .map(each -> new Object[] {each.getValue(), each.getKey()})
                .toArray(Object[][]::new);
    }

    @Test(dataProvider = "options")
    public void isNotBuilt(Consumer<ClassificationHead.Builder> head, String message) {
        throwsArgument(() -> network(head), message);
    }
}

package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.floats;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.MESH_2X2;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.MIXED_3;
import static io.djltp.testing.TrainerKind.MIXED_4;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainerKind.TENSOR_4;
import static io.djltp.testing.TrainingRun.held;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.step;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertNotEquals;
import static org.testng.Assert.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import com.google.gson.Gson;

import io.djltp.head.LossOptions;
import io.djltp.loss.OneVsAllLoss;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.LossScaling;
import io.djltp.testing.Configs;
import io.djltp.testing.PyTorch;
import io.djltp.testing.Refusals;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Losses of rows with any number of labels: what five steps make of a network in all modes, with
 * the head fused or not, and updated in the loss or not, is what PyTorch makes of it in float64.
 */
public class ManyLabelsEqualPyTorchTest {

    private static final int STEPS = 5;
    private static final float RATE = 0.1f;
    private static final Gson GSON = new Gson();

    /**
     * A network and its loss.
     *
     * @param kind softmax, or a one-vs-all loss
     * @param weighted whether classes and positives have weights
     * @param classes the classes, of which the last is no label
     * @param most the most labels of a row
     */
    private record Case(String kind, boolean weighted, int classes, int most) {

        /** From the name of the kind in the script. */
        Loss loss() {
            float[] weights = weighted ? weights(0.25f, 3) : null;
            if (kind.equals("SOFTMAX")) {
                LossOptions options = LossOptions.DEFAULT;
                return new VocabParallelCrossEntropyLoss(
                        "loss", weighted ? options.withClassWeights(weights) : options);
            }
            OneVsAllLoss loss =
                    kind.equals("SQUARED_HINGE")
                            ? OneVsAllLoss.squaredHinge()
                            : OneVsAllLoss.binaryCrossEntropy();
            return weighted
                    ? loss.withClassWeights(weights).withPositiveWeights(weights(1, 5))
                    : loss;
        }

        /** Gradients are sums over the classes, and with large steps rounding errors would grow. */
        float rate() {
            return most > 100 ? RATE / 100 : RATE;
        }

        float[] weights(float first, int period) {
            float[] weights = new float[classes];
            for (int k = 0; k < classes; k++) {
                weights[k] = first + k % period;
            }
            return weights;
        }

        Block network(Consumer<ClassificationHead.Builder> options) {
            ClassificationHead.Builder head =
                    ClassificationHead.builder().setUnits(classes).optBatchShardedInput(true);
            options.accept(head);
            Block network = sequence(linear(6), tanh(), head.build());
            network.setInitializer( // not the generator, which threads share
                    (m, shape, type) -> random(m, shape.size(), shape.getShape()),
                    parameter -> true);
            return network;
        }

        NDArray labels(NDManager manager, int step) {
            SplittableRandom random = new SplittableRandom(step);
            long[] all = new long[FusedTraining.ROWS * most];
            Arrays.fill(all, -1);
            for (int row = 0; row < FusedTraining.ROWS; row++) {
                // a row without labels, and one with the most
                int count = row == 2 ? 0 : row == 3 ? most : random.nextInt(1, most + 1);
                long[] own =
                        random.longs(0, classes - 1).distinct().limit(count).sorted().toArray();
                System.arraycopy(own, 0, all, row * most, count);
            }
            return manager.create(all, new Shape(FusedTraining.ROWS, most));
        }

        void train(Trainer trainer, NDManager manager, List<Float> losses) {
            for (int i = 0; i < STEPS; i++) {
                NDList data = FusedTraining.data(manager, i);
                NDList labels = new NDList(labels(manager, i));
                float evaluated =
                        trainer.getLoss().evaluate(labels, trainer.evaluate(data)).getFloat();
                losses.add(step(trainer, data, labels));
                assertEquals(evaluated, losses.get(i), 1e-5f * evaluated, "evaluation");
            }
        }

        List<float[]> train(TrainerKind trainer, Block network) {
            return results(
                    TrainingRun.of(
                            trainer,
                            network,
                            Configs.of(loss(), Configs.sgd(rate())),
                            new Shape(FusedTraining.ROWS, FusedTraining.FEATURES),
                            this::train));
        }
    }

    private static List<float[]> results(TrainingRun run) {
        List<float[]> results = new ArrayList<>(List.of(floats(run.getNumbers())));
        results.addAll(run.getWeights());
        return results;
    }

    private static List<Case> cases() {
        List<Case> cases = new ArrayList<>();
        for (String kind : List.of("SOFTMAX", "BINARY_CROSS_ENTROPY", "SQUARED_HINGE")) {
            cases.add(new Case(kind, false, 23, 5)); // uneven over 2, 3 and 4 ranks
            cases.add(new Case(kind, true, 23, 5));
            cases.add(new Case(kind, false, 1500, 1000));
        }
        return cases;
    }

    private static Map<Case, List<float[]>> expected() throws Exception {
        List<String> lines = new ArrayList<>();
        for (Case each : cases()) {
            Map<String, Object> values = new LinkedHashMap<>();
            values.put("kind", each.kind);
            values.put("rate", each.rate());
            values.put("class_weights", each.weighted ? each.weights(0.25f, 3) : new float[0]);
            values.put("positive_weights", each.weighted ? each.weights(1, 5) : new float[0]);
            try (NDManager manager = NDManager.newBaseManager()) {
                Block network = each.network(head -> {});
                network.initialize(manager, DataType.FLOAT32, new Shape(8, FusedTraining.FEATURES));
                List<Object> parameters = new ArrayList<>();
                network.getParameters()
                        .forEach(p -> parameters.add(table(p.getValue().getArray())));
                values.put("parameters", parameters);
                List<Object> data = new ArrayList<>();
                List<Object> labels = new ArrayList<>();
                for (int i = 0; i < STEPS; i++) {
                    data.add(table(FusedTraining.data(manager, i).head()));
                    labels.add(table(each.labels(manager, i).toType(DataType.FLOAT32, true)));
                }
                values.put("data", data);
                values.put("labels", labels);
            }
            lines.add(GSON.toJson(values).replaceAll("(-?\\d+)\\.0(?=[],])", "$1"));
        }
        List<String> out = PyTorch.run("losses/many_labels.py", lines);
        Map<Case, List<float[]>> expected = new LinkedHashMap<>();
        for (int i = 0; i < out.size(); i++) {
            expected.put(cases().get(i), List.of(GSON.fromJson(out.get(i), float[][].class)));
        }
        return expected;
    }

    private static Object table(NDArray array) {
        float[] values = array.toFloatArray();
        if (array.getShape().dimension() == 1) {
            return values;
        }
        int columns = (int) array.getShape().get(1);
        List<float[]> rows = new ArrayList<>();
        for (int i = 0; i < values.length; i += columns) {
            rows.add(Arrays.copyOfRange(values, i, i + columns));
        }
        return rows;
    }

    /** Fused and not, in two passes and in one, and as two processes. */
    @Test(timeOut = 240_000)
    public void fiveStepsOfAllModes() throws Exception {
        for (Map.Entry<Case, List<float[]>> each : expected().entrySet()) {
            Case loss = each.getKey();
            List<TrainerKind> kinds =
                    loss.most > 100
                            ? List.of(TENSOR_1, TENSOR_3, MIXED_2)
                            : List.of(
                                    TENSOR_1, TENSOR_2, TENSOR_3, TENSOR_4, MIXED_2, MIXED_3,
                                    MIXED_4, DATA_2, MESH_2X2);
            for (TrainerKind kind : kinds) {
                String what = loss + " " + kind;
                assertAllClose(
                        loss.train(kind, loss.network(head -> {})), each.getValue(), 1e-5, what);
                assertAllClose(
                        loss.train(kind, loss.network(head -> head.optFusedLoss(false))),
                        each.getValue(),
                        1e-5,
                        "not fused, " + what);
                if (!loss.kind.equals("SOFTMAX")) {
                    assertAllClose(
                            loss.train(kind, loss.network(head -> head.optUpdateInLoss(true))),
                            each.getValue(),
                            1e-5,
                            "in the loss, " + what);
                }
            }
            assertAllClose(
                    loss.train(PLAIN, loss.network(head -> {})), each.getValue(), 1e-5, "DJL");
            boolean inLoss = !loss.kind.equals("SOFTMAX");
            for (List<float[]> actual :
                    ThreadedJob.run(
                            job ->
                                    loss.train(
                                            MIXED_2.in(job),
                                            loss.network(head -> head.optUpdateInLoss(inLoss))))) {
                assertAllClose(actual, each.getValue(), 1e-5, "processes, " + loss);
            }
        }
    }

    private static final Case ENTROPY = new Case("BINARY_CROSS_ENTROPY", false, 23, 5);

    private static TrainingRun run(
            TrainerKind kind, Optimizer optimizer, Consumer<ClassificationHead.Builder> head) {
        return TrainingRun.of(
                kind,
                ENTROPY.network(head),
                Configs.of(ENTROPY.loss(), optimizer),
                new Shape(FusedTraining.ROWS, FusedTraining.FEATURES),
                (trainer, manager, losses) -> {
                    for (int i = 0; i < 6; i++) {
                        Block last = trainer.getModel().getBlock().getChildren().valueAt(2);
                        last.freezeParameters(i == 4);
                        NDList labels = new NDList(ENTROPY.labels(manager, i));
                        losses.add(step(trainer, FusedTraining.data(manager, i), labels));
                    }
                });
    }

    @DataProvider
    public Object[][] optimizers() {
        Supplier<Tracker> falling = // which counts steps
                () ->
                        Tracker.multiFactor()
                                .setSteps(new int[] {2, 4})
                                .setBaseValue(0.2f)
                                .optFactor(0.5f)
                                .build();
        List<Supplier<Optimizer>> optimizers =
                List.of(
                        () ->
                                Optimizer.sgd()
                                        .setLearningRateTracker(falling.get())
                                        .optMomentum(0.9f)
                                        .optWeightDecays(0.01f)
                                        .build(),
                        () -> Configs.adam(0.01f),
                        () -> Optimizer.adagrad().optLearningRateTracker(falling.get()).build(),
                        () -> FusedTraining.adagrad(0.05f));
        return optimizers.stream().map(each -> new Object[] {each}).toArray(Object[][]::new);
    }

    /** One pass is two to the last bit, with a rate that falls, and a head that is frozen once. */
    @Test(dataProvider = "optimizers", timeOut = 60_000)
    public void anUpdateInTheLossIsThatOfTheStep(Supplier<Optimizer> optimizer) {
        for (TrainerKind kind : List.of(TENSOR_1, TENSOR_3, MIXED_2, DATA_2)) {
            run(kind, optimizer.get(), head -> head.optUpdateInLoss(true))
                    .assertBitEqual(run(kind, optimizer.get(), head -> {}));
        }
    }

    /** Drawn classes are the same on any number of ranks, for all losses. */
    @Test(timeOut = 60_000)
    public void drawnClasses() {
        for (Case each : cases()) {
            if (each.most < 100) {
                boolean softmax = each.kind.equals("SOFTMAX");
                Consumer<ClassificationHead.Builder> drawing =
                        head ->
                                head.optSampleShare(0.3f)
                                        .optSampleCorrection(true)
                                        .optUpdateInLoss(!softmax);
                List<float[]> one = drawn(TENSOR_1, each, drawing);
                for (TrainerKind kind : List.of(TENSOR_2, TENSOR_4, MIXED_3, DATA_2)) {
                    assertAllClose(drawn(kind, each, drawing), one, 1e-5, each + " " + kind);
                }
            }
        }
    }

    private static List<float[]> drawn(
            TrainerKind kind, Case loss, Consumer<ClassificationHead.Builder> head) {
        return results(
                TrainingRun.of(
                        kind,
                        loss.network(head),
                        Configs.of(loss.loss(), FusedTraining.adagrad(0.05f)),
                        new Shape(FusedTraining.ROWS, FusedTraining.FEATURES),
                        (trainer, manager, losses) -> {
                            for (int i = 0; i < STEPS; i++) {
                                NDList labels = new NDList(loss.labels(manager, i));
                                losses.add(step(trainer, FusedTraining.data(manager, i), labels));
                            }
                        }));
    }

    /** Rows that all are without labels, and labels that are none: one error, and it goes on. */
    @Test(timeOut = 60_000)
    public void badLabels() {
        Map<long[], String> bad = new LinkedHashMap<>();
        bad.put(new long[] {1, 23}, "The label of the position [0, 1] is 23, but the labels of 23");
        bad.put(new long[] {-2, 1}, "The label of the position [0, 0] is -2, but the labels of 23");
        bad.put(
                new long[] {4, 4},
                "The label of the position [0, 1] is 4, which its row has twice");
        for (Case each : cases().stream().filter(c -> c.classes == 23).toList()) {
            for (TrainerKind kind : List.of(TENSOR_1, TENSOR_3, MIXED_2, DATA_2)) {
                TrainingRun.of(
                        kind,
                        each.network(head -> {}),
                        Configs.of(each.loss(), Configs.sgd(RATE)),
                        new Shape(FusedTraining.ROWS, FusedTraining.FEATURES),
                        (trainer, manager, losses) -> {
                            NDList data = FusedTraining.data(manager, 0);
                            bad.forEach(
                                    (first, message) -> {
                                        long[] labels = new long[2 * FusedTraining.ROWS];
                                        Arrays.fill(labels, -1);
                                        System.arraycopy(first, 0, labels, 0, 2);
                                        NDList all =
                                                new NDList(manager.create(labels, new Shape(8, 2)));
                                        Refusals.expect(
                                                RuntimeException.class,
                                                () -> step(trainer, data, all),
                                                message);
                                    });
                            NDList none =
                                    new NDList(manager.ones(new Shape(8, 2), DataType.INT64).neg());
                            float loss = step(trainer, data, none);
                            assertTrue(
                                    each.kind.equals("SOFTMAX") ? loss == 0 : loss > 0, "" + loss);
                        });
            }
        }
    }

    /** What an update in the loss cannot be together with throws, and nothing hangs. */
    @Test(timeOut = 60_000)
    public void whatExcludesAnUpdateInTheLoss() {
        Consumer<ClassificationHead.Builder> inLoss = head -> head.optUpdateInLoss(true);
        assertThrows(TENSOR_2.clippedTo(1), inLoss, "optGradientClipNorm", 1);
        assertThrows(TENSOR_2.scaledBy(LossScaling.builder().build()), inLoss, "optLossScaling", 1);
        assertThrows(TENSOR_2, inLoss, "call trainer.step() before the next loss", 2);
        Refusals.throwsArgument(
                () -> ENTROPY.network(head -> head.optUpdateInLoss(true).optFusedLoss(false)));
        TrainingRun.of(
                TENSOR_2,
                ENTROPY.network(inLoss),
                Configs.of(ENTROPY.loss(), Configs.sgd(RATE)),
                new Shape(FusedTraining.ROWS, FusedTraining.FEATURES),
                (trainer, manager, losses) -> {
                    NDList data = FusedTraining.data(manager, 0);
                    NDList labels = new NDList(ENTROPY.labels(manager, 0));
                    trainer.evaluate(data);
                    float[] before = held(trainer, 0, 2).toFloatArray();
                    try (GradientCollector collector = trainer.newGradientCollector()) {
                        NDArray loss =
                                trainer.getLoss().evaluate(labels, trainer.forward(data, labels));
                        assertNotEquals(held(trainer, 0, 2).toFloatArray(), before);
                        Refusals.expect(
                                RuntimeException.class,
                                () -> collector.backward(loss.mul(2)),
                                "by its loss times 1");
                        collector.zeroGradients();
                    }
                    step(trainer, data, labels);
                });
    }

    private static void assertThrows(
            TrainerKind kind, Consumer<ClassificationHead.Builder> head, String part, int batches) {
        Refusals.expect(
                RuntimeException.class,
                () ->
                        TrainingRun.of(
                                kind,
                                ENTROPY.network(head),
                                Configs.of(ENTROPY.loss(), Configs.sgd(RATE)),
                                new Shape(FusedTraining.ROWS, FusedTraining.FEATURES),
                                (trainer, manager, losses) -> {
                                    for (int i = 0; i < batches; i++) {
                                        NDList labels = new NDList(ENTROPY.labels(manager, i));
                                        TrainingRun.backward(
                                                trainer, FusedTraining.data(manager, i), labels);
                                    }
                                }),
                part);
    }
}

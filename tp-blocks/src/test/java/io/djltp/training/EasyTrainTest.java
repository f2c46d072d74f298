package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.first;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Blocks.tanh;
import static io.djltp.testing.TrainerKind.DATA_1;
import static io.djltp.testing.TrainerKind.DATA_2;
import static io.djltp.testing.TrainerKind.DATA_3;
import static io.djltp.testing.TrainerKind.DATA_4;
import static io.djltp.testing.TrainerKind.MESH_2X3;
import static io.djltp.testing.TrainerKind.PLAIN;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingResult;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.evaluator.Accuracy;
import ai.djl.training.evaluator.Evaluator;
import ai.djl.training.evaluator.TopKAccuracy;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListener.BatchData;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;

import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Supplier;

/**
 * Under {@code EasyTrain} the parallel trainer is DJL's to everything around it: the listeners and
 * the order of their calls, the metrics, the evaluators and the training result.
 */
public class EasyTrainTest {

    private static final int BATCH = 10;
    private static final int FEATURES = 12;
    private static final int CLASSES = 23;

    /** Optimizers, and the difference that is allowed: Adam divides by roots near zero. */
    private enum Rule {
        SGD(() -> Configs.sgd(0.3f), 1e-5),
        MOMENTUM(() -> Configs.sgd(0.05f, 0.9f), 1e-5),
        ADAM(() -> Configs.adam(0.01f), 1e-4),
        ADAMW(() -> Optimizer.adamW().optLearningRateTracker(Tracker.fixed(0.01f)).build(), 1e-4);

        private final Supplier<Optimizer> optimizer;
        private final double tolerance;

        Rule(Supplier<Optimizer> optimizer, double tolerance) {
            this.optimizer = optimizer;
            this.tolerance = tolerance;
        }
    }

    /** What is left of a training. */
    private static final class Outcome {
        private TrainingResult result;
        private Set<String> metricNames;
        private final Map<String, List<Double>> metrics = new HashMap<>();
        private final List<String> calls = new ArrayList<>();
        private List<float[]> weights;
    }

    private final Map<Rule, Outcome> ofDjl = new EnumMap<>(Rule.class);

    @DataProvider
    public Object[][] rules() {
        // what is communicated does not depend on the optimizer: over another backend, one will do
        boolean local = System.getProperty("io.djltp.backend") == null;
        List<TrainerKind> kinds = kinds();
        List<Rule> rules = List.of(Rule.ADAM, Rule.MOMENTUM, Rule.ADAMW);
        return TrainerKind.rows(local ? rules : rules.subList(0, 1), kinds);
    }

    private static List<TrainerKind> kinds() {
        List<TrainerKind> kinds = TrainerKind.all(1, 2, 3, 4);
        kinds.add(MESH_2X3);
        kinds.removeIf(kind -> !kind.isOfBackend());
        return kinds;
    }

    @DataProvider
    public Object[][] ofBackend() {
        return TrainerKind.rows(kinds());
    }

    @Test(dataProvider = "rules", timeOut = 60_000)
    public void lossesAndWeightsAreThoseOfDjl(Rule rule, TrainerKind kind) {
        Outcome expected = ofDjl(rule);
        Outcome actual = train(rule, kind, false);
        assertAllClose(actual.weights, expected.weights, rule.tolerance, "parameter");
        double loss = expected.result.getTrainLoss();
        assertEquals(actual.result.getTrainLoss(), loss, rule.tolerance * loss);
    }

    @Test(dataProvider = "ofBackend", timeOut = 60_000)
    public void metricsEvaluatorsAndListenersAreThoseOfDjl(TrainerKind kind) {
        Outcome expected = ofDjl(Rule.SGD);
        Outcome actual = train(Rule.SGD, kind, false);
        assertEquals(actual.metricNames, expected.metricNames);
        for (String name : expected.metricNames) {
            List<Double> values = expected.metrics.get(name);
            assertEquals(actual.metrics.get(name).size(), values.size(), name);
            if (name.endsWith("CE") || name.endsWith("Accuracy")) {
                for (int i = 0; i < values.size(); i++) {
                    assertClose(actual.metrics.get(name).get(i), values.get(i), name);
                }
            }
        }
        assertSameResult(actual.result, expected.result);
        assertEquals(actual.calls, expected.calls);
        assertAllClose(actual.weights, expected.weights, Rule.SGD.tolerance, "parameter");
    }

    /** Where ranks have whole logits, DJL's own loss and evaluators work as they are. */
    @Test(timeOut = 60_000)
    public void evaluatorsOfDjlWorkInDataMode() {
        Outcome expected = ofDjl(Rule.SGD);
        for (TrainerKind kind : List.of(DATA_1, DATA_2, DATA_3, DATA_4)) {
            Outcome actual = train(Rule.SGD, kind, true);
            assertEquals(actual.metricNames, expected.metricNames);
            assertSameResult(actual.result, expected.result);
        }
    }

    private Outcome ofDjl(Rule rule) {
        return ofDjl.computeIfAbsent(rule, key -> train(rule, PLAIN, false));
    }

    private static void assertSameResult(TrainingResult actual, TrainingResult expected) {
        assertEquals(actual.getEpoch(), expected.getEpoch());
        assertEquals(actual.getEvaluations().keySet(), expected.getEvaluations().keySet());
        expected.getEvaluations()
                .forEach((name, v) -> assertClose(actual.getEvaluations().get(name), v, name));
        assertClose(actual.getTrainLoss(), expected.getTrainLoss(), "train loss");
        assertClose(actual.getValidateLoss(), expected.getValidateLoss(), "validate loss");
    }

    /** An accuracy is a number of rows: it agrees exactly. */
    private static void assertClose(double actual, double expected, String name) {
        double tolerance = name.endsWith("Accuracy") ? 0 : 5e-6 * expected; // fp32
        assertEquals(actual, expected, tolerance, name);
    }

    private static Outcome train(Rule rule, TrainerKind kind, boolean djlEvaluators) {
        boolean plain = kind.equals(PLAIN) || djlEvaluators;
        Loss loss =
                plain
                        ? new SoftmaxCrossEntropyLoss("CE")
                        : new VocabParallelCrossEntropyLoss("CE", -100);
        Outcome outcome = new Outcome();
        DefaultTrainingConfig config =
                Configs.of(loss, rule.optimizer.get())
                        .addEvaluator(plain ? new Accuracy() : new VocabParallelAccuracy())
                        .addEvaluator(plain ? new TopKAccuracy(3) : new VocabParallelAccuracy(3))
                        .addTrainingListeners(TrainingListener.Defaults.logging())
                        .addTrainingListeners(new CallRecorder(outcome.calls));
        boolean cut = kind.isParallel();
        Block last = cut ? column(CLASSES) : linear(CLASSES);
        outcome.weights =
                TrainingRun.of(
                                kind,
                                sequence(
                                        sequence(linear(9), tanh(), first(cut, 17), relu()),
                                        row(cut, 11),
                                        last),
                                config,
                                new Shape(BATCH, FEATURES),
                                (trainer, manager, numbers) -> fit(trainer, manager, outcome))
                        .getWeights();
        return outcome;
    }

    private static void fit(Trainer trainer, NDManager manager, Outcome outcome)
            throws IOException, TranslateException {
        // the last batch of the first has 3 rows, fewer than there are ranks
        ArrayDataset training = dataset(manager, 43);
        ArrayDataset validation = dataset(manager, 26);
        Metrics metrics = new Metrics();
        trainer.setMetrics(metrics);
        EasyTrain.fit(trainer, 3, training, validation);
        EasyTrain.evaluateDataset(trainer, validation);
        outcome.result = trainer.getTrainingResult();
        outcome.metricNames = new TreeSet<>(metrics.getMetricNames());
        for (String name : outcome.metricNames) {
            List<Double> values = new ArrayList<>();
            metrics.getMetric(name).forEach(m -> values.add(m.getValue().doubleValue()));
            outcome.metrics.put(name, values);
        }
        // what the last evaluation has left in the evaluators
        for (Evaluator evaluator : trainer.getEvaluators()) {
            double left = evaluator.getAccumulator("validate/epoch");
            outcome.metrics.put(evaluator.getName(), List.of(left));
            outcome.metricNames.add(evaluator.getName());
        }
    }

    private static ArrayDataset dataset(NDManager manager, int rows) {
        NDArray data = random(manager, rows, rows, FEATURES);
        // labels that can be learned
        NDArray labels = data.argMax(1);
        labels = labels.add(data.get(":, 0").gt(0).toType(labels.getDataType(), false));
        return new ArrayDataset.Builder()
                .setData(data)
                .optLabels(labels)
                .setSampling(BATCH, false)
                .build();
    }

    /** Records which listener methods are called, in which order. */
    private static final class CallRecorder extends TrainingListenerAdapter {

        private final List<String> calls;

        CallRecorder(List<String> calls) {
            this.calls = calls;
        }

        @Override
        public void onEpoch(Trainer trainer) {
            calls.add("epoch");
        }

        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batchData) {
            calls.add("batch of " + batchData.getBatch().getSize());
        }

        @Override
        public void onValidationBatch(Trainer trainer, BatchData batchData) {
            calls.add("validation batch of " + batchData.getBatch().getSize());
        }

        @Override
        public void onTrainingBegin(Trainer trainer) {
            calls.add("begin on " + trainer.getDevices().length);
        }

        @Override
        public void onTrainingEnd(Trainer trainer) {
            calls.add("end of " + trainer.getModel().getName());
        }
    }
}

package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.PLAIN;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.engine.Engine;
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

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;

import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * Under {@code EasyTrain} the parallel trainer is DJL's to everything around it: the listeners and
 * the order of their calls, the metrics, the evaluators and the training result.
 */
public class EasyTrainTest {

    private static final int BATCH = 10;
    private static final int FEATURES = 6;
    private static final int CLASSES = 9;

    /** What is left of a training. */
    private static final class Outcome {
        private TrainingResult result;
        private Set<String> metricNames;
        private final Map<String, List<Double>> metrics = new HashMap<>();
        private final List<String> calls = new ArrayList<>();
    }

    private Outcome ofDjl;

    @Test(dataProvider = "kinds", dataProviderClass = TrainerKind.class, timeOut = 60_000)
    public void metricsEvaluatorsAndListenersAreThoseOfDjl(TrainerKind kind) throws Exception {
        Outcome expected = ofDjl();
        Outcome actual = train(kind, false);
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
    }

    /** Where ranks have whole logits, DJL's own loss and evaluators work as they are. */
    @Test(timeOut = 60_000)
    public void evaluatorsOfDjlWorkInDataMode() throws Exception {
        Outcome expected = ofDjl();
        for (int ranks = 1; ranks <= 4; ranks++) {
            Outcome actual = train(new TrainerKind(ParallelMode.DATA, ranks), true);
            assertEquals(actual.metricNames, expected.metricNames);
            assertSameResult(actual.result, expected.result);
        }
    }

    private Outcome ofDjl() throws Exception {
        if (ofDjl == null) {
            ofDjl = train(PLAIN, false);
        }
        return ofDjl;
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

    private static Outcome train(TrainerKind kind, boolean djlEvaluators) throws Exception {
        boolean plain = kind.equals(PLAIN) || djlEvaluators;
        Loss loss =
                plain
                        ? new SoftmaxCrossEntropyLoss("CE")
                        : new VocabParallelCrossEntropyLoss("CE", -100);
        Outcome outcome = new Outcome();
        Engine.getInstance().setRandomSeed(5);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(block(kind));
            // the last batch of the first is dropped, that of the second is not
            ArrayDataset training = dataset(manager, 43, true);
            ArrayDataset validation = dataset(manager, 26, false);
            Engine.getInstance().setRandomSeed(6);
            DefaultTrainingConfig config =
                    Configs.of(loss, Configs.sgd(0.3f))
                            .addEvaluator(plain ? new Accuracy() : new VocabParallelAccuracy())
                            .addEvaluator(
                                    plain ? new TopKAccuracy(3) : new VocabParallelAccuracy(3))
                            .addTrainingListeners(TrainingListener.Defaults.logging())
                            .addTrainingListeners(new CallRecorder(outcome.calls));
            try (Trainer trainer = kind.open(model, config)) {
                Metrics metrics = new Metrics();
                trainer.setMetrics(metrics);
                trainer.initialize(new Shape(BATCH, FEATURES));
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
                    outcome.metrics.put(
                            evaluator.getName(),
                            List.of((double) evaluator.getAccumulator("validate/epoch")));
                    outcome.metricNames.add(evaluator.getName());
                }
            }
        }
        return outcome;
    }

    private static Block block(TrainerKind kind) {
        Block last = kind.equals(PLAIN) ? linear(CLASSES) : head(CLASSES);
        return sequence(linear(8), relu(), last);
    }

    private static ArrayDataset dataset(NDManager manager, int rows, boolean dropLast) {
        NDArray data = manager.randomNormal(new Shape(rows, FEATURES));
        // labels that can be learned
        NDArray labels =
                data.argMax(1)
                        .add(data.get(":, 0").gt(0).toType(data.argMax(1).getDataType(), false));
        return new ArrayDataset.Builder()
                .setData(data)
                .optLabels(labels)
                .setSampling(BATCH, false, dropLast)
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

package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.newColumn;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metric;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.EarlyStoppingListener;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.util.Pair;

import io.djltp.loss.VocabParallelAccuracy;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ParallelDropout;
import io.djltp.testing.TrainerKind;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;

import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * One run of {@code EasyTrain.fit}, from its beginning or from a checkpoint, and what is left of
 * it.
 */
final class FittedRun {

    static final int EPOCHS = 3;
    static final int BATCHES = 4; // of an epoch: 3 of 6 rows, and one of 5

    private static final int ROWS = 23;
    private static final int BATCH = 6;
    private static final int FEATURES = 5;
    private static final int CLASSES = 7;

    private final TrainerKind kind;
    private final Path folder;
    private final CheckpointListener.Builder settings;
    private TrainingListener disturbing;
    private int patience = 100;
    private Duration limit = Duration.ofDays(1);

    final Map<String, List<String>> metrics = new TreeMap<>();
    final Map<String, float[]> weights = new TreeMap<>();
    Map<String, Float> evaluations;
    int epochs;
    private int asked = EPOCHS;
    boolean resumed;
    CheckpointListener checkpoints;

    /** Does something at a batch of training, before its step, or of validation. */
    static final class At extends TrainingListenerAdapter {

        static final At NEVER = new At(0, 0, () -> {});

        private final Runnable action;
        private int batches;
        private int validated;

        At(int batch, int validated, Runnable action) {
            batches = batch;
            this.validated = validated;
            this.action = action;
        }

        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batchData) {
            if (--batches == 0) {
                action.run();
            }
        }

        @Override
        public void onValidationBatch(Trainer trainer, BatchData batchData) {
            if (--validated == 0) {
                action.run();
            }
        }
    }

    FittedRun(TrainerKind kind, Path folder) {
        this.kind = kind;
        this.folder = folder;
        settings = CheckpointListener.builder().setFolder(folder).optEverySteps(1);
    }

    /** Adds a listener that disturbs the run. */
    FittedRun with(TrainingListener listener) {
        disturbing = listener;
        return this;
    }

    /** Asks for other epochs than {@link #EPOCHS}. */
    FittedRun withEpochs(int epochs) {
        asked = epochs;
        return this;
    }

    FittedRun withPatience(int epochsWithoutImprovement) {
        patience = epochsWithoutImprovement;
        return this;
    }

    FittedRun withLimit(Duration duration) {
        limit = duration;
        return this;
    }

    CheckpointListener.Builder settings() {
        return settings;
    }

    Path folder() {
        return folder;
    }

    /**
     * Trains.
     *
     * @param seed of the random numbers of this process; a run that is resumed has another one
     */
    FittedRun run(int seed) throws Exception {
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Engine.getInstance().setRandomSeed(3); // the data are the same in all runs
            ArrayDataset training = dataset(manager, true);
            ArrayDataset validation = dataset(manager, false);
            Engine.getInstance().setRandomSeed(seed);
            model.setBlock(network());
            checkpoints = settings.build();
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .addEvaluator(new VocabParallelAccuracy())
                            .optOptimizer(Optimizer.adam().build())
                            .optDevices(new Device[] {Device.cpu()})
                            .addTrainingListeners(TrainingListener.Defaults.logging())
                            .addTrainingListeners(
                                    EarlyStoppingListener.builder()
                                            .optEpochPatience(patience)
                                            .optMaxDuration(limit)
                                            .optEarlyStopPctImprovement(99)
                                            .build());
            if (disturbing != null) {
                config.addTrainingListeners(disturbing);
            }
            config.addTrainingListeners(checkpoints);
            try (ParallelTrainer trainer = (ParallelTrainer) kind.open(model, config)) {
                trainer.setMetrics(new Metrics());
                trainer.initialize(new Shape(BATCH, FEATURES));
                resumed = checkpoints.fit(trainer, asked, training, validation);
                keep(trainer);
            }
            for (Pair<String, Parameter> each : model.getBlock().getParameters()) {
                weights.put(each.getKey(), each.getValue().getArray().toFloatArray());
            }
        }
        return this;
    }

    private static Block network() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(8).build())
                .add(Activation::tanh)
                .add(ParallelDropout.builder().optRate(0.3f).build())
                .add(newColumn(CLASSES).optBatchShardedInput(true).build());
    }

    private static ArrayDataset dataset(NDManager manager, boolean shuffled) {
        NDArray data = manager.randomNormal(new Shape(ROWS, FEATURES));
        return new ArrayDataset.Builder()
                .setData(data)
                .optLabels(data.argMax(1))
                .setSampling(BATCH, shuffled)
                .build();
    }

    private void keep(ParallelTrainer trainer) {
        Metrics all = trainer.getMetrics();
        for (String name : all.getMetricNames()) {
            boolean time = !name.contains("Accuracy") && !name.contains("Loss");
            metrics.put(
                    name,
                    all.getMetric(name).stream()
                            .map((Metric metric) -> time ? "time" : "" + metric.getValue())
                            .toList());
        }
        evaluations = new TreeMap<>(trainer.getTrainingResult().getEvaluations());
        epochs = trainer.getTrainingResult().getEpoch();
    }

    /** Asserts that all of it is the same, in every bit. */
    void assertSame(FittedRun expected, String message) {
        Assert.assertEquals(metrics, expected.metrics, message);
        Assert.assertEquals(evaluations, expected.evaluations, message);
        Assert.assertEquals(epochs, expected.epochs, message);
        Assert.assertEquals(weights.keySet(), expected.weights.keySet());
        weights.forEach(
                (name, values) ->
                        Assert.assertTrue(
                                Arrays.equals(values, expected.weights.get(name)),
                                message + ": " + name));
    }
}

package io.djltp.checkpoint;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.dataset.ArrayDataset;

import io.djltp.internal.parameters.ParallelParameters;
import io.djltp.job.Job;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;
import java.util.function.Supplier;

/** A small training on two ranks that a {@link CheckpointListener} is told of. */
final class ListenedTraining {

    static final int BATCH = 4;
    static final int FEATURES = 5;
    static final int CLASSES = 3;

    private final Path folder;
    private Consumer<CheckpointListener.Builder> settings = builder -> builder.optEverySteps(1);
    private Consumer<DefaultTrainingConfig> config = all -> {};
    private Supplier<Block> network = () -> Blocks.head(CLASSES);
    private ParallelMode mode = ParallelMode.TENSOR;
    private Job job;
    private int rows = 4 * BATCH;
    private int seed = 3;

    ListenedTraining(Path folder) {
        this.folder = folder;
    }

    /** What is done with an open trainer. */
    @FunctionalInterface
    interface Body {
        void run(ParallelTrainer trainer, CheckpointListener checkpoints, ArrayDataset data)
                throws Exception;
    }

    /** Sets when checkpoints are taken, instead of after each step. */
    ListenedTraining with(Consumer<CheckpointListener.Builder> set) {
        settings = set;
        return this;
    }

    /** Adds listeners and evaluators, before the one of the checkpoints. */
    ListenedTraining adding(Consumer<DefaultTrainingConfig> more) {
        config = more;
        return this;
    }

    ListenedTraining of(ParallelMode other, Supplier<Block> another) {
        mode = other;
        network = another;
        return this;
    }

    ListenedTraining in(Job other) {
        job = other;
        return this;
    }

    ListenedTraining ofRows(int count) {
        rows = count;
        return this;
    }

    ListenedTraining seeded(int number) {
        seed = number;
        return this;
    }

    void run(Body body) throws Exception {
        CheckpointListener.Builder builder = CheckpointListener.builder().setFolder(folder);
        settings.accept(builder);
        CheckpointListener checkpoints = builder.build();
        Engine.getInstance().setRandomSeed(seed);
        DefaultTrainingConfig all =
                Configs.of(new VocabParallelCrossEntropyLoss(), Configs.adam(0.001f));
        config.accept(all);
        all.addTrainingListeners(checkpoints);
        ParallelConfig ranks =
                Ranks.builder(mode, 2).optJob(job).optTimeout(Duration.ofSeconds(60)).build();
        try (Model model = Blocks.model(network.get());
                NDManager manager = NDManager.newBaseManager()) {
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(TrainingRun.random(manager, 1, rows, FEATURES))
                            .optLabels(TrainingRun.labels(manager, 1, rows, CLASSES))
                            .setSampling(BATCH, true)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, all, ranks)) {
                trainer.setMetrics(new Metrics());
                trainer.initialize(new Shape(BATCH, FEATURES));
                body.run(trainer, checkpoints, data);
            }
        }
    }

    /** Trains for some epochs, from the newest checkpoint if there is one. */
    void fit(int epochs) throws Exception {
        run((trainer, checkpoints, data) -> checkpoints.fit(trainer, epochs, data, null));
    }

    /** Returns what a rank holds of each parameter, by its name. */
    static Map<String, List<Float>> held(ParallelTrainer trainer, int rank) {
        ParallelParameters parameters = trainer.getState().getParameters();
        Map<String, List<Float>> values = new TreeMap<>();
        for (Parameter parameter : parameters.getAll()) {
            try (NDArray copy = trainer.getParameterStore(rank).getHeld(parameter).duplicate()) {
                values.put(parameters.nameOf(parameter), boxed(copy.toFloatArray()));
            }
        }
        return values;
    }

    private static List<Float> boxed(float... values) {
        List<Float> list = new ArrayList<>();
        for (float value : values) {
            list.add(value);
        }
        return list;
    }
}

package io.djltp.checkpoint;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.loss.Loss;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Blocks;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;

/**
 * The Java of docs/checkpoints.md, run. That the page has this code is what the test of all pages
 * in {@code examples} holds, by the comments of the page that name the methods below.
 */
public class CheckpointGuideTest {

    private Path parent;

    @BeforeMethod
    public void makeFolder() throws IOException {
        parent = TestFolder.create();
    }

    private static DefaultTrainingConfig config() {
        return Configs.of(Loss.softmaxCrossEntropyLoss());
    }

    private static ParallelConfig ranks() {
        return Ranks.config(ParallelMode.TENSOR, 2);
    }

    private static Dataset dataset(NDManager manager) {
        NDArray data = manager.randomNormal(new Shape(12, 5));
        return new ArrayDataset.Builder()
                .setData(data)
                .optLabels(data.argMax(1))
                .setSampling(4, true)
                .build();
    }

    @Test(timeOut = 60_000)
    public void fit() throws Exception {
        Assert.assertEquals(fit(40), 120);
        Assert.assertEquals(CheckpointFolder.read(parent).getSteps(), List.of(100L));
        Assert.assertEquals(fit(41), 123);
    }

    private long fit(int epochs) throws Exception {
        Path folder = parent;
        ParallelConfig ranks = ranks();
        Shape shape = new Shape(4, 5);
        DefaultTrainingConfig config = config();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Engine.getInstance().setRandomSeed(1);
            model.setBlock(Linear.builder().setUnits(5).build());
            Dataset trainingSet = dataset(manager);
            Dataset validationSet = dataset(manager);
            CheckpointListener checkpoints =
                    CheckpointListener.builder()
                            .setFolder(folder)
                            .optEverySteps(100)
                            .optEveryMinutes(5)
                            .optKeep(3)
                            .build();
            config.addTrainingListeners(TrainingListener.Defaults.basic())
                    .addTrainingListeners(checkpoints); // the last one
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.setMetrics(new Metrics());
                trainer.initialize(shape);
                checkpoints.fit(trainer, epochs, trainingSet, validationSet);
            }
            return checkpoints.getStep();
        }
    }

    @Test(timeOut = 60_000)
    public void loop() throws Exception {
        loop(3);
        loop(5);
    }

    private void loop(long steps) throws Exception {
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(parent).optEverySteps(1).build();
        try (Model model = Blocks.model(Linear.builder().setUnits(3).build())) {
            DefaultTrainingConfig config = config().addTrainingListeners(checkpoints);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks())) {
                trainer.initialize(new Shape(4, 5));
                checkpoints.resume(trainer);
                while (checkpoints.getStep() < steps) {
                    try (NDManager manager = trainer.getManager().newSubManager()) {
                        long step = checkpoints.getStep();
                        train(trainer, manager, step); // forward and backward
                        trainer.step();
                    }
                    checkpoints.endStep();
                }
                Assert.assertEquals(checkpoints.getStep(), steps);
            }
        }
    }

    private static void train(ParallelTrainer trainer, NDManager manager, long step) {
        NDArray data = TrainingRun.random(manager, step, 4, 5);
        TrainingRun.backward(trainer, data, TrainingRun.labels(manager, step, 4, 3));
    }

    /** The order of a training set of one's own. */
    private static final class Shuffled implements ResumableDataset {

        private final long seed = 5;

        @Override
        public Iterable<Batch> getData(NDManager manager) {
            return getData(manager, null, 0, 0);
        }

        @Override
        public Iterable<Batch> getData(
                NDManager manager, ExecutorService executor, long epoch, long firstBatch) {
            int[] order = shuffled(new Random(seed + epoch));
            return () -> batches(manager, order, firstBatch);
        }

        private static int[] shuffled(Random random) {
            return random.ints(8, 0, 5).toArray();
        }

        private static java.util.Iterator<Batch> batches(
                NDManager manager, int[] order, long firstBatch) {
            List<Batch> batches = new ArrayList<>();
            for (int i = (int) firstBatch; i < order.length; i++) {
                NDManager own = manager.newSubManager();
                batches.add(
                        new Batch(
                                own,
                                new NDList(own.ones(new Shape(4, 5)).mul(order[i])),
                                new NDList(own.zeros(new Shape(4)).add(order[i])),
                                4,
                                Batchifier.STACK,
                                Batchifier.STACK,
                                i,
                                order.length));
            }
            return batches.iterator();
        }

        @Override
        public void prepare(Progress progress) {
            // there is nothing to prepare
        }
    }

    @Test(timeOut = 60_000)
    public void stopAndDataset() throws Exception {
        Assert.assertEquals(stop(true), 143);
        Assert.assertEquals(stop(false), 0);
    }

    private int stop(boolean raise) throws Exception {
        int epochs = 2;
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(parent).optSignals("TERM", "INT").build();
        try (Model model = Blocks.model(Linear.builder().setUnits(5).build())) {
            DefaultTrainingConfig config = config();
            if (raise) {
                config.addTrainingListeners(StoppedFitTest.raiser("TERM", 5, 0));
            }
            config.addTrainingListeners(checkpoints);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks())) {
                trainer.initialize(new Shape(4, 5));
                Dataset trainingSet = new Shuffled();
                try {
                    checkpoints.fit(trainer, epochs, trainingSet, null);
                } catch (TrainingStoppedException e) {
                    return e.getExitStatus(); // of this process
                }
                Assert.assertEquals(checkpoints.getStep(), 16);
            }
        }
        return 0;
    }
}

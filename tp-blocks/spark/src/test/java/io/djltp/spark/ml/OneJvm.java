package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import java.util.ArrayList;
import java.util.List;

/** The same training with ranks of one JVM, without Spark: the batches are put together by hand. */
final class OneJvm {

    private OneJvm() {}

    static List<Double> train(
            Model model,
            Block network,
            List<int[]> rows,
            List<Long> labels,
            int ranks,
            int batchSize,
            int epochs,
            float rate)
            throws Exception {
        Engine.getEngine("PyTorch").setRandomSeed(42);
        model.setBlock(network);
        List<Double> losses = new ArrayList<>();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optDevices(new Device[] {Device.cpu()})
                        .optOptimizer(
                                Optimizer.adam()
                                        .optLearningRateTracker(Tracker.fixed(rate))
                                        .build())
                        .addTrainingListeners(
                                new EpochTrainingListener(),
                                new EvaluatorTrainingListener(),
                                new TrainingListenerAdapter() {
                                    @Override
                                    public void onEpoch(Trainer trainer) {
                                        losses.add(
                                                (double)
                                                        trainer.getTrainingResult().getTrainLoss());
                                    }
                                });
        ParallelConfig parallel =
                ParallelConfig.builder().setMode(ParallelMode.MIXED).setRanks(ranks).build();
        try (ParallelTrainer trainer = new ParallelTrainer(model, config, parallel)) {
            trainer.setMetrics(new Metrics());
            trainer.initialize(new Shape(batchSize, rows.get(0).length));
            EasyTrain.fit(trainer, epochs, new Batches(rows, labels, ranks, batchSize), null);
        }
        return losses;
    }

    /** Of every batch, rank r has some of the rows r, r + ranks, r + 2 ranks and so on. */
    private static final class Batches implements Dataset {

        private final List<int[]> rows;
        private final List<Long> labels;
        private final int ranks;
        private final int batchSize;
        private int epoch;

        Batches(List<int[]> rows, List<Long> labels, int ranks, int batchSize) {
            this.rows = rows;
            this.labels = labels;
            this.ranks = ranks;
            this.batchSize = batchSize;
        }

        @Override
        public Iterable<Batch> getData(NDManager manager) {
            List<List<Integer>> batches = new ArrayList<>();
            int count = (rows.size() + batchSize - 1) / batchSize;
            for (int i = 0; i < count; i++) {
                batches.add(new ArrayList<>());
            }
            for (int rank = 0; rank < ranks; rank++) {
                int own = (rows.size() - rank + ranks - 1) / ranks;
                int[] order = RankBatches.order(own, 42, epoch, rank);
                for (int i = 0; i < own; i++) {
                    batches.get(i / (batchSize / ranks)).add(order[i] * ranks + rank);
                }
            }
            epoch++;
            return () -> batches.stream().map(each -> batch(manager, each, count)).iterator();
        }

        private Batch batch(NDManager manager, List<Integer> numbers, int count) {
            int width = rows.get(0).length;
            int[] data = new int[numbers.size() * width];
            long[] label = new long[numbers.size()];
            for (int i = 0; i < label.length; i++) {
                System.arraycopy(rows.get(numbers.get(i)), 0, data, i * width, width);
                label[i] = labels.get(numbers.get(i));
            }
            NDManager scope = manager.newSubManager();
            return new Batch(
                    scope,
                    new NDList(scope.create(data, new Shape(label.length, width))),
                    new NDList(scope.create(label)),
                    label.length,
                    Batchifier.STACK,
                    Batchifier.STACK,
                    0,
                    count);
        }

        @Override
        public void prepare(Progress progress) {}
    }
}

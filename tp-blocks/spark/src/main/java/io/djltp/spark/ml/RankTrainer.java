package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.metric.Metrics;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;
import ai.djl.training.listener.DivergenceCheckTrainingListener;
import ai.djl.training.listener.EpochTrainingListener;
import ai.djl.training.listener.EvaluatorTrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.checkpoint.Resumable;
import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.spark.SparkRanks;
import io.djltp.training.ParallelTrainer;

import org.apache.spark.SparkEnv;
import org.apache.spark.util.Utils;

import scala.Tuple2;

import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;

/** What a task does to train: keeps its rows, and lets its ranks train with them. */
final class RankTrainer {

    private static final String NAME = "classifier";

    private RankTrainer() {}

    /**
     * What the ranks have trained.
     *
     * @param parameters the network's parameters in DJL's format
     * @param losses the mean loss of each epoch's steps
     */
    record Trained(byte[] parameters, double[] losses) implements Serializable {}

    /** Trains, and returns the network in the task with rank 0. */
    static Trained train(SparkRanks ranks, Iterator<Tuple2<Long, byte[]>> rows, TrainingPlan plan)
            throws Exception {
        NativeMemory.check(plan, ranks);
        // not private to Spark in Java; where Spark's own rows are, and ended with the executor
        Path folder = Path.of(Utils.getLocalDir(SparkEnv.get().conf()));
        try (RowFile file = new RowFile(folder, plan.network().width())) {
            keep(ranks, rows, plan, file);
            Device device = ranks.getGpus().isEmpty() ? Device.cpu() : ranks.getGpus().get(0);
            Engine.getEngine("PyTorch").setRandomSeed(Math.toIntExact(plan.seed()));
            try (Model model = Model.newInstance(NAME, device, "PyTorch")) {
                model.setBlock(plan.network().newNetwork());
                double[] losses = train(ranks, plan, file, model);
                return ranks.getTask() > 0 ? null : trained(folder, model, losses);
            }
        }
    }

    private static void keep(
            SparkRanks ranks, Iterator<Tuple2<Long, byte[]>> rows, TrainingPlan plan, RowFile file)
            throws IOException {
        long[] counts = new long[ranks.getLocalRanks()];
        while (rows.hasNext()) {
            Tuple2<Long, byte[]> row = rows.next();
            counts[RankRows.rankOf(row._1()) - ranks.getFirstRank()]++;
            file.add(row._2());
        }
        file.flush();
        for (int i = 0; i < counts.length; i++) {
            int rank = ranks.getFirstRank() + i;
            long expected = RankRows.rowsOf(rank, ranks.getRanks(), plan.rows());
            if (counts[i] != expected) {
                throw new IllegalStateException(
                        ("The DataFrame had %d rows, of which rank %d should have %d, but it got"
                                        + " %d: rows that change from one reading to the next have"
                                        + " to be kept, with cache() or in a file")
                                .formatted(plan.rows(), rank, expected, counts[i]));
            }
        }
    }

    private static double[] train(SparkRanks ranks, TrainingPlan plan, RowFile file, Model model)
            throws Exception {
        LossOptions options =
                new LossOptions(LossOptions.DEFAULT_IGNORE_INDEX, plan.labelSmoothing(), 0);
        EpochLosses losses = new EpochLosses(ranks, plan.epochs());
        CheckpointListener checkpoints = plan.newCheckpoints(losses);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss("loss", options))
                        .optOptimizer(plan.newOptimizer())
                        .optDevices(new Device[] {model.getNDManager().getDevice()})
                        .addTrainingListeners(
                                new EpochTrainingListener(),
                                new EvaluatorTrainingListener(),
                                new DivergenceCheckTrainingListener(),
                                losses);
        if (checkpoints != null) {
            config.addTrainingListeners(checkpoints); // the last one
        }
        try (ParallelTrainer trainer =
                new ParallelTrainer(
                        model,
                        config,
                        ranks.config()
                                .setMode(ParallelMode.MIXED)
                                .optBatchCheck(false) // each task has rows of its own
                                .build())) {
            trainer.setMetrics(new Metrics());
            trainer.initialize(plan.network().inputShape(plan.batchSize()));
            RankBatches batches = new RankBatches(plan, ranks, file, trainer);
            if (checkpoints == null) {
                EasyTrain.fit(trainer, plan.epochs(), batches, null);
            } else {
                checkpoints.fit(trainer, plan.epochs(), batches, null);
            }
        }
        return losses.all();
    }

    /** Reads the file that DJL writes, of a model that the end of its trainer has made whole. */
    private static Trained trained(Path parent, Model model, double[] losses) throws IOException {
        Path folder = Files.createTempDirectory(parent, "tp-spark");
        try {
            model.save(folder, NAME);
            try (Stream<Path> files = Files.list(folder)) {
                return new Trained(read(files.findFirst().orElseThrow()), losses);
            }
        } finally {
            ai.djl.util.Utils.deleteQuietly(folder); // Spark has Utils too
        }
    }

    private static byte[] read(Path file) throws IOException {
        if (Files.size(file) > Integer.MAX_VALUE - Long.BYTES) {
            throw new IllegalStateException(
                    ("The trained network has %d bytes, more than the 2 GiB that Spark brings to"
                                    + " the driver: train with TensorParallelSpark.run, and let the"
                                    + " task with rank 0 write it")
                            .formatted(Files.size(file)));
        }
        return Files.readAllBytes(file);
    }

    /** Keeps the loss of each epoch, and tells the driver of it. */
    static final class EpochLosses extends TrainingListenerAdapter implements Resumable {

        private final List<Double> all = new ArrayList<>();
        private final SparkRanks ranks;
        private final int epochs;

        EpochLosses(SparkRanks ranks, int epochs) {
            this.ranks = ranks;
            this.epochs = epochs;
        }

        double[] all() {
            return all.stream().mapToDouble(Double::doubleValue).toArray();
        }

        /** {@inheritDoc} */
        @Override
        public void onEpoch(Trainer trainer) {
            double loss = trainer.getTrainingResult().getTrainLoss();
            all.add(loss);
            ranks.report(
                    String.format(
                            Locale.ROOT, "epoch %d of %d: loss %.5f", all.size(), epochs, loss));
        }

        /** {@inheritDoc} */
        @Override
        public JsonElement saveState() {
            JsonArray saved = new JsonArray();
            all.forEach(saved::add);
            return saved;
        }

        /** {@inheritDoc} */
        @Override
        public void restoreState(JsonElement state) {
            all.clear();
            state.getAsJsonArray().forEach(loss -> all.add(loss.getAsDouble()));
        }
    }
}

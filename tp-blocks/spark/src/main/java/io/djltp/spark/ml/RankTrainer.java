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
import ai.djl.training.loss.Loss;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.checkpoint.Resumable;
import io.djltp.head.LossOptions;
import io.djltp.loss.OneVsAllLoss;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelMode;
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
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** What a task does to train: keeps its rows, and lets its ranks train with them. */
final class RankTrainer {

    private static final String NAME = "classifier";

    private final SparkRanks ranks;
    private final TrainingPlan plan;
    private final EpochLosses losses = new EpochLosses();

    RankTrainer(SparkRanks ranks, TrainingPlan plan) {
        this.ranks = ranks;
        this.plan = plan;
    }

    /**
     * What the ranks have trained.
     *
     * @param parameters the network's parameters in DJL's format
     * @param losses the mean loss of each epoch's steps
     */
    record Trained(byte[] parameters, double[] losses) implements Serializable {

        /** What tasks return whose result nobody sees. */
        static final Trained NOTHING = new Trained(new byte[0], new double[0]);
    }

    /** Trains, and returns the network in the task with rank 0. */
    Trained train(Iterator<Tuple2<Long, byte[]>> rows) throws Exception {
        NativeMemory.check(plan, ranks);
        // not private to Spark in Java; where Spark's own rows are, and ended with the executor
        Path folder = Path.of(Utils.getLocalDir(SparkEnv.get().conf()));
        try (RankBatches.RowFile file = new RankBatches.RowFile(folder, rowsOf(ranks), rows)) {
            Device device = ranks.getGpus().isEmpty() ? Device.cpu() : ranks.getGpus().get(0);
            Engine.getEngine("PyTorch").setRandomSeed(Math.toIntExact(plan.settings().getSeed()));
            try (Model model = Model.newInstance(NAME, device, "PyTorch")) {
                model.setBlock(plan.network().newNetwork());
                train(file, model);
                return ranks.getTask() > 0 ? Trained.NOTHING : trained(folder, model);
            }
        }
    }

    /** Returns how many rows the ranks of this task have. */
    private int rowsOf(SparkRanks ranks) {
        int first = ranks.getFirstRank();
        return IntStream.range(first, first + ranks.getLocalRanks())
                .mapToLong(rank -> KnownRows.rowsOf(rank, ranks.getRanks(), plan.rows()))
                .mapToInt(Math::toIntExact)
                .sum();
    }

    private void train(RankBatches.RowFile file, Model model) throws Exception {
        float smoothing = (float) plan.settings().getLabelSmoothing();
        LossOptions options = new LossOptions(LossOptions.DEFAULT_IGNORE_INDEX, smoothing, 0);
        Loss loss =
                plan.network().oneVsAll()
                        ? OneVsAllLoss.binaryCrossEntropy()
                        : new VocabParallelCrossEntropyLoss("loss", options);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(loss)
                        .optOptimizer(plan.settings().newOptimizer())
                        .optDevices(new Device[] {model.getNDManager().getDevice()})
                        .addTrainingListeners(
                                new EpochTrainingListener(),
                                new EvaluatorTrainingListener(),
                                new DivergenceCheckTrainingListener(),
                                losses);
        CheckpointListener checkpoints = plan.newCheckpoints(losses);
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
            int epochs = plan.settings().getEpochs();
            trainer.initialize(plan.network().inputShapes(plan.settings().getBatchSize()));
            RankBatches batches = new RankBatches(plan, ranks, file, trainer);
            if (checkpoints == null) {
                EasyTrain.fit(trainer, epochs, batches, null);
            } else {
                checkpoints.fit(trainer, epochs, batches, null);
            }
        }
    }

    /** Reads the file that DJL writes, of a model that the end of its trainer has made whole. */
    private Trained trained(Path parent, Model model) throws IOException {
        Path folder = Files.createTempDirectory(parent, "tp-spark");
        try {
            model.save(folder, NAME);
            try (Stream<Path> files = Files.list(folder)) {
                Path file = files.findFirst().orElseThrow();
                if (Files.size(file) > Integer.MAX_VALUE - Long.BYTES) {
                    throw new IllegalStateException(
                            ("The trained network has %d bytes, more than the 2 GiB that Spark"
                                            + " brings to the driver: train with"
                                            + " TensorParallelSpark.run, and let the task with rank"
                                            + " 0 write it")
                                    .formatted(Files.size(file)));
                }
                double[] all = losses.all.stream().mapToDouble(Double::doubleValue).toArray();
                return new Trained(Files.readAllBytes(file), all);
            }
        } finally {
            ai.djl.util.Utils.deleteQuietly(folder); // Spark has Utils too
        }
    }

    /** Keeps the loss of each epoch, and tells the driver of it. */
    private final class EpochLosses extends TrainingListenerAdapter implements Resumable {

        private final List<Double> all = new ArrayList<>();

        /** {@inheritDoc} */
        @Override
        public void onEpoch(Trainer trainer) {
            double loss = trainer.getTrainingResult().getTrainLoss();
            all.add(loss);
            ranks.report(
                    String.format(
                            Locale.ROOT,
                            "epoch %d of %d: loss %.5f",
                            all.size(),
                            plan.settings().getEpochs(),
                            loss));
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

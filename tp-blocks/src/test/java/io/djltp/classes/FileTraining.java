package io.djltp.classes;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.Batchifier;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.training.ParallelTrainer;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.function.Supplier;

/** Compares the speed of a training on a file of sparse rows with one on rows held in memory. */
final class FileTraining {

    private static final int BATCH = 64;
    private static final int DIM = 64;
    private static final int TURNS = 6;
    private static final int HELD = 2000; // batches

    private FileTraining() {}

    /** Batches as arrays of Java. */
    private record Held(int[] ids, Shape shape, long[] labels) {

        static Held of(Batch batch) {
            try (batch) {
                NDArray ids = batch.getData().get(0);
                NDArray labels = batch.getLabels().get(0);
                NDArray first = labels.getShape().dimension() == 1 ? labels : labels.get(":, 0");
                return new Held(ids.toIntArray(), ids.getShape(), first.toLongArray());
            }
        }

        Batch toBatch(NDManager manager) {
            NDManager own = manager.newSubManager();
            return new Batch(
                    own,
                    new NDList(own.create(ids, shape)),
                    new NDList(own.create(labels)),
                    BATCH,
                    Batchifier.STACK,
                    Batchifier.STACK,
                    0,
                    0);
        }
    }

    /** The file, the seconds of each turn. */
    public static void main(String[] args) throws Exception {
        long start = System.nanoTime();
        ClassData data = ClassData.builder(Path.of(args[0])).build();
        int seconds = Integer.parseInt(args[1]);
        System.out.printf(
                "%d rows, %d features, %d classes, read in %.0f s%n",
                data.size(),
                data.getFeatureCount(),
                data.getClasses().size(),
                (System.nanoTime() - start) / 1e9);
        ResumableDataset dataset = data.newDataset(BATCH, true, 1);
        try (Model model = Model.newInstance("file")) {
            model.setBlock(
                    new SequentialBlock()
                            .add(new EmbeddingBag(data.getFeatureCount() + 1L, DIM))
                            .add(LambdaBlock.singleton(NDArray::tanh))
                            .add(
                                    ClassificationHead.builder()
                                            .setUnits(data.getClasses().size())
                                            .build()));
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optOptimizer(Configs.sgd(0.1f));
            try (ParallelTrainer trainer =
                    new ParallelTrainer(model, config, ParallelConfig.tensor(2))) {
                trainer.initialize(new Shape(BATCH, 1));
                NDManager manager = trainer.getManager();
                Iterator<Batch> file = dataset.getData(manager, null, 0, 0).iterator();
                List<Held> held = new ArrayList<>();
                for (int i = 0; i < HELD; i++) {
                    held.add(Held.of(file.next()));
                }
                int[] next = {0};
                Supplier<Batch> memory = () -> held.get(next[0]++ % HELD).toBatch(manager);
                Supplier<Batch> streamed = () -> Held.of(file.next()).toBatch(manager);
                steps(trainer, memory, seconds);
                double[] sums = new double[2];
                for (int turn = 0; turn < TURNS; turn++) {
                    double fromMemory = steps(trainer, memory, seconds);
                    double fromFile = steps(trainer, streamed, seconds);
                    sums[0] += fromMemory;
                    sums[1] += fromFile;
                    System.out.printf(
                            "steps a second: memory %.1f, file %.1f, ratio %.3f, of all turns"
                                    + " %.3f; heap %d MB%n",
                            fromMemory,
                            fromFile,
                            fromFile / fromMemory,
                            sums[1] / sums[0],
                            (Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory())
                                    >> 20);
                }
            }
        }
    }

    private static double steps(ParallelTrainer trainer, Supplier<Batch> batches, int seconds) {
        long start = System.nanoTime();
        int steps = 0;
        while (System.nanoTime() - start < seconds * 1_000_000_000L) {
            try (Batch batch = batches.get()) {
                EasyTrain.trainBatch(trainer, batch);
                trainer.step();
            }
            steps++;
        }
        return steps * 1e9 / (System.nanoTime() - start);
    }
}

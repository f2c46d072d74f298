package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.loss.SoftmaxCrossEntropyLoss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.bridge.Autograd;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.mesh.ParallelConfig;
import io.djltp.mesh.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;

import java.util.Locale;

/**
 * Prints what a step of a large head takes, fused and with stock DJL, and what the matrix products
 * alone would take at the rate of a large square one. Not a test: run its main.
 */
public final class FusedHeadTiming {

    private static final int THREADS = 2;
    private static final int FEATURES = 128;

    private FusedHeadTiming() {}

    /**
     * Runs the measurement.
     *
     * @param args steps of each, 7 if missing; then "fused" to leave out stock DJL
     * @throws InterruptedException if it is interrupted
     */
    public static void main(String[] args) throws InterruptedException {
        int steps = args.length > 0 ? Integer.parseInt(args[0]) : 7;
        boolean stock = args.length < 2;
        measure(64, 1_000_000, steps, stock);
        measure(256, 500_000, steps, stock);
    }

    private static void measure(int rows, int classes, int steps, boolean stock)
            throws InterruptedException {
        double[] rate = new double[1];
        double fused =
                step(
                        ColumnParallelLinear.builder()
                                .setUnits(classes)
                                .optBias(false)
                                .optFusedLoss(true)
                                .build(),
                        new VocabParallelCrossEntropyLoss(),
                        rate,
                        rows,
                        classes,
                        steps);
        double floor = 6.0 * rows * FEATURES * classes / rate[0];
        print(
                "%d x %d x %d: fused %.3f s, floor %.3f s (%.0f GFLOP/s), floor/fused %.2f",
                rows, FEATURES, classes, fused, floor, rate[0] / 1e9, floor / fused);
        if (stock) {
            Block linear = Linear.builder().setUnits(classes).optBias(false).build();
            Loss loss = new SoftmaxCrossEntropyLoss();
            double[] djl = new double[1];
            // a thread that has ended takes its OpenMP team along: with one that is left over, the
            // threads of the others wait for each other asleep, which takes longer than to compute
            Thread own = new Thread(() -> djl[0] = step(linear, loss, null, rows, classes, steps));
            own.start();
            own.join();
            print("  stock DJL %.3f s, %.1f times as long", djl[0], djl[0] / fused);
        }
    }

    private static void print(String format, Object... values) {
        System.out.println(String.format(Locale.ROOT, format, values));
    }

    /** Returns the operations a second of a square matrix product. */
    private static double rate() {
        int size = 2048;
        double best = Double.MAX_VALUE;
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray a = manager.randomNormal(new Shape(size, size));
            for (int i = 0; i < 20; i++) {
                long begin = System.nanoTime();
                a.dot(a).close();
                best = Math.min(best, (System.nanoTime() - begin) / 1e9);
            }
        }
        return 2.0 * size * size * size / best;
    }

    private static double step(
            Block head, Loss loss, double[] rate, int rows, int classes, int steps) {
        double best = Double.MAX_VALUE;
        try (Model model = Model.newInstance("head")) {
            model.setBlock(new SequentialBlock().add(head));
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(loss)
                            .optDevices(new Device[] {Device.cpu()})
                            .optOptimizer(
                                    Optimizer.sgd()
                                            .setLearningRateTracker(Tracker.fixed(0.1f))
                                            .build());
            ParallelConfig ranks =
                    ParallelConfig.builder()
                            .setMode(ParallelMode.TENSOR)
                            .setRanks(1)
                            .optThreadsPerRank(THREADS)
                            .build();
            try (Trainer trainer =
                            rate != null
                                    ? new ParallelTrainer(model, config, ranks)
                                    : model.newTrainer(config);
                    NDManager manager = NDManager.newBaseManager()) {
                trainer.initialize(new Shape(rows, FEATURES));
                NDArray x = manager.randomNormal(new Shape(rows, FEATURES));
                NDArray y = manager.randomInteger(0, classes, new Shape(rows), DataType.INT64);
                if (rate != null) {
                    // by the rank's own threads: those of others would compete with them
                    rate[0] = ((ParallelTrainer) trainer).getRanks().run(c -> rate()).get(0);
                } else {
                    Autograd.setThreads(THREADS);
                }
                for (int i = 0; i < steps; i++) {
                    long begin = System.nanoTime();
                    if (!train(trainer, manager, x, y)) {
                        continue;
                    }
                    best = Math.min(best, (System.nanoTime() - begin) / 1e9);
                }
            }
        }
        return best;
    }

    /** Returns whether DJL did the step: it refuses a first one whose gradients sum to zero. */
    private static boolean train(Trainer trainer, NDManager manager, NDArray x, NDArray y) {
        try (NDManager scope = manager.newSubManager();
                GradientCollector collector = trainer.newGradientCollector()) {
            NDList data = new NDList(x.duplicate());
            data.attach(scope);
            NDList labels = new NDList(y);
            NDList output = trainer.forward(data, labels);
            output.attach(scope);
            NDArray value = trainer.getLoss().evaluate(labels, output);
            value.attach(scope);
            collector.backward(value);
        }
        try {
            trainer.step();
            return true;
        } catch (IllegalStateException e) {
            return false;
        }
    }
}

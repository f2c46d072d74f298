package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointFolder;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * Measures what saves cost a training: the time of all steps that begin before a save is complete,
 * against that of the steps before and after them. Arguments: an empty folder, classes, features,
 * rows, and saves.
 */
public final class SaveSlowdown {

    private static final int WITHOUT = 2; // steps between two saves

    private SaveSlowdown() {}

    /**
     * Measures.
     *
     * @param args see above
     * @throws IOException if the folder cannot be used
     */
    public static void main(String[] args) throws IOException {
        long classes = Long.parseLong(args[1]);
        int features = Integer.parseInt(args[2]);
        int rows = Integer.parseInt(args[3]);
        try (Model model = Model.newInstance("head");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(ClassificationHead.builder().setUnits(classes).optBias(false).build());
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optOptimizer(
                                    Optimizer.sgd()
                                            .setLearningRateTracker(Tracker.fixed(0.01f))
                                            .optMomentum(0.9f)
                                            .build())
                            .optDevices(new Device[] {Device.cpu()});
            ParallelConfig ranks =
                    ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2).build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                    TrainingState state = new TrainingState(trainer);
                    CheckpointFolder folder = CheckpointFolder.open(Path.of(args[0]))) {
                trainer.initialize(TrainingRun.random(manager, 0, rows, features).getShape());
                Runnable step =
                        () -> {
                            try (NDManager scope = manager.newSubManager()) {
                                TrainingRun.backward(
                                        trainer,
                                        TrainingRun.random(scope, 1, rows, features),
                                        TrainingRun.labels(scope, 2, rows, (int) classes));
                                trainer.step();
                            }
                        };
                measure(step, state, folder, Integer.parseInt(args[4]));
                load(state, folder);
            }
        }
    }

    private static void measure(
            Runnable step, TrainingState state, CheckpointFolder folder, int rounds)
            throws IOException {
        step.run();
        step.run();
        List<Double> means = new ArrayList<>();
        List<Double> worst = new ArrayList<>();
        double before = without(step);
        for (int round = 0; round < rounds; round++) {
            double memory = memory();
            long begin = System.nanoTime();
            PendingSave save = state.save(folder, new JsonObject());
            List<Double> with = new ArrayList<>();
            double most = 0;
            while (!save.isDone()) {
                with.add(seconds(step));
                most = Math.max(most, memory());
            }
            double took = (System.nanoTime() - begin) / 1e9;
            if (save.getFailure() != null) {
                throw new IOException("not saved, and not to be counted", save.getFailure());
            }
            folder.prune(1);
            double after = without(step);
            double others = (before + after) / 2;
            before = after;
            means.add(with.stream().mapToDouble(each -> each / others).average().orElse(0));
            worst.add(Collections.max(with) / others);
            System.out.printf(
                    "steps without %.2f s; the save: %.1f s, %d steps, mean %.3f, worst %.3f of"
                            + " those; memory %.0f MB, meanwhile at most %+.0f MB%n",
                    others,
                    took,
                    with.size(),
                    means.get(round),
                    worst.get(round),
                    memory,
                    most - memory);
        }
        print("mean of the steps of a save", means);
        print("worst step of a save", worst);
    }

    private static double without(Runnable step) {
        double seconds = 0;
        for (int i = 0; i < WITHOUT; i++) {
            seconds += seconds(step) / WITHOUT;
        }
        return seconds;
    }

    private static void print(String what, List<Double> ratios) {
        Collections.sort(ratios);
        int count = ratios.size();
        double median = (ratios.get((count - 1) / 2) + ratios.get(count / 2)) / 2;
        System.out.printf(
                "%s: median %.3f (%.3f to %.3f) of the steps without, %d saves%n",
                what, median, ratios.get(0), ratios.get(count - 1), count);
    }

    private static void load(TrainingState state, CheckpointFolder folder) throws IOException {
        try (Checkpoint checkpoint = folder.openNewest().orElseThrow()) {
            long begin = System.nanoTime();
            state.restore(checkpoint);
            double took = (System.nanoTime() - begin) / 1e9;
            double bytes = checkpoint.getBytesRead() / 1e6;
            System.out.printf("restored: %.0f MB in %.2f s%n", bytes, took);
        }
    }

    private static double seconds(Runnable step) {
        long begin = System.nanoTime();
        step.run();
        return (System.nanoTime() - begin) / 1e9;
    }

    /** Resident memory that is not of files, in MB. */
    private static double memory() throws IOException {
        return Files.readAllLines(Path.of("/proc/self/status")).stream()
                .filter(line -> line.startsWith("RssAnon"))
                .mapToDouble(line -> Double.parseDouble(line.replaceAll("[^0-9]", "")) / 1000)
                .sum();
    }
}

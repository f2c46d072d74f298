package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.loss.Loss;

import com.google.gson.JsonElement;
import com.google.gson.JsonPrimitive;

import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;

/** One process of a job whose checkpoint listeners differ in one setting after the other. */
final class DifferentListener {

    /** What process 1 sets, by the name under which the error has it. */
    static final Map<String, Consumer<CheckpointListener.Builder>> SETTINGS = new TreeMap<>();

    static {
        SETTINGS.put("optEverySteps", builder -> builder.optEverySteps(2));
        SETTINGS.put("optEveryMinutes", builder -> builder.optEveryMinutes(1.5));
        SETTINGS.put("optEveryEpoch", builder -> builder.optEveryEpoch(true));
        SETTINGS.put("optKeep", builder -> builder.optKeep(5));
        SETTINGS.put("optResumeFrom", builder -> builder.optResumeFrom(1));
        SETTINGS.put("optSignals", builder -> builder.optSignals("USR1"));
        SETTINGS.put(
                "optOptions seed",
                builder -> builder.optOptions(Map.of("seed", "2", "batch", "4")));
        SETTINGS.put("the names of optState", builder -> builder.optState("more", new Nothing()));
    }

    private DifferentListener() {}

    /** A state that is not there. */
    private static final class Nothing implements Resumable {

        @Override
        public JsonElement saveState() {
            return new JsonPrimitive(0);
        }

        @Override
        public void restoreState(JsonElement state) {}
    }

    /**
     * Trains with the same settings, twice so that the second run resumes, and then resumes and
     * begins with a setting that differs, for all of them.
     *
     * @param args the folder and the port
     */
    public static void main(String[] args) {
        Map<String, String> environment = new HashMap<>(System.getenv());
        environment.put("MASTER_PORT", args[1]);
        try (Job job = Launcher.join(environment, 2, Duration.ofSeconds(60))) {
            report("same", job, builder -> {}, args[0], true);
            String folder = job.getProcess() == 0 ? args[0] : link(args[0]);
            report("resumed", job, builder -> {}, folder, true);
            SETTINGS.forEach(
                    (name, setting) -> {
                        report(name, job, setting, folder, true);
                        report("begun " + name, job, setting, args[0] + "-other", false);
                    });
            report("last", job, builder -> {}, folder, true);
        }
    }

    /** The folder may have another path in another process. */
    private static String link(String folder) {
        try {
            Path link = Path.of(folder + "-link");
            return Files.createSymbolicLink(link, Path.of(folder)).toString();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static void report(
            String name,
            Job job,
            Consumer<CheckpointListener.Builder> setting,
            String folder,
            boolean resumes) {
        String end;
        try {
            end = "step " + train(job, setting, Path.of(folder), resumes);
        } catch (JobFailedException e) {
            end = "refused: " + e.getMessage();
        } catch (Exception e) {
            end = e.toString();
        }
        System.out.println("REPORT " + name + ": " + end);
    }

    private static long train(
            Job job, Consumer<CheckpointListener.Builder> setting, Path folder, boolean resumes)
            throws Exception {
        CheckpointListener.Builder builder =
                CheckpointListener.builder()
                        .setFolder(folder)
                        .optEverySteps(1)
                        .optOptions(Map.of("seed", "1", "batch", "4"));
        if (job.getProcess() == 1) {
            setting.accept(builder);
        }
        CheckpointListener checkpoints = builder.build();
        Engine.getInstance().setRandomSeed(1);
        ParallelConfig ranks =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(2)
                        .optJob(job)
                        .optDevices(Collections.nCopies(1, Device.cpu()))
                        .build();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.softmaxCrossEntropyLoss())
                        .addTrainingListeners(checkpoints);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(Linear.builder().setUnits(3).build());
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(TrainingRun.random(manager, 1, 8, 5))
                            .optLabels(TrainingRun.labels(manager, 1, 8, 3))
                            .setSampling(4, true)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(new Shape(4, 5));
                if (resumes) {
                    checkpoints.resume(trainer);
                }
                EasyTrain.fit(
                        trainer, checkpoints.remainingEpochs(1), checkpoints.resumed(data), null);
                return checkpoints.getStep();
            }
        }
    }
}

package io.djltp.checkpoint;

import com.google.gson.JsonElement;
import com.google.gson.JsonPrimitive;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.testing.TrainingRun;

import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;

/** One process of a job that trains again and again, with listeners that may differ. */
final class ListenerProcess {

    static final int ARGUMENTS = 4; // of a training

    /** What process 1 sets, by the name under which the error has it. */
    static final Map<String, Consumer<CheckpointListener.Builder>> SETTINGS = new TreeMap<>();

    static {
        SETTINGS.put("same", builder -> {});
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

    private ListenerProcess() {}

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
     * Makes a step in one training after another.
     *
     * @param args the port, and for each training whether it resumes, the setting of process 1, and
     *     the folders of the two processes
     */
    public static void main(String[] args) {
        Map<String, String> environment = new HashMap<>(System.getenv());
        environment.put("MASTER_PORT", args[0]);
        try (Job job = Launcher.join(environment, 2, Duration.ofSeconds(60))) {
            for (int i = 1; i < args.length; i += ARGUMENTS) {
                Path folder = Path.of(args[i + 2 + job.getProcess()]);
                boolean resume = Boolean.parseBoolean(args[i]);
                String setting = job.getProcess() == 1 ? args[i + 1] : "same";
                try {
                    train(job, folder, resume, SETTINGS.get(setting));
                } catch (Exception e) {
                    System.out.println(
                            "JOB " + e.getClass().getSimpleName() + " " + e.getMessage());
                }
            }
        }
        System.exit(0);
    }

    private static void train(
            Job job, Path folder, boolean resume, Consumer<CheckpointListener.Builder> setting)
            throws Exception {
        new ListenedTraining(folder)
                .in(job)
                .with(
                        builder -> {
                            builder.optEverySteps(1);
                            builder.optOptions(Map.of("seed", "1", "batch", "4"));
                            setting.accept(builder);
                        })
                .run(
                        (trainer, checkpoints, data) -> {
                            if (resume) {
                                checkpoints.resume(trainer);
                            }
                            TrainingRun.step(
                                    trainer,
                                    TrainingRun.random(trainer.getManager(), 1, 4, 5),
                                    TrainingRun.labels(trainer.getManager(), 2, 4, 3));
                            checkpoints.endStep();
                            System.out.println(
                                    "JOB " + checkpoints.getStep() + " " + checkpoints.await());
                        });
    }
}

package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

/** One process of jobs of which each has a folder for checkpoints, maybe not the one of another. */
public final class OneFolderProcess {

    static final int ARGUMENTS = 5; // of a job

    private OneFolderProcess() {}

    /**
     * Trains in one job after another.
     *
     * @param args for each job the port, whether it resumes, the option of this process, and the
     *     folders of the two processes
     */
    public static void main(String[] args) {
        for (int i = 0; i < args.length; i += ARGUMENTS) {
            Map<String, String> environment = new HashMap<>(System.getenv());
            environment.put("MASTER_PORT", args[i]);
            try (Job job = Launcher.join(environment, 2, Duration.ofSeconds(30))) {
                Path folder = Path.of(args[i + 3 + job.getProcess()]);
                boolean resume = Boolean.parseBoolean(args[i + 1]);
                train(job, folder, resume, job.getProcess() == 1 ? args[i + 2] : "same");
            } catch (Exception e) {
                System.out.println("JOB " + e.getClass().getSimpleName() + " " + e.getMessage());
            }
        }
        System.exit(0);
    }

    private static void train(Job job, Path folder, boolean resume, String option)
            throws Exception {
        ParallelConfig ranks =
                ParallelConfig.builder()
                        .setMode(ParallelMode.TENSOR)
                        .setRanks(2)
                        .optJob(job)
                        .optTimeout(Duration.ofSeconds(60))
                        .build();
        CheckpointListener checkpoints =
                CheckpointListener.builder()
                        .setFolder(folder)
                        .optEverySteps(1)
                        .optOptions(Map.of("option", option))
                        .build();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.l2Loss())
                        .optDevices(new Device[] {Device.cpu()})
                        .addTrainingListeners(checkpoints);
        Engine.getInstance().setRandomSeed(3);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            model.setBlock(
                    ColumnParallelLinear.builder().setUnits(4).optGatherOutput(true).build());
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(new Shape(2, 3));
                if (resume) {
                    checkpoints.resume(trainer);
                }
                TrainingRun.backward(
                        trainer,
                        TrainingRun.random(manager, 1, 2, 3),
                        TrainingRun.random(manager, 2, 2, 4));
                trainer.step();
                checkpoints.endStep();
                System.out.println("JOB " + checkpoints.getStep() + " " + checkpoints.await());
            }
        }
    }
}

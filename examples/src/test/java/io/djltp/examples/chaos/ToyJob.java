package io.djltp.examples.chaos;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.job.Job;
import io.djltp.job.JobFailedException;
import io.djltp.job.JobOptions;
import io.djltp.launch.Launcher;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.training.ParallelTrainer;

import java.time.Duration;
import java.util.Collections;

/** One process of a job that trains a toy model, and says how far it has come. */
public final class ToyJob {

    /** What starts the line that says why the job ended. */
    static final String ERROR = "toy: ";

    private static final int BATCH = 16;
    private static final int FEATURES = 8;
    private static final int CLASSES = 40;

    private ToyJob() {}

    /**
     * Trains, as a process of the job that the environment variables tell.
     *
     * @param args the mode, the ranks of all processes, the steps, the time-out in seconds, and
     *     that until all have come
     */
    public static void main(String[] args) {
        int status = 0;
        try {
            run(
                    ParallelMode.valueOf(args[0]),
                    Integer.parseInt(args[1]),
                    Integer.parseInt(args[2]),
                    Duration.ofSeconds(Integer.parseInt(args[3])),
                    Duration.ofSeconds(Integer.parseInt(args[4])));
            say(KillPlan.Phase.END);
        } catch (JobFailedException | RankFailedException e) {
            System.err.println(ERROR + e.getMessage());
            status = 1;
        } catch (RuntimeException e) {
            System.err.println(ERROR + e);
            e.printStackTrace();
            status = 1;
        }
        System.exit(status);
    }

    private static void run(
            ParallelMode mode, int ranks, int steps, Duration timeout, Duration toJoin) {
        say(KillPlan.Phase.START);
        JobOptions options =
                JobOptions.builder()
                        .setRanks(ranks)
                        .optTimeout(toJoin)
                        .optHeartbeatTimeout(timeout)
                        .build();
        LaunchEnvironment environment = LaunchEnvironment.detect(System.getenv()).orElseThrow();
        try (Job job = Launcher.join(environment, options, null);
                Model model = Model.newInstance("toy", Device.cpu(), "PyTorch")) {
            say(KillPlan.Phase.JOINED);
            model.setBlock(SavedToyJob.network(CLASSES));
            ParallelConfig config =
                    ParallelConfig.builder()
                            .setMode(mode)
                            .setRanks(ranks)
                            .optJob(job)
                            .optDevices(Collections.nCopies(job.getLocalRanks(), Device.cpu()))
                            .optTimeout(timeout)
                            .build();
            TrainingConfig training =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss());
            Engine.getInstance().setRandomSeed(1);
            try (Trainer trainer = new ParallelTrainer(model, training, config)) {
                say(KillPlan.Phase.CONNECTED);
                trainer.initialize(new Shape(BATCH, FEATURES));
                say(KillPlan.Phase.STEPS);
                train(trainer, steps);
                say(KillPlan.Phase.CLOSING);
            }
        }
    }

    private static void train(Trainer trainer, int steps) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray data = manager.arange(BATCH * FEATURES).toType(DataType.FLOAT32, false);
            data = data.reshape(BATCH, FEATURES).sin();
            NDList labels = new NDList(manager.arange(BATCH).toType(DataType.INT64, false));
            for (int i = 0; i < steps; i++) {
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList output = trainer.forward(new NDList(data), labels);
                    collector.backward(trainer.getLoss().evaluate(labels, output));
                }
                trainer.step();
            }
        }
    }

    private static void say(KillPlan.Phase phase) {
        System.out.println(phase.line());
    }
}

package io.djltp.checkpoint;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;

/** One process of a job that trains, saves and goes on. */
public final class RestoringProcess {

    static final int STEPS = 4;

    private RestoringProcess() {}

    /**
     * Trains in one job after another.
     *
     * @param args for each job the mesh, the folder of its checkpoints, the step from which it goes
     *     on, and the port
     * @throws Exception if something fails that should not
     */
    public static void main(String[] args) throws Exception {
        for (int i = 0; i < args.length; i += 4) {
            DeviceMesh mesh = DeviceMesh.parse(args[i]);
            Map<String, String> environment = new HashMap<>(System.getenv());
            environment.put("MASTER_PORT", args[i + 3]);
            try (Job job = Launcher.join(environment, mesh.getRanks(), Duration.ofSeconds(30))) {
                System.out.println("JOB " + args[i] + " from " + args[i + 2]);
                train(job, mesh, Path.of(args[i + 1]), Integer.parseInt(args[i + 2]));
            }
        }
        System.exit(0);
    }

    private static void train(Job job, DeviceMesh mesh, Path path, int from) throws IOException {
        StoppedRun.Task task = ResumedTasks.SAMPLED_HEAD.task();
        Engine.getInstance().setRandomSeed(from == 0 ? 42 : 7);
        ParallelConfig ranks =
                ParallelConfig.builder()
                        .setMesh(mesh)
                        .optJob(job)
                        .optTimeout(Duration.ofSeconds(60))
                        .build();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            try (ParallelTrainer trainer = new ParallelTrainer(model, task.begin(model), ranks);
                    CheckpointFolder folder = open(trainer, job, path);
                    TrainingState state = new TrainingState(trainer)) {
                trainer.initialize(task.data().make(manager, 0).getShape());
                if (from > 0) {
                    try (Checkpoint checkpoint = folder.openStep(from)) {
                        state.restore(checkpoint, () -> null);
                        System.out.println("BYTES " + checkpoint.getBytesRead());
                    }
                }
                for (int step = from; step < STEPS; step++) {
                    if (from == 0 && step > 0) {
                        StoppedRun.begin(state, folder);
                    }
                    float loss = task.step(trainer, manager, step);
                    System.out.println("LOSS " + step + " " + Float.floatToIntBits(loss));
                }
            }
        }
    }

    /** The first process makes the folder. */
    private static CheckpointFolder open(ParallelTrainer trainer, Job job, Path path)
            throws IOException {
        CheckpointFolder folder = job.getProcess() == 0 ? CheckpointFolder.open(path) : null;
        trainer.fromRankZero(0); // the others wait for it
        return folder == null ? CheckpointFolder.join(path) : folder;
    }
}

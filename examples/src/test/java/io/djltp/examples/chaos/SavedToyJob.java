package io.djltp.examples.chaos;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.listener.TrainingListenerAdapter;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.checkpoint.CheckpointListener;
import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.ParallelDropout;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.training.ParallelTrainer;

import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.zip.CRC32C;

/**
 * One process of a job that trains a toy model, saves it every few steps, and goes on from the
 * newest checkpoint when it is started again. Says how far it has come, and in the end what the
 * weights are.
 */
public final class SavedToyJob {

    /** What starts the line that says that training begins. */
    static final String BEGIN = "begin after step ";

    /** The line that says that a batch is done but for its step. */
    static final String STEP = "step";

    /** What starts the line that tells the checksum of the weights at the end. */
    static final String RESULT = "result ";

    private static final int RECORDS = 50;
    private static final int BATCH = 8; // 7 batches an epoch
    private static final int FEATURES = 12;
    private static final int EVERY = 3;

    private final PrintStream out;

    private SavedToyJob(PrintStream out) {
        this.out = out;
    }

    /**
     * Trains, as a process of the job that the environment variables tell.
     *
     * @param args the mode, the ranks of all processes, the epochs, the folder and the classes
     */
    public static void main(String[] args) {
        try (Job job =
                Launcher.join(System.getenv(), Integer.parseInt(args[1]), Duration.ofSeconds(30))) {
            new SavedToyJob(System.out).run(args, job);
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    /**
     * Trains without being killed, in this process: one training at a time, because DJL shuffles
     * with the random numbers of the process.
     *
     * @param mode the mode
     * @param ranks the number of ranks
     * @param epochs the number of epochs
     * @param folder a folder for its checkpoints
     * @param classes the number of classes
     * @return the checksum of the weights at the end
     */
    static synchronized String uninterrupted(
            ParallelMode mode, int ranks, int epochs, Path folder, int classes) throws Exception {
        SavedToyJob job = new SavedToyJob(new PrintStream(PrintStream.nullOutputStream()));
        String[] args = {mode.name(), "" + ranks, "" + epochs, "" + folder, "" + classes};
        return job.run(args, null);
    }

    private String run(String[] args, Job job) throws Exception {
        int epochs = Integer.parseInt(args[2]);
        try (Model model = Model.newInstance("toy", Device.cpu(), "PyTorch");
                NDManager manager = NDManager.newBaseManager()) {
            Engine.getInstance().setRandomSeed(1);
            NDArray data = manager.randomNormal(new Shape(RECORDS, FEATURES));
            ArrayDataset dataset =
                    new ArrayDataset.Builder()
                            .setData(data)
                            .optLabels(data.argMax(1))
                            .setSampling(BATCH, true)
                            .build();
            model.setBlock(network(Integer.parseInt(args[4])));
            CheckpointListener checkpoints =
                    CheckpointListener.builder()
                            .setFolder(Path.of(args[3]))
                            .optEverySteps(EVERY)
                            .build();
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optOptimizer(Optimizer.adam().build())
                            .optDevices(new Device[] {Device.cpu()})
                            .addTrainingListeners(new Steps(), checkpoints);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks(args, job))) {
                trainer.initialize(new Shape(BATCH, FEATURES));
                boolean resumed = checkpoints.resume(trainer);
                out.println(BEGIN + (resumed ? checkpoints.getStep() : 0));
                checkpoints.fit(trainer, epochs, dataset, null);
            }
            CRC32C sum = new CRC32C();
            for (Parameter parameter : model.getBlock().getParameters().values()) {
                ByteBuffer bytes = parameter.getArray().toByteBuffer(true);
                sum.update(bytes);
            }
            String result = Long.toHexString(sum.getValue());
            out.println(RESULT + result);
            return result;
        }
    }

    private static ParallelConfig ranks(String[] args, Job job) {
        int ranks = Integer.parseInt(args[1]);
        int local = job == null ? ranks : job.getLocalRanks();
        return ParallelConfig.builder()
                .setMode(ParallelMode.valueOf(args[0]))
                .setRanks(ranks)
                .optJob(job)
                .optDevices(Collections.nCopies(local, Device.cpu()))
                .build();
    }

    static Block network(int classes) {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(16).build())
                .add(Activation::tanh)
                .add(ParallelDropout.builder().optRate(0.2f).build())
                .add(
                        ColumnParallelLinear.builder()
                                .setUnits(classes)
                                .optBatchShardedInput(true)
                                .build());
    }

    /** Says that a step is near. */
    private final class Steps extends TrainingListenerAdapter {

        @Override
        public void onTrainingBatch(Trainer trainer, BatchData batchData) {
            out.println(STEP);
        }
    }
}

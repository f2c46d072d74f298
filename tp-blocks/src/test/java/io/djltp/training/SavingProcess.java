package io.djltp.training;

import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainingRun.backward;
import static io.djltp.testing.TrainingRun.labels;
import static io.djltp.testing.TrainingRun.random;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.listener.SaveModelTrainingListener;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Configs;

import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** One process of a job that saves its model while it is trained. */
public final class SavingProcess {

    /** The status of a process that dies. */
    static final int DEAD = 3;

    private static final int RANKS = 4; // of a mode
    static final int BATCH = 8;
    static final int FEATURES = 5;
    static final int CLASSES = 10;
    private static final int BREAKING = 4; // the place of the block

    /** The steps after which it is saved, in one way after another. */
    static final int STEPS = 6;

    private final Path folder;
    private final Job job; // or null

    private SavingProcess(Path folder, Job job) {
        this.folder = folder;
        this.job = job;
    }

    /**
     * Trains and saves, in one job after another: in those that have this process.
     *
     * @param args for each job the mode or the mesh, the number of processes, whether process 1
     *     dies, the folder and the port
     * @throws Exception if something fails that should not
     */
    public static void main(String[] args) throws Exception {
        int number = Integer.parseInt(System.getenv("RANK"));
        for (int i = 0; i < args.length; i += 5) {
            if (number >= Integer.parseInt(args[i + 1])) {
                continue;
            }
            System.out.println("JOB " + args[i + 3]);
            DeviceMesh mesh = mesh(args[i]);
            Map<String, String> environment = new HashMap<>(System.getenv());
            environment.put("WORLD_SIZE", args[i + 1]);
            environment.put("MASTER_PORT", args[i + 4]);
            try (Job job = Launcher.join(environment, mesh.getRanks(), Duration.ofSeconds(60))) {
                SavingProcess process = new SavingProcess(Path.of(args[i + 3]), job);
                if (Boolean.parseBoolean(args[i + 2])) {
                    process.trainUntilOneDies(mesh);
                } else {
                    process.train(mesh);
                }
            }
        }
        System.exit(0);
    }

    /** The same in one process. */
    static void trainAlone(String way, Path folder) throws Exception {
        new SavingProcess(folder, null).train(mesh(way));
    }

    /** Returns the mesh of a mode, or one such as 2x3. */
    private static DeviceMesh mesh(String way) {
        return Character.isDigit(way.charAt(0))
                ? DeviceMesh.parse(way)
                : DeviceMesh.of(ParallelMode.valueOf(way), RANKS);
    }

    /** Returns a folder that no other process writes to. */
    private Path own() throws IOException {
        Path own = isProcess(0) ? folder : folder.resolve("other" + job.getProcess());
        return Files.createDirectories(own);
    }

    private boolean isProcess(int number) {
        return job == null ? number == 0 : job.getProcess() == number;
    }

    private void train(DeviceMesh mesh) throws Exception {
        Path file = Files.createTempFile("no-folder", null);
        try (Model model = model(mesh)) {
            SaveModelTrainingListener listener =
                    new SaveModelTrainingListener(folder.toString(), "listener");
            DefaultTrainingConfig config = config();
            config.addTrainingListeners(listener);
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks(mesh))) {
                trainer.initialize(new Shape(BATCH, FEATURES));
                step(trainer, 1, null);
                model.save(own(), "first-plain");
                failToSave(trainer, isProcess(0) ? file : folder);
                sleep(1); // process 0 is the first to come here, and waits for the others
                step(trainer, 2, null);
                trainer.save(folder, "first");
                Breaking breaking = (Breaking) model.getBlock().getChildren().valueAt(BREAKING);
                breaking.breaks = isProcess(0); // when one sharded layer is written, of two
                failToSave(trainer, folder);
                breaking.breaks = false;
                step(trainer, 3, null);
                sleep(0); // and the others wait for process 0
                trainer.save(folder, "all");
                step(trainer, 4, null);
                model.save(own(), "all-plain");
                step(trainer, 5, null);
                model.save(folder, "same-file"); // all write it at once
                export(model);
                step(trainer, 6, trainer);
                trainer.notifyListeners(each -> each.onEpoch(trainer));
                if (!trainer.getModel().equals(model)) {
                    System.out.println("REPORT another model");
                }
                evaluate(trainer);
            }
            model.setProperty("Epoch", "0"); // which the listener has set
            model.save(own(), "closed");
        }
        Files.delete(file);
        System.out.println("REPORT done");
    }

    /** By another route than DJL's format, a chunk of rows at a time. */
    private void export(Model model) throws IOException {
        WeightExport.builder()
                .setMapping(NameMapping.own())
                .optName("exported")
                .build()
                .write(model.getBlock(), own());
    }

    /** Process 0 cannot write, the others are not told, and all go on. */
    private void failToSave(ParallelTrainer trainer, Path to) {
        try {
            trainer.save(to, "fails");
        } catch (IOException e) {
            System.out.println("REPORT not saved");
        }
    }

    private void sleep(int process) throws InterruptedException {
        if (job != null && isProcess(process)) {
            Thread.sleep(400);
        }
    }

    /** The one that is left has a file from before. */
    private void trainUntilOneDies(DeviceMesh mesh) throws Exception {
        try (Model model = model(mesh)) {
            try (ParallelTrainer trainer = new ParallelTrainer(model, config(), ranks(mesh))) {
                trainer.initialize(new Shape(BATCH, FEATURES));
                step(trainer, 1, null);
                dieAfterTheStep();
                long begin = System.nanoTime();
                try {
                    trainer.save(folder, "old");
                    System.out.println("REPORT saved without process 1");
                } catch (RankFailedException e) {
                    long millis = (System.nanoTime() - begin) / 1_000_000;
                    System.out.println("REPORT after " + millis + " ms: " + e);
                }
            } catch (RuntimeException e) {
                System.out.println("REPORT close: " + e);
            }
            try {
                model.save(folder, "lost");
                System.out.println("REPORT saved what was lost");
            } catch (IllegalStateException e) {
                System.out.println("REPORT lost: " + e.getMessage());
            }
        }
    }

    /** Process 1 dies, when process 0 has nothing more to get from it for its own step. */
    private void dieAfterTheStep() throws IOException, InterruptedException {
        Path stepped = folder.resolve("stepped");
        if (isProcess(1)) {
            while (!Files.exists(stepped)) {
                Thread.sleep(10);
            }
            Runtime.getRuntime().halt(DEAD);
        }
        Files.createFile(stepped);
        Thread.sleep(100);
    }

    private Model model(DeviceMesh mesh) {
        Model model = Model.newInstance("net", Device.cpu(), "PyTorch");
        model.setBlock(
                network(mesh.isCut(DeviceMesh.TENSOR) ? mesh.getSize(DeviceMesh.TENSOR) : 1));
        model.setProperty("Epoch", "0"); // else DJL numbers the files by what is there
        boolean replicas = job != null && mesh.getFirstReplica(first()) != first();
        Engine.getInstance().setRandomSeed(replicas ? 4 : 3); // they get what the first ones have
        return model;
    }

    private int first() {
        return job.getFirstRank();
    }

    /** Features of a rank's own, and one that every second rank has. */
    private static Cut cut(int ranks) {
        Cut own = Cut.balanced(2 * RANKS, ranks);
        return Cut.of(
                2 * RANKS + 2,
                ranks,
                rank -> List.of(new ShardRange(2L * RANKS + rank % 2, 1), own.getRange(rank)));
    }

    static Block network() {
        return network(RANKS);
    }

    private static Block network(int ranks) {
        Cut cut = cut(Math.max(2, ranks));
        return sequence(
                linear(6),
                BatchNorm.builder().build(),
                relu(),
                ColumnParallelLinear.builder()
                        .setUnits(cut.getLength())
                        .optShardingStrategy(ShardingStrategy.rowwise(cut))
                        .optGatherOutput(true)
                        .optBatchShardedInput(true)
                        .build(),
                new Breaking(),
                head(CLASSES));
    }

    private static DefaultTrainingConfig config() {
        return Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(0.1f));
    }

    private ParallelConfig ranks(DeviceMesh mesh) {
        return ParallelConfig.builder()
                .setMesh(mesh)
                .optJob(job)
                .optTimeout(Duration.ofSeconds(30))
                .optThreadsPerRank(1)
                .build();
    }

    /** Makes a step; a trainer to be saved within it gets an error. */
    private void step(ParallelTrainer trainer, int seed, ParallelTrainer within)
            throws IOException {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDList data = new NDList(random(manager, seed, BATCH, FEATURES));
            NDList labels = new NDList(labels(manager, seed, BATCH, CLASSES));
            backward(trainer, data, labels);
            if (within != null && job != null) {
                try {
                    within.save(folder, "within");
                } catch (IllegalStateException e) {
                    System.out.println("REPORT within: " + e.getMessage());
                }
            }
            trainer.step();
        }
    }

    private static void evaluate(ParallelTrainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray data = random(manager, 99, BATCH, FEATURES);
            NDList labels = new NDList(labels(manager, 99, BATCH, CLASSES));
            NDList output = trainer.evaluate(new NDList(data));
            float loss = trainer.getLoss().evaluate(labels, output).getFloat();
            System.out.println("REPORT loss " + loss);
        }
    }

    /** Passes its input on, and cannot be saved at times. */
    private static final class Breaking extends LambdaBlock {

        private boolean breaks;

        Breaking() {
            super(input -> input);
        }

        @Override
        public void saveParameters(DataOutputStream os) throws IOException {
            if (breaks) {
                breaks = false;
                throw new IOException("no space left");
            }
            super.saveParameters(os);
        }
    }
}

package io.djltp.training;

import static io.djltp.testing.ArrayAssert.assertAllClose;
import static io.djltp.testing.ArrayAssert.assertClose;
import static io.djltp.testing.Blocks.head;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newColumn;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.Refusals.expect;
import static io.djltp.testing.Refusals.throwsState;
import static io.djltp.testing.TrainingRun.random;
import static io.djltp.testing.TrainingRun.weights;

import static org.testng.Assert.assertEquals;
import static org.testng.Assert.assertFalse;
import static org.testng.Assert.assertTrue;
import static org.testng.Assert.expectThrows;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.nn.Parameter;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.listener.SaveModelTrainingListener;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.internal.safetensors.SafetensorsFile;
import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.TestFolder;
import io.djltp.testing.ThreadedJob;
import io.djltp.testing.TrainingRun;
import io.djltp.testing.Unchecked;

import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Stream;

/**
 * A model that is trained by several processes is saved by all of them, and each file is that of
 * one process with all ranks.
 */
public class SavingInProcessesTest extends TestFolder {

    private static final double TOLERANCE = 2e-6;
    private static final int RANKS = 4; // of a mode
    private static final int BREAKING = 4; // the place of the block
    private static final Network.Batches BATCHES = Network.batches("8x5", "8:10");

    @DataProvider
    public Object[][] ways() {
        return new Object[][] {
            {"2x2", 4},
            {"TENSOR", 2},
            {"MIXED", 2},
            {"DATA", 2},
            {"2x3", 2}
        };
    }

    /** Returns the mesh of a mode, or one such as 2x3. */
    private static DeviceMesh mesh(String way) {
        return Character.isDigit(way.charAt(0))
                ? DeviceMesh.parse(way)
                : DeviceMesh.of(ParallelMode.valueOf(way), RANKS);
    }

    @Test(dataProvider = "ways", timeOut = 120_000)
    public void allProcessesSave(String way, int processes) throws Exception {
        DeviceMesh mesh = mesh(way);
        boolean whole = way.equals("DATA"); // on every process, at any time
        Path many = Files.createDirectory(folder.resolve("many"));
        Path one = Files.createDirectory(folder.resolve("one"));
        List<Float> losses =
                ThreadedJob.run(
                        processes,
                        mesh.getRanks(),
                        job -> Unchecked.call(() -> new Training(many, job, mesh).train(whole)));
        for (float loss : losses) { // evaluated by all ranks with what is in the file
            assertEquals(loss, losses.get(0));
        }
        new Training(one, null, mesh).train(whole);
        Set<String> names = new TreeSet<>();
        for (String name :
                List.of("first-plain", "first", "all", "all-plain", "same-file", "closed")) {
            names.add(name + "-0000.params");
        }
        names.add("listener-0001.params"); // after the first epoch, and at the end
        for (String file : names) {
            assertSame(many.resolve(file), one.resolve(file));
        }
        assertSameTensors(many, one);
        names.add("exported.safetensors");
        for (int i = 1; i < processes; i++) {
            Path other = many.resolve("other" + i);
            for (String file : List.of("first-plain", "all-plain", "closed")) {
                String name = file + "-0000.params";
                assertSame(other.resolve(name), one.resolve(name));
            }
            assertSameTensors(other, one);
            names.add("other" + i);
        }
        if (whole) {
            names.add("within-0000.params");
        }
        try (Stream<Path> files = Files.list(many)) {
            List<String> found = files.map(each -> each.getFileName().toString()).sorted().toList();
            assertEquals(found, List.copyOf(names));
        }
    }

    /** Sums of ranks may be in another order; what is not a number must be the same. */
    private static void assertSame(Path file, Path expected) throws Exception {
        assertAllClose(load(file), load(expected), TOLERANCE, file + ", parameter");
    }

    private static List<float[]> load(Path file) throws Exception {
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(network(RANKS));
            String name = file.getFileName().toString();
            model.load(file.getParent(), name.substring(0, name.indexOf("-000")));
            return weights(model.getBlock());
        }
    }

    private static void assertSameTensors(Path actual, Path expected) throws IOException {
        try (SafetensorsFile one = SafetensorsFile.open(actual.resolve("exported.safetensors"));
                SafetensorsFile other =
                        SafetensorsFile.open(expected.resolve("exported.safetensors"));
                NDManager manager = NDManager.newBaseManager()) {
            assertEquals(one.getTensors(), other.getTensors());
            for (String name : one.getTensors().keySet()) {
                NDArray values = other.read(name, manager);
                assertClose(one.read(name, manager), values, TOLERANCE, name);
            }
        }
    }

    /** The training of a process, or of one alone. */
    private record Training(Path folder, Job job, DeviceMesh mesh) {

        private boolean isProcess(int number) {
            return job == null ? number == 0 : job.getProcess() == number;
        }

        /** Returns a folder that no other process writes to. */
        private Path own() throws IOException {
            Path own = isProcess(0) ? folder : folder.resolve("other" + job.getProcess());
            return Files.createDirectories(own);
        }

        /** Saves in one way after another, and returns the loss of an evaluation. */
        float train(boolean whole) throws Exception {
            Path file = Files.createTempFile("no-folder", null);
            float loss;
            try (Model model = model()) {
                DefaultTrainingConfig config = config();
                config.addTrainingListeners(
                        new SaveModelTrainingListener(folder.toString(), "listener"));
                try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks())) {
                    trainer.initialize(new Shape(8, 5));
                    step(trainer, 1);
                    model.save(own(), "first-plain");
                    assertFails(trainer, isProcess(0) ? file : folder);
                    sleep(1); // process 0 is the first to come here, and waits for the others
                    step(trainer, 2);
                    trainer.save(folder, "first");
                    Breaking breaking = (Breaking) model.getBlock().getChildren().valueAt(BREAKING);
                    breaking.breaks = isProcess(0); // when one sharded layer is written, of two
                    assertFails(trainer, folder);
                    breaking.breaks = false;
                    step(trainer, 3);
                    sleep(0); // and the others wait for process 0
                    trainer.save(folder, "all");
                    step(trainer, 4);
                    model.save(own(), "all-plain");
                    step(trainer, 5);
                    model.save(folder, "same-file"); // all write it at once
                    // by another route than DJL's format, a chunk of rows at a time
                    WeightExport.builder()
                            .setMapping(NameMapping.own())
                            .optName("exported")
                            .build()
                            .write(model.getBlock(), own());
                    backward(trainer, 6);
                    if (whole && job != null) {
                        trainer.save(folder, "within");
                    } else if (job != null) {
                        throwsState(() -> trainer.save(folder, "within"), "save it after step()");
                    }
                    trainer.step();
                    trainer.notifyListeners(each -> each.onEpoch(trainer));
                    assertTrue(trainer.getModel().equals(model));
                    NDList[] batch = BATCHES.make(trainer.getManager(), 99);
                    NDList output = trainer.evaluate(batch[0]);
                    loss = trainer.getLoss().evaluate(batch[1], output).getFloat();
                }
                model.setProperty("Epoch", "0"); // which the listener has set
                model.save(own(), "closed");
            }
            Files.delete(file);
            return loss;
        }

        /** Process 0 cannot write, the others are not told, and all go on. */
        private void assertFails(ParallelTrainer trainer, Path to) throws IOException {
            if (isProcess(0)) {
                expectThrows(IOException.class, () -> trainer.save(to, "fails"));
            } else {
                trainer.save(to, "fails");
            }
        }

        private void sleep(int process) throws InterruptedException {
            if (job != null && isProcess(process)) {
                Thread.sleep(400);
            }
        }

        private Model model() {
            Model model = Model.newInstance("net", Device.cpu());
            boolean cut = mesh.isCut(DeviceMesh.TENSOR);
            model.setBlock(network(cut ? mesh.getSize(DeviceMesh.TENSOR) : 1));
            model.setProperty("Epoch", "0"); // else DJL numbers the files by what is there
            int first = job == null ? 0 : job.getFirstRank();
            // replicas get what the first ones have
            int seed = mesh.getFirstReplica(first) == first ? 3 : 4;
            model.getBlock()
                    .setInitializer( // not the generator, which threads share
                            (m, shape, type) -> random(m, seed, shape.getShape()),
                            Parameter.Type.WEIGHT);
            return model;
        }

        private ParallelConfig ranks() {
            return ParallelConfig.builder()
                    .setMesh(mesh)
                    .optJob(job)
                    .optTimeout(Duration.ofSeconds(30))
                    .optThreadsPerRank(1)
                    .build();
        }

        private static DefaultTrainingConfig config() {
            return Configs.of(new VocabParallelCrossEntropyLoss(), Configs.sgd(0.1f));
        }

        private static void backward(ParallelTrainer trainer, int step) {
            try (NDManager manager = trainer.getManager().newSubManager()) {
                NDList[] batch = BATCHES.make(manager, step);
                TrainingRun.backward(trainer, batch[0], batch[1]);
            }
        }

        private static void step(ParallelTrainer trainer, int step) {
            backward(trainer, step);
            trainer.step();
        }

        /** Process 1 dies; the one that is left has a file from before. */
        void trainUntilOneDies() throws Exception {
            Path stepped = folder.resolve("stepped");
            try (Model model = model()) {
                try (ParallelTrainer trainer = new ParallelTrainer(model, config(), ranks())) {
                    trainer.initialize(new Shape(8, 5));
                    step(trainer, 1);
                    if (isProcess(1)) { // when process 0 has nothing more to get from it
                        while (!Files.exists(stepped)) {
                            Thread.sleep(10);
                        }
                        Runtime.getRuntime().halt(3);
                    }
                    Files.createFile(stepped);
                    Thread.sleep(100);
                    long begin = System.nanoTime();
                    expect(
                            RankFailedException.class,
                            () -> trainer.save(folder, "old"),
                            "process 1");
                    assertTrue(System.nanoTime() - begin < 10_000_000_000L, "it takes long");
                } catch (RankFailedException e) {
                    System.out.println("close: " + e);
                }
                throwsState(() -> model.save(folder, "lost"), "model.load");
            }
        }
    }

    /** Features of a rank's own, and one that every second rank has. */
    private static Block network(int ranks) {
        int size = Math.max(2, ranks);
        Cut own = Cut.balanced(2 * RANKS, size);
        Cut cut =
                Cut.of(
                        2 * RANKS + 2,
                        size,
                        rank ->
                                List.of(
                                        new ShardRange(2L * RANKS + rank % 2, 1),
                                        own.getRange(rank)));
        Block gathered =
                newColumn(cut.getLength())
                        .optShardingStrategy(ShardingStrategy.rowwise(cut))
                        .optGatherOutput(true)
                        .optBatchShardedInput(true)
                        .build();
        return sequence(
                linear(6), BatchNorm.builder().build(), relu(), gathered, new Breaking(), head(10));
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

    /**
     * A process of a job, of which one dies.
     *
     * @param args the folder and the port
     * @throws Exception if something is not as it should be
     */
    public static void main(String[] args) throws Exception {
        Map<String, String> environment = new HashMap<>(System.getenv());
        environment.put("MASTER_PORT", args[1]);
        DeviceMesh mesh = mesh("TENSOR");
        try (Job job = Launcher.join(environment, RANKS, Duration.ofSeconds(60))) {
            new Training(Path.of(args[0]), job, mesh).trainUntilOneDies();
        }
        System.exit(0);
    }

    @Test(timeOut = 120_000)
    public void aProcessHasDied() throws Exception {
        Path old = folder.resolve("old-0000.params");
        Files.writeString(old, "an old file");
        List<String> arguments = List.of("" + folder, JobProcess.ports(1).get(0));
        JobProcess.run(getClass(), 90, arguments, 0, 3);
        assertEquals(Files.readString(old), "an old file");
        try (Stream<Path> files = Files.list(folder)) {
            assertFalse(files.anyMatch(each -> ("" + each.getFileName()).startsWith(".saving")));
        }
    }
}

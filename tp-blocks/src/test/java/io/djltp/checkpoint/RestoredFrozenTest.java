package io.djltp.checkpoint;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.util.Pair;
import ai.djl.util.Utils;

import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Consumer;

/** What is frozen is what was at the checkpoint, and who has frozen something else is told. */
public class RestoredFrozenTest {

    private static final Consumer<Block> NOTHING = network -> {};
    private static final Consumer<Block> BIASES = network -> freeze(network, "_bias");
    private static final Consumer<Block> BODY = network -> freeze(network, "01Linear_");

    private static final Set<String> BIAS_NAMES =
            Set.of("01Linear_bias", "02ColumnParallelLinear_bias");

    private Path folder;
    private Map<String, float[]> before; // the last steps of a run
    private Map<String, float[]> after;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("frozen");
    }

    @AfterMethod(alwaysRun = true)
    public void remove() {
        Utils.deleteQuietly(folder);
    }

    private static void freeze(Block network, String part) {
        for (Pair<String, Parameter> named : network.getParameters()) {
            named.getValue().freeze(named.getKey().contains(part));
        }
    }

    /** Frozen before the resume: trained all the same, and said. */
    @Test(timeOut = 60_000)
    public void whatWasTrainedIsTrained() throws Exception {
        run(1, NOTHING, NOTHING);
        String warning = run(2, BIASES, NOTHING);
        Assert.assertTrue(
                warning.contains(
                        "What was frozen before the checkpoint was restored is trained from here"
                                + " on, as it was when the checkpoint was taken: 01Linear_bias,"
                                + " 02ColumnParallelLinear_bias. To go on"),
                warning);
        Assert.assertFalse(warning.contains("What was trained before"), warning);
        Assert.assertEquals(unchanged(), Set.of());
    }

    @Test(timeOut = 60_000)
    public void whatWasFrozenIsFrozen() throws Exception {
        run(1, BIASES, NOTHING);
        Assert.assertEquals(unchanged(), BIAS_NAMES);
        String warning = run(2, BODY, NOTHING);
        Assert.assertTrue(
                warning.contains("What was frozen before the checkpoint was restored is trained"),
                warning);
        Assert.assertTrue(warning.contains(" taken: 01Linear_weight. To go on"), warning);
        Assert.assertTrue(
                warning.contains("What was trained before the checkpoint was restored is frozen"),
                warning);
        Assert.assertTrue(
                warning.contains(" taken: 02ColumnParallelLinear_bias. To go on"), warning);
        Assert.assertEquals(unchanged(), BIAS_NAMES);
    }

    /** The same as at the checkpoint, or after the resume: nothing to be said. */
    @Test(timeOut = 60_000)
    public void whatIsFrozenAfterwardsStaysFrozen() throws Exception {
        run(1, BIASES, NOTHING);
        String warning = run(2, BIASES, BODY);
        Assert.assertFalse(warning.contains("before the checkpoint was restored"), warning);
        Assert.assertEquals(unchanged(), Set.of("01Linear_weight", "01Linear_bias"));
    }

    /** Trains until the end of an epoch of two steps, and returns the warnings. */
    private String run(int epochs, Consumer<Block> beforeResume, Consumer<Block> afterResume)
            throws Exception {
        PrintStream standard = System.err;
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true, StandardCharsets.UTF_8));
        try {
            train(epochs, beforeResume, afterResume);
        } finally {
            System.setErr(standard);
        }
        return logged.toString(StandardCharsets.UTF_8);
    }

    private void train(int epochs, Consumer<Block> beforeResume, Consumer<Block> afterResume)
            throws Exception {
        CheckpointListener checkpoints =
                CheckpointListener.builder().setFolder(folder).optEverySteps(1).build();
        Engine.getInstance().setRandomSeed(3);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optDevices(new Device[] {Device.cpu()})
                        .addTrainingListeners(checkpoints);
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(ParallelMode.MIXED).setRanks(2).build();
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            Block network =
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(6).build())
                            .add(
                                    ColumnParallelLinear.builder()
                                            .setUnits(7)
                                            .optBatchShardedInput(true)
                                            .build());
            model.setBlock(network);
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(TrainingRun.random(manager, 1, 8, 5))
                            .optLabels(TrainingRun.labels(manager, 1, 8, 7))
                            .setSampling(4, true)
                            .build();
            try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks)) {
                trainer.initialize(new Shape(4, 5));
                beforeResume.accept(network);
                Assert.assertEquals(checkpoints.resume(trainer), epochs > 1);
                afterResume.accept(network);
                before = values(trainer, network);
                EasyTrain.fit(
                        trainer,
                        checkpoints.remainingEpochs(epochs),
                        checkpoints.resumed(data),
                        null);
                after = values(trainer, network);
            }
        }
    }

    /** Returns what rank 0 holds. */
    private static Map<String, float[]> values(ParallelTrainer trainer, Block network) {
        Map<String, float[]> values = new TreeMap<>();
        for (Pair<String, Parameter> named : network.getParameters()) {
            Device cpu = Device.cpu();
            values.put(
                    named.getKey(),
                    trainer.getParameterStore(0)
                            .getValue(named.getValue(), cpu, false)
                            .toFloatArray());
        }
        return values;
    }

    private Set<String> unchanged() {
        Set<String> same = new TreeSet<>();
        before.forEach(
                (name, values) -> {
                    if (Arrays.equals(values, after.get(name))) {
                        same.add(name);
                    }
                });
        return same;
    }
}

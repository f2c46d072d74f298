package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.LambdaBlock;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.head.LossOptions;
import io.djltp.layout.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Supplier;
import java.util.stream.Collectors;

/**
 * What is computed in float32 has the bits that it had: hashes of all losses and weights of short
 * trainings, as they were recorded. Libtorch chooses its kernels by the processor, and divides work
 * among as many threads as there are, so that each kind of machine has hashes of its own; on one
 * that is not listed the test is skipped, and says what to record.
 *
 * <p>Who changes the order of operations on purpose records new hashes, and says so in the change.
 */
public class Float32BitsTest {

    /**
     * By machine and training, with libtorch 2.7.1. Those of Zen 4 (AVX512) are of the commit
     * before there was any arithmetic of 16 bits.
     */
    private static final Map<String, Map<String, Integer>> RECORDED =
            Map.of(
                    "AuthenticAMD 25 17, 2 processors",
                    Map.ofEntries(
                            Map.entry("head, 1 rank", -442652748),
                            Map.entry("head, 2 ranks", 1234760298),
                            Map.entry("head, 3 ranks", 1192307942),
                            Map.entry("head, mixed", 1208581288),
                            Map.entry("large head, 1 rank", 1424587081),
                            Map.entry("large head, 2 ranks", -371888749),
                            Map.entry("smoothed head, 2 ranks", -1589044685),
                            Map.entry("head with Adam, 2 ranks", 1337750013),
                            Map.entry("layers, 1 rank", 1825329385),
                            Map.entry("layers, 2 ranks", -655927157),
                            Map.entry("layers, 3 ranks", -1406237982)));

    private String machine;

    /** Finds out which machine this is. */
    @BeforeClass
    public void setUp() throws IOException {
        Path file = Path.of("/proc/cpuinfo");
        String backend = System.getProperty("io.djltp.backend", "local");
        if (!Files.exists(file) || !backend.equals("local")) {
            throw new SkipException("Bits are recorded for Linux and ranks that share memory");
        }
        Map<String, String> values = new TreeMap<>();
        for (String line : Files.readAllLines(file)) {
            String[] pair = line.split("\\s*:\\s*", 2);
            if (pair.length == 2) {
                values.putIfAbsent(pair[0], pair[1]);
            }
        }
        machine =
                List.of("vendor_id", "cpu family", "model").stream()
                                .map(name -> values.getOrDefault(name, "?"))
                                .collect(Collectors.joining(" "))
                        + ", "
                        + Runtime.getRuntime().availableProcessors()
                        + " processors";
    }

    /** Returns trainings, each with its name. */
    @DataProvider
    public static Object[][] trainings() {
        LossOptions plain = LossOptions.DEFAULT;
        LossOptions smooth = new LossOptions(LossOptions.DEFAULT_IGNORE_INDEX, 0.1f, 0.01f);
        Supplier<Optimizer> adam = () -> Configs.adam(0.01f);
        return new Object[][] {
            {"head, 1 rank", head(tensor(1), 23, plain, FusedTraining::sgd)},
            {"head, 2 ranks", head(tensor(2), 23, plain, FusedTraining::sgd)},
            {"head, 3 ranks", head(tensor(3), 23, plain, FusedTraining::sgd)},
            {"head, mixed", head(mixed(2), 23, plain, FusedTraining::sgd)},
            {"large head, 1 rank", head(tensor(1), 9001, plain, FusedTraining::sgd)},
            {"large head, 2 ranks", head(tensor(2), 9001, plain, FusedTraining::sgd)},
            {"smoothed head, 2 ranks", head(tensor(2), 9001, smooth, FusedTraining::sgd)},
            {"head with Adam, 2 ranks", head(tensor(2), 9001, plain, adam)},
            {"layers, 1 rank", layers(tensor(1))},
            {"layers, 2 ranks", layers(tensor(2))},
            {"layers, 3 ranks", layers(tensor(3))},
        };
    }

    @Test(dataProvider = "trainings", timeOut = 60_000)
    public void theBitsAreThoseRecorded(String name, Supplier<Integer> training) {
        Map<String, Integer> recorded = RECORDED.get(machine);
        int hash = training.get();
        if (recorded == null) {
            throw new SkipException(
                    "Nothing is recorded for \""
                            + machine
                            + "\": {\""
                            + name
                            + "\", "
                            + hash
                            + "}");
        }
        Assert.assertEquals(hash, (int) recorded.getOrDefault(name, 0), name);
    }

    private static Supplier<Integer> head(
            TrainerKind kind, int classes, LossOptions options, Supplier<Optimizer> optimizer) {
        return () -> {
            Block block = FusedTraining.network(head -> head.optFusedLoss(true).setUnits(classes));
            Loss loss = FusedTraining.loss(options);
            FusedTraining run = FusedTraining.run(kind, block, loss, optimizer.get());
            return hash(run.losses, run.weights);
        };
    }

    private static Supplier<Integer> layers(TrainerKind kind) {
        return () -> {
            Block block = sequence(column(67), new LambdaBlock(Activation::gelu), row(5));
            float[] losses = new float[3];
            TrainingRun run =
                    TrainingRun.of(
                            kind,
                            block,
                            Loss.l2Loss(),
                            new Shape(9, 33),
                            (trainer, manager, numbers) -> {
                                for (int step = 0; step < losses.length; step++) {
                                    NDArray data = TrainingRun.random(manager, step, 9, 33);
                                    NDArray labels = TrainingRun.random(manager, 9 + step, 9, 5);
                                    losses[step] = TrainingRun.backward(trainer, data, labels);
                                    trainer.step();
                                }
                            });
            return hash(losses, run.getWeights());
        };
    }

    private static int hash(float[] losses, List<float[]> weights) {
        int hash = Arrays.hashCode(losses);
        for (float[] each : weights) {
            hash = 31 * hash + Arrays.hashCode(each);
        }
        return hash;
    }

    private static TrainerKind tensor(int ranks) {
        return new TrainerKind(ParallelMode.TENSOR, ranks);
    }

    private static TrainerKind mixed(int ranks) {
        return new TrainerKind(ParallelMode.MIXED, ranks);
    }
}

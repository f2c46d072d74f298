package io.djltp.training;

import static io.djltp.testing.Blocks.column;
import static io.djltp.testing.Blocks.gelu;
import static io.djltp.testing.Blocks.row;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.MIXED_2;
import static io.djltp.testing.TrainerKind.TENSOR_1;
import static io.djltp.testing.TrainerKind.TENSOR_2;
import static io.djltp.testing.TrainerKind.TENSOR_3;
import static io.djltp.testing.TrainingRun.random;

import static org.testng.Assert.assertEquals;

import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;

import io.djltp.head.LossOptions;
import io.djltp.testing.ArrayAssert;
import io.djltp.testing.Configs;
import io.djltp.testing.Network;
import io.djltp.testing.TrainerKind;
import io.djltp.testing.TrainingRun;

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
 * among as many threads as there are, so that each kind of machine has hashes of its own; what is
 * not listed is skipped, and the test says what to record.
 *
 * <p>Who changes the order of operations on purpose records new hashes, and says so in the change.
 */
public class Float32BitsTest {

    /**
     * By machine and training, with libtorch 2.7.1. Those of layers on Zen 4 (AVX512) are of the
     * commit before there was any arithmetic of 16 bits. Those of heads are to be recorded since
     * their exponentials are powers of two.
     */
    private static final Map<String, Map<String, Integer>> RECORDED =
            Map.of(
                    "AuthenticAMD 25 17, 2 processors",
                    Map.ofEntries(
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
            {"head, 1 rank", head(TENSOR_1, 23, plain, FusedTraining::sgd)},
            {"head, 2 ranks", head(TENSOR_2, 23, plain, FusedTraining::sgd)},
            {"head, 3 ranks", head(TENSOR_3, 23, plain, FusedTraining::sgd)},
            {"head, mixed", head(MIXED_2, 23, plain, FusedTraining::sgd)},
            {"large head, 1 rank", head(TENSOR_1, 9001, plain, FusedTraining::sgd)},
            {"large head, 2 ranks", head(TENSOR_2, 9001, plain, FusedTraining::sgd)},
            {"smoothed head, 2 ranks", head(TENSOR_2, 9001, smooth, FusedTraining::sgd)},
            {"head with Adam, 2 ranks", head(TENSOR_2, 9001, plain, adam)},
            {"layers, 1 rank", layers(TENSOR_1)},
            {"layers, 2 ranks", layers(TENSOR_2)},
            {"layers, 3 ranks", layers(TENSOR_3)},
        };
    }

    @Test(dataProvider = "trainings", timeOut = 60_000)
    public void theBitsAreThoseRecorded(String name, Supplier<Integer> training) {
        Integer recorded = RECORDED.getOrDefault(machine, Map.of()).get(name);
        int hash = training.get();
        if (recorded == null) {
            throw new SkipException(
                    "Nothing is recorded for \"%s\": {\"%s\", %s}".formatted(machine, name, hash));
        }
        assertEquals(hash, (int) recorded, name);
    }

    private static Supplier<Integer> head(
            TrainerKind kind, int classes, LossOptions options, Supplier<Optimizer> optimizer) {
        return () -> {
            Block block = FusedTraining.fused(head -> head.setUnits(classes));
            Loss loss = FusedTraining.loss(options);
            return hash(FusedTraining.run(kind, block, loss, optimizer.get()));
        };
    }

    private static Supplier<Integer> layers(TrainerKind kind) {
        return () -> {
            Block block = sequence(column(67), gelu(), row(5));
            DefaultTrainingConfig config = Configs.of(Loss.l2Loss(), Configs.sgd(0.1f, 0.5f));
            Network.Batches batches =
                    (manager, step) ->
                            new NDList[] {
                                new NDList(random(manager, step, 9, 33)),
                                new NDList(random(manager, 9 + step, 9, 5))
                            };
            return hash(TrainingRun.of(kind, block, config, batches, 3));
        };
    }

    private static int hash(TrainingRun run) {
        int hash = Arrays.hashCode(ArrayAssert.floats(run.getNumbers()));
        for (float[] each : run.getWeights()) {
            hash = 31 * hash + Arrays.hashCode(each);
        }
        return hash;
    }
}

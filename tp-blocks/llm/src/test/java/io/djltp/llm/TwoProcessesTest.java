package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.NoopTranslator;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.collective.ForkedJvm;
import io.djltp.internal.decode.RankThread;
import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.FreePort;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelPredictor;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;

/**
 * Logits of all architectures and texts of a generator over two processes, each with ranks of its
 * own.
 */
public class TwoProcessesTest {

    private static final long[][] IDS = {{3, 50, 7, 7, 12, 41, 0, 2, 33, 9, 18, 26, 5}};
    private static final List<int[]> PROMPTS = List.of(new int[] {5, 2, 9}, new int[] {101});
    private static final String TEXTS = "texts";
    private static final int LENGTH = 4096; // of a text that fills the cache
    static final int SECONDS = 200;

    /** A process, which writes the logits and ids that it has. */
    public static final class OfFolders {

        private OfFolders() {}

        /** Takes the folder of the models, a file and the number of ranks. */
        public static void main(String[] arguments) throws Exception {
            Path root = Path.of(arguments[0]);
            int ranks = Integer.parseInt(arguments[2]);
            Map<String, Object> results = new LinkedHashMap<>();
            try (Job job = Launcher.join(System.getenv(), ranks, Duration.ofSeconds(SECONDS))) {
                ParallelConfig config =
                        ParallelConfig.builder()
                                .setMode(ParallelMode.TENSOR)
                                .setRanks(ranks)
                                .optJob(job)
                                .build();
                for (String name : ArchitecturesTest.MODELS.keySet()) {
                    results.put(name, logits(root.resolve(name), config));
                }
                results.put(TEXTS, texts(root.resolve(TEXTS), config));
            }
            Files.writeString(Path.of(arguments[1]), new Gson().toJson(results));
        }

        private static float[] logits(Path folder, ParallelConfig config) throws Exception {
            try (LanguageModel model = LanguageModel.load(folder);
                    ParallelPredictor<NDList, NDList> predictor =
                            new ParallelPredictor<>(
                                    model.getModel(), new NoopTranslator(), config);
                    NDArray ids =
                            model.getModel()
                                    .getNDManager()
                                    .create(IDS[0], new Shape(1, IDS[0].length))) {
                return predictor.predict(new NDList(ids)).head().toFloatArray();
            }
        }
    }

    /** Generates 300 tokens after each prompt, the likeliest and sampled ones. */
    private static List<int[]> texts(Path folder, ParallelConfig config) throws Exception {
        List<int[]> texts = new ArrayList<>();
        try (Generator generator =
                Generator.builder().setPath(folder).optConfig(config).optBatch(2).build()) {
            for (float temperature : new float[] {0, 0.8f}) {
                Generation all =
                        generator.generateIds(
                                PROMPTS,
                                GenerationOptions.builder()
                                        .optMaxTokens(300)
                                        .optTemperature(temperature)
                                        .optSeed(5)
                                        .build());
                all.finish();
                for (int i = 0; i < PROMPTS.size(); i++) {
                    texts.add(all.getIds(i));
                }
            }
        }
        return texts;
    }

    /** A process, which writes by how many bytes a generator with a full cache makes it grow. */
    public static final class OfMemory {

        private OfMemory() {}

        /** Takes the folder of the models, a file, the number of ranks and the type of weights. */
        public static void main(String[] arguments) throws Exception {
            Path root = Path.of(arguments[0]);
            int ranks = Integer.parseInt(arguments[2]);
            WeightType type = WeightType.of(arguments[3]);
            try (Job job = Launcher.join(System.getenv(), ranks, Duration.ofSeconds(SECONDS))) {
                ParallelConfig config =
                        ParallelConfig.builder()
                                .setMode(ParallelMode.TENSOR)
                                .setRanks(ranks)
                                .optThreadsPerRank(1)
                                .optJob(job)
                                .build();
                // libraries and buffers of messages are no part of a model
                resident(root.resolve("small"), type, config);
                long before = LlamaCppBench.resident();
                long after = resident(root.resolve("large"), type, config);
                Files.writeString(Path.of(arguments[1]), "" + (after - before));
            }
        }

        private static long resident(Path folder, WeightType type, ParallelConfig config)
                throws Exception {
            try (Generator generator =
                    Generator.builder()
                            .setPath(folder)
                            .optWeights(type)
                            .optMaxLength(LENGTH)
                            .optConfig(config)
                            .build()) {
                int[] prompt = new Random(5).ints(LENGTH - 20, 0, 50).toArray();
                GenerationOptions options = GenerationOptions.builder().optMaxTokens(20).build();
                generator.generateIds(List.of(prompt), options).finish();
                RankThread.giveBackMemory(); // of the products of many rows
                return LlamaCppBench.resident();
            }
        }
    }

    /** A rank takes the memory of its weights, its cache and its buffers. */
    @Test(groups = "sweep", timeOut = 600_000)
    public void testResidentMemoryIsForecast() throws Exception {
        if (!Files.exists(Path.of("/proc/self/statm"))) {
            throw new SkipException("This system has no /proc");
        }
        Path folder = TestFolder.create();
        Path large = folder.resolve("large");
        JsonObject config = RandomFolder.config("llama", LlamaCppBench.SIZES);
        RandomFolder.write(large, config, 3);
        config.addProperty("num_hidden_layers", 1);
        config.addProperty("vocab_size", 100);
        RandomFolder.write(folder.resolve("small"), config, 3);
        List<String> wrong = new ArrayList<>();
        for (WeightType type :
                List.of(WeightType.FLOAT32, WeightType.FLOAT16, WeightType.INT8, WeightType.INT4)) {
            List<GenerationMemory> forecast =
                    GenerationMemory.of(ModelConfig.read(large), type, 2, 1, LENGTH);
            List<String> grown = run(OfMemory.class, folder, 2, "" + type);
            for (int i = 0; i < 2; i++) {
                GenerationMemory of = forecast.get(i);
                long bytes = of.weights() + of.cache() + of.buffers();
                double share = Double.parseDouble(grown.get(i)) / bytes;
                if (Boolean.getBoolean("djltp.figures")) {
                    System.out.printf("%s, rank %d: %.3f of %d%n", type, i, share, bytes);
                }
                // pages that the C library keeps: equal runs differ by 10 MB
                double bound = 0.1 + 12e6 / bytes;
                if (share < 1 - bound || share > 1 + bound) {
                    wrong.add("%s, rank %d: %.3f of %d".formatted(type, i, share, bytes));
                }
            }
        }
        Assert.assertEquals(wrong, List.of());
    }

    @Test(timeOut = 300_000)
    public void testAreThoseOfPyTorchAndOfOneRank() throws Exception {
        Path folder = TestFolder.create();
        Gson gson = new Gson();

        Map<String, double[]> expected =
                Expected.compute(folder, ArchitecturesTest.MODELS, Map.of("ids", IDS));
        GeneratorTest.write(folder.resolve(TEXTS));
        List<int[]> texts = texts(folder.resolve(TEXTS), ParallelConfig.tensor(1));
        for (int ranks : new int[] {2, 4}) {
            for (String text : run(OfFolders.class, folder, ranks)) {
                JsonObject found = gson.fromJson(text, JsonObject.class);
                expected.forEach(
                        (name, logits) ->
                                Expected.check(
                                        gson.fromJson(found.get(name), float[].class),
                                        logits,
                                        1e-5,
                                        name + " on " + ranks + " ranks of 2 processes"));
                Assert.assertEquals(found.get(TEXTS), gson.toJsonTree(texts));
            }
        }
    }

    /** Starts two processes of a program, which take folder, file, ranks and more arguments. */
    static List<Process> start(Class<?> main, Path folder, int ranks, String... arguments)
            throws IOException {
        String port = "" + FreePort.find();
        List<Process> processes = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            List<String> all = new ArrayList<>(List.of("" + folder));
            all.addAll(List.of(folder.resolve("results" + i).toString(), "" + ranks));
            all.addAll(List.of(arguments));
            processes.add(
                    ForkedJvm.withFixedHeap(128)
                            .environment("RANK", "" + i)
                            .environment("WORLD_SIZE", "2")
                            .environment("MASTER_ADDR", "127.0.0.1")
                            .environment("MASTER_PORT", port)
                            .builder(folder.resolve("output" + i), main, all.toArray(String[]::new))
                            .start());
        }
        return processes;
    }

    /** Returns what two processes have written. */
    static List<String> run(Class<?> main, Path folder, int ranks, String... arguments)
            throws IOException, InterruptedException {
        List<Process> processes = start(main, folder, ranks, arguments);
        List<String> results = new ArrayList<>();
        try {
            for (int i = 0; i < 2; i++) {
                boolean ended = processes.get(i).waitFor(SECONDS, TimeUnit.SECONDS);
                String output = Files.readString(folder.resolve("output" + i));
                Assert.assertTrue(ended && processes.get(i).exitValue() == 0, output);
                results.add(Files.readString(folder.resolve("results" + i)));
            }
        } finally {
            processes.forEach(Process::destroyForcibly);
        }
        return results;
    }
}

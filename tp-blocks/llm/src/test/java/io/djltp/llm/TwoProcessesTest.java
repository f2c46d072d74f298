package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.translate.NoopTranslator;
import ai.djl.util.Utils;

import com.google.gson.Gson;
import com.google.gson.JsonObject;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.training.ParallelPredictor;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Logits of two processes, each with ranks of its own, against PyTorch's float64. */
public class TwoProcessesTest {

    private static final long[] IDS = {3, 50, 7, 7, 12, 41, 0, 2, 33, 9, 18};
    private static final int SECONDS = 120;

    /** A process, which writes the logits that it has. */
    public static final class OfFolder {

        private OfFolder() {}

        /** Takes folder, file and the number of ranks. */
        public static void main(String[] arguments) throws Exception {
            int ranks = Integer.parseInt(arguments[2]);
            try (Job job = Launcher.join(System.getenv(), ranks, Duration.ofSeconds(SECONDS));
                    LanguageModel model = LanguageModel.load(Path.of(arguments[0]));
                    ParallelPredictor<NDList, NDList> predictor =
                            new ParallelPredictor<>(
                                    model.getModel(),
                                    new NoopTranslator(),
                                    ParallelConfig.builder()
                                            .setMode(ParallelMode.TENSOR)
                                            .setRanks(ranks)
                                            .optJob(job)
                                            .build());
                    NDArray ids =
                            model.getModel().getNDManager().create(IDS, new Shape(1, IDS.length))) {
                float[] logits = predictor.predict(new NDList(ids)).head().toFloatArray();
                Files.writeString(Path.of(arguments[1]), Arrays.toString(logits));
            }
        }
    }

    @Test(timeOut = 300_000)
    public void testLogitsArePyTorchs() throws Exception {
        Path folder = Files.createTempDirectory("llm");
        try {
            RandomFolder.write(folder, RandomFolder.config("qwen3", ""), 11);
            JsonObject line = new JsonObject();
            line.addProperty("folder", folder.toString());
            line.add("ids", new Gson().toJsonTree(new long[][] {IDS}));
            String result = PyTorch.run("llm/reference.py", List.of(line.toString())).get(0);
            double[] expected = new Gson().fromJson(result, double[].class);
            double largest = Arrays.stream(expected).map(Math::abs).max().orElseThrow();
            for (int ranks : new int[] {2, 4}) {
                for (String text : run(folder, ranks)) {
                    float[] found = new Gson().fromJson(text, float[].class);
                    Assert.assertEquals(found.length, expected.length);
                    for (int i = 0; i < found.length; i++) {
                        Assert.assertEquals(found[i], expected[i], 1e-5 * largest);
                    }
                }
            }
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static List<String> run(Path folder, int ranks)
            throws IOException, InterruptedException {
        String port;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = "" + socket.getLocalPort();
        }
        List<Process> processes = new ArrayList<>();
        List<String> results = new ArrayList<>();
        try {
            for (int i = 0; i < 2; i++) {
                ProcessBuilder builder =
                        new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                "-XX:+UseSerialGC",
                                "-XX:TieredStopAtLevel=1",
                                "-Dai.djl.offline=true",
                                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                                "-cp",
                                System.getProperty("java.class.path"),
                                OfFolder.class.getName(),
                                folder.toString(),
                                folder.resolve("logits" + i).toString(),
                                "" + ranks);
                Map<String, String> job =
                        Map.of(
                                "RANK",
                                "" + i,
                                "WORLD_SIZE",
                                "2",
                                "MASTER_ADDR",
                                "127.0.0.1",
                                "MASTER_PORT",
                                port);
                builder.environment().putAll(job);
                builder.redirectErrorStream(true);
                builder.redirectOutput(folder.resolve("output" + i).toFile());
                processes.add(builder.start());
            }
            for (int i = 0; i < 2; i++) {
                boolean ended = processes.get(i).waitFor(SECONDS, TimeUnit.SECONDS);
                String output = Files.readString(folder.resolve("output" + i));
                Assert.assertTrue(ended && processes.get(i).exitValue() == 0, output);
                results.add(Files.readString(folder.resolve("logits" + i)));
            }
        } finally {
            processes.forEach(Process::destroyForcibly);
        }
        return results;
    }
}

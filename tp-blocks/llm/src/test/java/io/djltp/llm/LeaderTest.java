package io.djltp.llm;

import com.google.gson.Gson;

import io.djltp.job.Job;
import io.djltp.launch.Launcher;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/** Threads of one process generate, and another process follows. */
public class LeaderTest {

    private static final Duration TIMEOUT = Duration.ofSeconds(10);

    private static final int[][] PROMPTS = {
        {5, 2, 9}, {1}, {7, 7, 30, 31, 40, 8}, {3, 50}, longer(4), longer(6), longer(4)
    };

    /** Returns a prompt whose first tokens are computed once. */
    private static int[] longer(int last) {
        return IntStream.range(0, 30).map(i -> i == 29 ? last : 9 + i).toArray();
    }

    /** A process that leads, or follows; the first writes what its threads generate. */
    public static final class OfGenerator {

        private OfGenerator() {}

        /** Takes folder, file, the number of ranks, and how many tokens a text has. */
        public static void main(String[] arguments) throws Exception {
            int ranks = Integer.parseInt(arguments[2]);
            int tokens = Integer.parseInt(arguments[3]);
            Path file = Path.of(arguments[1]);
            try (Job job =
                            Launcher.join(
                                    System.getenv(),
                                    ranks,
                                    Duration.ofSeconds(TwoProcessesTest.SECONDS));
                    Generator generator =
                            Generator.builder()
                                    .setPath(Path.of(arguments[0]))
                                    .optBatch(3)
                                    .optLeader(true)
                                    .optConfig(
                                            ParallelConfig.builder()
                                                    .setMode(ParallelMode.TENSOR)
                                                    .setRanks(ranks)
                                                    .optJob(job)
                                                    .optTimeout(TIMEOUT)
                                                    .build())
                                    .build()) {
                if (job.getProcess() > 0) {
                    Refusals.throwsState(
                            () -> generator.generateIds(List.of(PROMPTS[0]), options(tokens)));
                    generator.follow();
                    Files.writeString(file, "\"followed\"");
                    return;
                }
                Refusals.throwsState(generator::follow);
                List<String> texts = generate(generator, tokens, file);
                Files.writeString(file, new Gson().toJson(texts));
                Thread.sleep(TIMEOUT.plusSeconds(2).toMillis()); // an idle server
                Assert.assertEquals(generate(generator, tokens, file), texts);
            }
        }
    }

    private static GenerationOptions options(int tokens) {
        return GenerationOptions.builder()
                .optMaxTokens(tokens)
                .optTemperature(0.8f)
                .optTopP(0.95f)
                .optSeed(-5_000_000_000L)
                .optRepetitionPenalty(1.1f)
                .build();
    }

    /** Returns what threads generate, each from its prompt, or the errors that they get. */
    private static List<String> generate(Generator generator, int tokens, Path file)
            throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        try {
            List<Future<String>> all = new ArrayList<>();
            for (int[] prompt : PROMPTS) {
                all.add(
                        threads.submit(
                                () -> {
                                    Generation text =
                                            generator.generateIds(List.of(prompt), options(tokens));
                                    try {
                                        text.next();
                                        Files.write(Path.of(file + "-begun"), new byte[1]);
                                        text.finish();
                                    } catch (RankFailedException e) {
                                        return e.getMessage();
                                    }
                                    return Arrays.toString(text.getIds(0));
                                }));
            }
            List<String> texts = new ArrayList<>();
            for (Future<String> each : all) {
                texts.add(each.get());
            }
            return texts;
        } finally {
            threads.shutdown();
        }
    }

    @Test(timeOut = 300_000)
    public void oneProcessLeadsTheOther() throws Exception {
        Path folder = TestFolder.create();
        RandomFolder.write(
                folder, RandomFolder.config("llama", "'max_position_embeddings': 2000"), 3);
        List<String> expected;
        try (Generator generator = Generator.builder().setPath(folder).build()) {
            expected = generate(generator, 300, folder.resolve("alone"));
        }
        List<String> results = TwoProcessesTest.run(OfGenerator.class, folder, 2, "300");
        Assert.assertEquals(new Gson().fromJson(results.get(0), List.class), expected);
        Assert.assertEquals(results.get(1), "\"followed\"");
    }

    /** The threads of the leader get an error each when the process that follows is killed. */
    @Test(timeOut = 300_000)
    public void aKilledProcessEndsAll() throws Exception {
        Path folder = TestFolder.create();
        RandomFolder.write(
                folder, RandomFolder.config("llama", "'max_position_embeddings': 2000"), 3);
        List<Process> processes = TwoProcessesTest.start(OfGenerator.class, folder, 2, "2000");
        try {
            while (!Files.exists(folder.resolve("results0-begun"))) {
                Thread.sleep(10);
            }
            processes.get(1).destroyForcibly();
            Assert.assertTrue(processes.get(0).waitFor(TwoProcessesTest.SECONDS, TimeUnit.SECONDS));
            String[] errors =
                    new Gson()
                            .fromJson(Files.readString(folder.resolve("results0")), String[].class);
            Assert.assertEquals(errors.length, PROMPTS.length);
            for (String error : errors) {
                Assert.assertTrue(error.contains("process 1"), error);
            }
        } finally {
            processes.forEach(Process::destroyForcibly);
        }
    }
}

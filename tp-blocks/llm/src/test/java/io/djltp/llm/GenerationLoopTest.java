package io.djltp.llm;

import io.djltp.rank.RankFailedException;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/** Generations of several threads, which share the steps. */
public class GenerationLoopTest {

    private static final int THREADS = 8;
    private static final int TOKENS = 40;

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final Path folder = TestFolder.create();
    private LanguageModel model;
    private final List<int[]> prompts = new ArrayList<>();
    private final List<GenerationOptions> options = new ArrayList<>();
    private final List<int[]> alone = new ArrayList<>(); // what each gets

    @BeforeClass
    public void write() throws Exception {
        model = model(folder);
        Random random = new Random(4);
        try (Generator generator = generator(2, 1)) {
            for (int i = 0; i < 12; i++) {
                prompts.add(random.ints(1 + 5L * i * i / 2, 0, 256).toArray());
                GenerationOptions.Builder builder =
                        GenerationOptions.builder().optMaxTokens(TOKENS).optSeed(i);
                builder.optTemperature(i % 3).optTopK(i % 2 * 20);
                builder.optRepetitionPenalty(i % 4 == 0 ? 1.2f : 1);
                options.add(builder.build());
                alone.add(ids(generator, i));
            }
        }
    }

    private static LanguageModel model(Path folder) throws Exception {
        RandomFolder.writeDecoder(folder, "'max_position_embeddings': 4000, 'eos_token_id': 262");
        return LanguageModel.load(folder);
    }

    @AfterClass(alwaysRun = true)
    public void close() {
        threads.shutdownNow();
        model.close();
    }

    private Generator generator(int ranks, int batch) throws Exception {
        return GeneratorTest.generator(model, ranks, batch);
    }

    private Generation begin(Generator generator, int i) {
        return generator.generateIds(List.of(prompts.get(i)), options.get(i));
    }

    private int[] ids(Generator generator, int i) {
        Generation text = begin(generator, i);
        text.finish();
        return text.getIds(0);
    }

    private <T> List<Future<T>> submit(int count, Callable<T> task) {
        List<Future<T>> futures = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            futures.add(threads.submit(task));
        }
        return futures;
    }

    /** Waits until so many texts wait or run. */
    private static void await(Generator generator, int texts) throws InterruptedException {
        while (generator.getRunning() + generator.getWaiting() != texts) {
            Thread.sleep(1);
        }
    }

    @DataProvider
    public static Object[][] batches() {
        return new Object[][] {{1, 8}, {2, 3}, {3, 1}};
    }

    /** Threads join at any time, and leave at the end or before. */
    @Test(dataProvider = "batches", timeOut = 120_000)
    public void eachThreadGetsItsTokens(int ranks, int batch) throws Exception {
        try (Generator generator = generator(ranks, batch)) {
            List<Future<Integer>> all = new ArrayList<>();
            for (int thread = 0; thread < THREADS; thread++) {
                Random random = new Random(thread);
                all.add(
                        threads.submit(
                                () -> {
                                    int tokens = 0;
                                    for (int i = 0; i < 6; i++) {
                                        tokens += generate(generator, random);
                                    }
                                    return tokens;
                                }));
            }
            for (Future<Integer> each : all) {
                Assert.assertTrue(each.get() > 2 * TOKENS);
            }
            Assert.assertEquals(generator.getRunning(), 0);
            Assert.assertEquals(generator.getWaiting(), 0);
        }
    }

    private int generate(Generator generator, Random random) throws InterruptedException {
        Thread.sleep(random.nextInt(3));
        int i = random.nextInt(prompts.size());
        int most = random.nextBoolean() ? TOKENS : random.nextInt(TOKENS);
        int[] found = new int[most];
        try (Generation text = begin(generator, i)) {
            for (int j = 0; j < most; j++) {
                found[j] = text.next().id();
            }
            Assert.assertEquals(text.hasNext(), most < TOKENS);
        }
        Assert.assertEquals(found, Arrays.copyOf(alone.get(i), most), "prompt " + i);
        return most;
    }

    /** A prompt's copies are drawn independently, the first as if it were alone. */
    @Test(timeOut = 120_000)
    public void samplesDiffer() throws Exception {
        List<int[]> samples = new ArrayList<>();
        List<int[]> four = new ArrayList<>(Collections.nCopies(3, prompts.get(1)));
        four.add(1, prompts.get(2));
        for (int ranks = 1; ranks <= 3; ranks++) {
            try (Generator generator = generator(ranks, 1 + ranks)) {
                Generation text = generator.generateIds(four, options.get(1));
                text.finish();
                for (int i = 0; i < 4; i++) {
                    if (ranks == 1) {
                        samples.add(text.getIds(i));
                    }
                    Assert.assertEquals(text.getIds(i), samples.get(i));
                }
            }
        }
        Assert.assertEquals(samples.get(0), alone.get(1));
        Assert.assertEquals(samples.stream().map(Arrays::toString).distinct().count(), 4);
    }

    /**
     * Prompts that begin alike are computed once up to where they differ, though all come at once.
     */
    @Test(dataProvider = "batches", timeOut = 120_000)
    public void whatPromptsShareIsComputedOnce(int ranks, int batch) throws Exception {
        int[] first = new Random(8).ints(330, 0, 256).toArray(); // more than a step
        List<int[]> all = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            int[] other = Arrays.copyOf(first, 330 - 4 * i);
            other[other.length - 1] = i;
            other[310] = i < 3 ? first[310] : 7; // the last two have more in common
            all.add(other);
        }
        all.add(all.get(1));
        all.add(new Random(9).ints(40, 0, 256).toArray());
        GenerationOptions few = options.get(1).toBuilder().optMaxTokens(9).build();
        try (Generator generator = generator(ranks, batch);
                Generator fresh = generator(ranks, 1)) {
            List<Generation> texts = new ArrayList<>();
            all.forEach(prompt -> texts.add(generator.generateIds(List.of(prompt), few)));
            int computed = 0;
            int reused = 0;
            for (int i = texts.size() - 1; i >= 0; i--) {
                texts.get(i).finish();
                computed += texts.get(i).getPrefillTokens();
                reused += texts.get(i).getReusedTokens();
                Generation alone = fresh.generateIds(List.of(all.get(i)), few);
                alone.finish();
                Assert.assertEquals(texts.get(i).getIds(0), alone.getIds(0), "text " + i);
            }
            int given = all.stream().mapToInt(ids -> ids.length).sum();
            Assert.assertEquals(computed + reused, given);
            Assert.assertTrue(computed < 330 + 5 * 25 + 40, computed + " of " + given);
        }
    }

    /** Who waits for what a text has in common with it goes on alone if that one is closed. */
    @Test(timeOut = 120_000)
    public void aSourceCanBeClosed() throws Exception {
        int[] prompt = new Random(8).ints(380, 0, 256).toArray();
        GenerationOptions few = options.get(1).toBuilder().optMaxTokens(9).build();
        try (Generator generator = generator(2, 3)) {
            Generation first = begin(generator, 3);
            Generation source = generator.generateIds(List.of(prompt), few);
            Generation other = generator.generateIds(List.of(prompt), few);
            first.next(); // a step of two for the prompt
            source.close();
            other.finish();
            Assert.assertEquals(other.getPrefillTokens(), 380);
            Generation again = generator.generateIds(List.of(prompt), few);
            again.finish();
            Assert.assertEquals(again.getIds(0), other.getIds(0));
            Assert.assertEquals(again.getReusedTokens(), 379);
            first.finish();
            Assert.assertEquals(first.getIds(0), alone.get(3));
        }
    }

    /** While a long prompt is computed, others get a token with each of its parts. */
    @Test(timeOut = 120_000)
    public void aLongPromptStopsNoOther() throws Exception {
        try (Generator generator = generator(2, 2)) {
            Generation first = begin(generator, 3);
            first.next();
            int[] prompt = new Random(1).ints(300, 0, 256).toArray();
            Generation other = generator.generateIds(List.of(prompt), options.get(0));
            other.next(); // 255 rows, then 45
            Assert.assertEquals(first.getDecodeTokens(), 2);
            Assert.assertEquals(other.getPrefillTokens(), 300);
            first.finish();
            Assert.assertEquals(first.getIds(0), alone.get(3));
        }
    }

    /** What nobody reads is computed by who waits for the place. */
    @Test(timeOut = 120_000)
    public void anAbandonedGenerationEnds() throws Exception {
        try (Generator generator = generator(1, 1)) {
            Generation abandoned = begin(generator, 5);
            Assert.assertEquals(generator.getWaiting(), 1);
            Assert.assertEquals(ids(generator, 4), alone.get(4));
            Assert.assertEquals(abandoned.getIds(0), alone.get(5));
            Assert.assertTrue(abandoned.hasNext());
            abandoned.close();
            Assert.assertFalse(abandoned.hasNext());
            Assert.expectThrows(CancellationException.class, abandoned::next);
        }
    }

    @DataProvider
    public static Object[][] ends() {
        return new Object[][] {
            {true, "Interrupted while waiting for a token. .*, true"},
            {false, "The generation was closed, false"},
        };
    }

    /** A thread that waits for the place of another text is interrupted, or its text closed. */
    @Test(dataProvider = "ends", timeOut = 120_000)
    public void aWaitingThreadCanBeStopped(boolean interrupt, String expected) throws Exception {
        try (Generator generator = generator(1, 1)) {
            GenerationOptions many = GenerationOptions.builder().optMaxTokens(3990).build();
            Generation busy = generator.generateIds(List.of(prompts.get(0)), many);
            Generation other = begin(generator, 6);
            FutureTask<String> waits =
                    new FutureTask<>(
                            () -> {
                                IllegalStateException e =
                                        Assert.expectThrows(
                                                IllegalStateException.class, other::next);
                                return e.getMessage() + ", " + Thread.interrupted();
                            });
            Thread thread = new Thread(waits);
            thread.start();
            busy.next();
            if (interrupt) {
                thread.interrupt();
            } else {
                other.close();
            }
            Assert.assertTrue(waits.get().matches(expected), waits.get());
            Assert.assertEquals(generator.getRunning(), 1); // the other text goes on
            busy.close();
            if (interrupt) {
                other.finish();
                Assert.assertEquals(other.getIds(0), alone.get(6));
            }
            Assert.assertEquals(generator.getRunning() + generator.getWaiting(), 0);
        }
    }

    /** Without the rows of its embedding, a rank fails: each thread gets that, and none waits. */
    @Test(timeOut = 120_000)
    public void aFailureReachesAll() throws Exception {
        Path own = folder.resolve("lost");
        try (LanguageModel lost = model(own);
                Generator generator = GeneratorTest.generator(lost, 2, 3)) {
            List<Future<String>> all =
                    submit(
                            THREADS,
                            () -> {
                                while (true) {
                                    ids(generator, 2);
                                }
                            });
            await(generator, THREADS);
            Files.write(own.resolve("model.safetensors"), new byte[8]);
            List<Throwable> errors = new ArrayList<>();
            for (Future<String> each : all) {
                Throwable error =
                        Assert.expectThrows(ExecutionException.class, each::get).getCause();
                Assert.assertTrue(error instanceof RankFailedException, "" + error);
                Assert.assertTrue(error.getMessage().contains("the file ends at"), "" + error);
                Assert.assertFalse(errors.contains(error));
                errors.add(error);
            }
            Assert.expectThrows(RankFailedException.class, () -> begin(generator, 1));
        }
    }

    @Test(timeOut = 120_000)
    public void closingEndsAll() throws Exception {
        Generator generator = generator(2, 3);
        List<Future<String>> all =
                submit(
                        THREADS,
                        () -> {
                            while (true) {
                                ids(generator, 2);
                            }
                        });
        await(generator, THREADS);
        generator.close();
        for (Future<String> each : all) {
            Throwable error = Assert.expectThrows(ExecutionException.class, each::get).getCause();
            Assert.assertEquals(error.getMessage(), "The generator is closed");
        }
    }

    @Test(timeOut = 120_000)
    public void nothingIsKept() throws Exception {
        try (Generator generator = generator(2, 3)) {
            long[] before = {};
            for (int round = 0; round < 12; round++) {
                if (round == 2) { // what is compiled and allocated once, is
                    before = memory();
                }
                for (Future<?> each : submit(THREADS, () -> manyShort(generator))) {
                    each.get();
                }
            }
            long[] after = memory();
            Assert.assertTrue(after[0] - before[0] < 1 << 19, "heap " + Arrays.toString(after));
            Assert.assertTrue(after[1] - before[1] < 20 << 20, "RSS " + Arrays.toString(after));
        }
    }

    private int manyShort(Generator generator) {
        for (int i = 0; i < 13; i++) { // with 8 threads and 10 rounds 1,040
            Generation text = begin(generator, i % 6);
            text.next();
            text.next();
            text.close();
        }
        return 0;
    }

    /** Returns the bytes that are used of the heap, and those of the process. */
    private static long[] memory() throws Exception {
        Runtime runtime = Runtime.getRuntime();
        for (int i = 0; i < 3; i++) {
            System.gc();
            TimeUnit.MILLISECONDS.sleep(50);
        }
        String line =
                Files.readAllLines(Path.of("/proc/self/status")).stream()
                        .filter(each -> each.startsWith("RssAnon"))
                        .findFirst()
                        .orElseThrow();
        long kilobytes = Long.parseLong(line.replaceAll("\\D", ""));
        return new long[] {runtime.totalMemory() - runtime.freeMemory(), kilobytes * 1024};
    }
}

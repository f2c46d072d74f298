package io.djltp.llm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;

import io.djltp.llm.GeneratedToken.FinishReason;
import io.djltp.llm.GeneratedToken.LogProbability;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.RankFailedException;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;

public class GeneratorTest {

    private static final int TOKENS = 300;
    private static final int VOCABULARY = 263;

    private final Path folder = TestFolder.create();
    private LanguageModel model;
    private int[][] prompts;

    @BeforeClass
    public void load() throws Exception {
        write(folder);
        model = LanguageModel.load(folder);
        model.readWhole();
        Random random = new Random(2);
        prompts = new int[8][];
        Arrays.setAll(prompts, i -> random.ints(3 + 7L * i, 0, 256).toArray());
    }

    /** Writes a model of random weights, with a tokenizer. */
    static void write(Path folder) throws IOException {
        String tied = "'eos_token_id': 262, 'tie_word_embeddings': true";
        RandomFolder.writeDecoder(folder, "'max_position_embeddings': 400, " + tied);
    }

    @AfterClass(alwaysRun = true)
    public void close() {
        model.close();
    }

    @DataProvider
    public static Object[][] choices() {
        return new Object[][] {
            {options().build()},
            {options().optTemperature(0.8f).optSeed(5).build()},
            {options().optTemperature(1.3f).optTopK(7).optSeed(-9).build()},
            {options().optTemperature(1.1f).optTopP(0.7f).optSeed(1).build()},
            {options().optTemperature(2f).optTopP(0.999f).optSeed(2).build()}, // beyond 64 tokens
            {options().optTemperature(1.5f).optMinP(0.1f).optSeed(3).build()},
            {
                options()
                        .optTemperature(1.2f)
                        .optTopK(40)
                        .optTopP(0.9f)
                        .optMinP(0.05f)
                        .optRepetitionPenalty(1.3f)
                        .optSeed(4)
                        .build()
            },
            {options().optRepetitionPenalty(1.2f).build()},
        };
    }

    private static GenerationOptions.Builder options() {
        return GenerationOptions.builder().optMaxTokens(TOKENS);
    }

    private Generator generator(int ranks, int batch) throws Exception {
        return generator(model, ranks, batch);
    }

    /** Returns a generator of a few texts at once. */
    static Generator generator(LanguageModel model, int ranks, int batch) throws Exception {
        return Generator.builder()
                .setModel(model)
                .optConfig(ParallelConfig.tensor(ranks))
                .optBatch(batch)
                .build();
    }

    /** 1 to 4 ranks with a cache generate what the whole network does without. */
    @Test(dataProvider = "choices", timeOut = 300_000)
    public void ranksGenerateTheSame(GenerationOptions options) throws Exception {
        int[] expected = withoutCache(prompts[1], options, TOKENS);
        for (int ranks = 1; ranks <= 4; ranks++) {
            try (Generator generator = generator(ranks, 1)) {
                Generation text = generator.generateIds(List.of(prompts[1]), options);
                text.finish();
                int[] ids = text.getIds(0);
                Assert.assertEquals(ids.length, TOKENS);
                Assert.assertEquals(ids, expected, ranks + " ranks");
                Assert.assertEquals(text.getFinishReason(0), FinishReason.LENGTH);
                if (!options.isGreedy()) {
                    Assert.assertTrue(Arrays.stream(ids).distinct().count() > 10);
                }
            }
        }
    }

    /** By softmax of float64 over the logits of the whole text, and sorting. */
    private int[] withoutCache(int[] prompt, GenerationOptions options, int tokens) {
        int[] ids = prompt.clone();
        for (int i = 0; i < tokens; i++) {
            float[] logits = logits(ids);
            ids = Arrays.copyOf(ids, ids.length + 1);
            ids[ids.length - 1] = choose(logits, Arrays.copyOf(ids, ids.length - 1), options, i);
        }
        return Arrays.copyOfRange(ids, prompt.length, ids.length);
    }

    private float[] logits(int[] ids) {
        try (NDManager manager = model.getModel().getNDManager().newSubManager()) {
            NDArray input = manager.create(ids).toType(DataType.INT64, false).expandDims(0);
            return RandomFolder.outputs(model, input).get("0, -1").toFloatArray();
        }
    }

    private static int choose(float[] logits, int[] context, GenerationOptions options, int i) {
        double[] values = new double[logits.length];
        Set<Integer> seen = new HashSet<>(Arrays.stream(context).boxed().toList());
        for (int id = 0; id < values.length; id++) {
            float penalty = seen.contains(id) ? options.getRepetitionPenalty() : 1;
            values[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
        }
        List<Integer> order = new ArrayList<>(IntStream.range(0, values.length).boxed().toList());
        order.sort(Comparator.comparingDouble(id -> -values[id]));
        if (options.getTemperature() == 0) {
            return order.get(0);
        }
        if (options.getTopK() > 0) {
            order = order.subList(0, options.getTopK());
        }
        double best = values[order.get(0)];
        double[] weights = new double[values.length];
        double all = 0;
        for (int id : order) {
            weights[id] = Math.exp((values[id] - best) / options.getTemperature());
            all += weights[id];
        }
        List<Integer> kept = new ArrayList<>();
        double sum = 0;
        for (int id : order) {
            if (sum < options.getTopP() * all && weights[id] >= options.getMinP()) {
                kept.add(id);
            }
            sum += weights[id];
        }
        long key = TokenSampler.key(options.getSeed(), 0, i);
        kept.sort(
                Comparator.comparingDouble(
                        id ->
                                -values[id] / options.getTemperature()
                                        - TokenSampler.noise(key, id)));
        return kept.get(0);
    }

    /** Texts of a batch, of different lengths, are those of each prompt alone. */
    @Test(timeOut = 300_000)
    public void aBatchIsWhatEachIsAlone() throws Exception {
        GenerationOptions.Builder few = options().optMaxTokens(50);
        for (GenerationOptions options :
                List.of(few.build(), few.optTemperature(0.9f).optSeed(3).build())) {
            List<int[]> alone = new ArrayList<>();
            try (Generator generator = generator(1, 1)) {
                for (int[] prompt : prompts) {
                    Generation text = generator.generateIds(List.of(prompt), options);
                    text.finish();
                    alone.add(text.getIds(0));
                }
            }
            for (int ranks = 1; ranks <= 4; ranks++) {
                int batch = ranks == 2 ? 3 : 8; // with 3 places, others wait
                try (Generator generator = generator(ranks, batch)) {
                    Generation texts = generator.generateIds(List.of(prompts), options);
                    texts.finish();
                    for (int i = 0; i < prompts.length; i++) {
                        Assert.assertEquals(texts.getIds(i), alone.get(i), "text " + i);
                        Assert.assertEquals(texts.getPromptIds(i), prompts[i]);
                    }
                }
            }
        }
    }

    /** Probabilities are those of the softmax over all ids, whatever is chosen by them. */
    @Test(dataProvider = "choices", timeOut = 120_000)
    public void probabilitiesAreThoseOfTheModel(GenerationOptions options) throws Exception {
        GenerationOptions four = options.toBuilder().optMaxTokens(5).optLogProbabilities(4).build();
        for (int ranks = 1; ranks <= 3; ranks++) {
            try (Generator generator = generator(ranks, 1)) {
                Generation text = generator.generateIds(List.of(prompts[2]), four);
                int[] ids = prompts[2];
                while (text.hasNext()) {
                    GeneratedToken token = text.next();
                    float[] logits = logits(ids);
                    double all =
                            IntStream.range(0, VOCABULARY)
                                    .mapToDouble(id -> Math.exp(logits[id]))
                                    .sum();
                    Integer[] best = IntStream.range(0, VOCABULARY).boxed().toArray(Integer[]::new);
                    Arrays.sort(best, Comparator.comparing(id -> -logits[id]));
                    Assert.assertEquals(token.logProbabilities().size(), 5);
                    for (int i = 0; i < 5; i++) {
                        LogProbability each = token.logProbabilities().get(i);
                        int id = i == 0 ? token.id() : best[i - 1];
                        Assert.assertEquals(each.id(), id);
                        Assert.assertEquals(each.value(), logits[id] - Math.log(all), 1e-4);
                    }
                    ids = Arrays.copyOf(ids, ids.length + 1);
                    ids[ids.length - 1] = token.id();
                }
            }
        }
    }

    /** A prompt that begins like the text before is computed from where it differs. */
    @Test(timeOut = 120_000)
    public void aPrefixIsUsedAgain() throws Exception {
        GenerationOptions options = GenerationOptions.builder().optMaxTokens(20).build();
        try (Generator generator = generator(2, 1);
                Generator fresh = generator(2, 1)) {
            Generation first = generator.generateIds(List.of(prompts[5]), options);
            first.finish();
            Assert.assertEquals(first.getPrefillTokens(), prompts[5].length);
            int[] longer = Arrays.copyOf(prompts[5], prompts[5].length + 12);
            System.arraycopy(first.getIds(0), 0, longer, prompts[5].length, 10);
            Generation second = generator.generateIds(List.of(longer), options);
            second.finish();
            Assert.assertEquals(second.getPrefillTokens(), 2);
            Generation other = fresh.generateIds(List.of(longer), options);
            other.finish();
            Assert.assertEquals(second.getIds(0), other.getIds(0));
            int[] same = prompts[5].clone();
            Generation third = generator.generateIds(List.of(same), options);
            third.finish();
            Assert.assertEquals(third.getIds(0), first.getIds(0));
        }
    }

    @DataProvider
    public static Object[][] scalings() {
        return new Object[][] {
            {
                "llama",
                "'max_position_embeddings': 20, 'rope_scaling': {'type': 'dynamic', 'factor': 2}"
            },
            {
                "phi3",
                "'max_position_embeddings': 40, 'original_max_position_embeddings': 20,"
                        + " 'rope_scaling': {'type': 'longrope',"
                        + " 'short_factor': [1, 1.1, 1.2], 'long_factor': [1, 2, 4]}"
            },
        };
    }

    /** Beyond the original length the angles of all positions are others, for each text its own. */
    @Test(dataProvider = "scalings", timeOut = 120_000)
    public void scaledPositionsAreThoseOfTheWholeText(String modelType, String fields)
            throws Exception {
        Path own = folder.resolve("scaled " + modelType);
        RandomFolder.write(own, RandomFolder.config(modelType, fields), 3);
        GenerationOptions options = GenerationOptions.builder().optMaxTokens(12).build();
        try (LanguageModel scaled = LanguageModel.load(own);
                Generator generator = generator(scaled, 2, 2)) {
            int[] longer = new Random(4).ints(22, 0, 53).toArray();
            int[] begin = Arrays.copyOf(longer, 17); // of which the longer text has other keys
            Generation texts = generator.generateIds(List.of(begin, longer), options);
            texts.finish();
            for (int text = 0; text < 2; text++) {
                int[] prompt = texts.getPromptIds(text);
                int[] all = Arrays.copyOf(prompt, prompt.length + 12);
                System.arraycopy(texts.getIds(text), 0, all, prompt.length, 12);
                for (int i = prompt.length; i < all.length; i++) {
                    float[] logits = generator.getLogits(Arrays.copyOf(all, i));
                    int best = 0;
                    for (int id = 0; id < logits.length; id++) {
                        best = logits[id] > logits[best] ? id : best;
                    }
                    Assert.assertEquals(all[i], best, "text " + text + ", token " + i);
                }
            }
        }
    }

    @Test(timeOut = 120_000)
    public void textsStreamAndStop() throws Exception {
        try (Generator generator = generator(2, 2)) {
            Assert.assertEquals(generator.getDefaults().getStopTokens(), List.of(262));
            GenerationOptions.Builder builder = generator.getDefaults().toBuilder();
            Generation all =
                    generator.generate(
                            List.of("hello", "f\u00fcr"), builder.optMaxTokens(40).build());
            StringBuilder[] texts = {new StringBuilder(), new StringBuilder()};
            int[] counts = new int[2];
            while (all.hasNext()) {
                GeneratedToken token = all.next();
                texts[token.prompt()].append(token.text());
                counts[token.prompt()]++;
            }
            for (int i = 0; i < 2; i++) {
                Assert.assertEquals(all.getText(i), texts[i].toString());
                Assert.assertEquals(counts[i], 40);
                Assert.assertEquals(all.getIds(i).length, 40);
            }
            Assert.expectThrows(NoSuchElementException.class, all::next);
            // what comes sixth ends the text
            int sixth = all.getIds(0)[5];
            int at = 0;
            while (all.getIds(0)[at] != sixth) {
                at++;
            }
            GenerationOptions stopping = builder.optStopTokens(List.of(sixth)).build();
            Generation stopped = generator.generate("hello", stopping);
            stopped.finish();
            Assert.assertEquals(stopped.getIds(0), Arrays.copyOf(all.getIds(0), at));
            Assert.assertEquals(stopped.getFinishReason(0), FinishReason.STOP);
            String text = all.getText(0);
            String stop = text.substring(text.length() / 2, text.length() / 2 + 2);
            stopping = builder.optStopTokens(List.of()).optStopStrings(List.of(stop)).build();
            List<String> ended = generator.generate(List.of("hello"), stopping).finish();
            Assert.assertEquals(ended.get(0), text.substring(0, text.indexOf(stop)));
        }
    }

    /** A rank holds its part: together they have the weights once, and the cache. */
    @Test
    public void ranksHoldTheirParts() throws Exception {
        long whole;
        try (Generator generator = generator(1, 2)) {
            whole = generator.getBytes().get(0);
            Assert.assertEquals(generator.getMaxLength(), 400);
        }
        try (Generator generator = generator(3, 2)) {
            long all = generator.getBytes().stream().mapToLong(Long::longValue).sum();
            Assert.assertEquals(generator.getBytes().size(), 3);
            Assert.assertEquals(all, whole);
            Assert.assertTrue(generator.getBytes().get(0) < whole * 0.36);
        }
    }

    /** What is forecast from the sizes is what is held, but for biases and norms. */
    @Test(timeOut = 120_000)
    public void memoryIsForecast() throws Exception {
        Path own = folder.resolve("large");
        String fields =
                "'vocab_size': 500, 'hidden_size': 256, 'head_dim': 64, 'intermediate_size': 700,"
                        + " 'max_position_embeddings': 128";
        RandomFolder.write(own, RandomFolder.config("qwen2", fields), 3);
        try (LanguageModel large = LanguageModel.load(own)) {
            for (WeightType type : WeightType.values()) {
                if (type.getKernel().contains("widened")) {
                    continue; // which rounds no sizes up
                }
                for (int ranks = 1; ranks <= 4; ranks += 3) {
                    try (Generator generator =
                            Generator.builder()
                                    .setModel(large)
                                    .optWeights(type)
                                    .optBatch(3)
                                    .optMaxLength(70)
                                    .optConfig(ParallelConfig.tensor(ranks))
                                    .build()) {
                        List<GenerationMemory> expected =
                                GenerationMemory.of(large.getConfig(), type, ranks, 3, 70);
                        for (int i = 0; i < ranks; i++) {
                            long bytes = expected.get(i).weights() + expected.get(i).cache();
                            long held = generator.getBytes().get(i);
                            Assert.assertEquals(held, bytes, 0.02 * bytes, type + ", rank " + i);
                        }
                    }
                }
            }
        }
    }

    /** Rows of the embedding stay in the file: without it, the ranks fail, and none waits. */
    @Test(timeOut = 60_000)
    public void aLostFileEndsTheRanks() throws Exception {
        Path own = folder.resolve("lost");
        RandomFolder.write(own, RandomFolder.config("llama", "'eos_token_id': 3"), 3);
        GenerationOptions options = GenerationOptions.builder().optMaxTokens(20).build();
        try (LanguageModel lost = LanguageModel.load(own);
                Generator generator =
                        Generator.builder()
                                .setModel(lost)
                                .optConfig(ParallelConfig.tensor(2))
                                .build()) {
            Generation text = generator.generateIds(List.of(new int[] {5, 2, 9}), options);
            text.next();
            Files.write(own.resolve("model.safetensors"), new byte[8]);
            Assert.expectThrows(RankFailedException.class, text::finish);
            Assert.expectThrows(
                    RankFailedException.class,
                    () -> generator.generateIds(List.of(new int[] {5}), options).next());
        }
    }

    @Test
    public void wrongInputThrows() throws Exception {
        GenerationOptions options = GenerationOptions.builder().build();
        try (Generator generator = generator(2, 1)) {
            throwsArgument(
                    () -> generator.generateIds(List.of(new int[400]), options),
                    "The prompt has 400 tokens, and the generator has room for 400.*Use a shorter prompt");
            throwsArgument(
                    () -> generator.generateIds(List.of(new int[0]), options),
                    "A prompt has no tokens.*");
            throwsArgument(() -> generator.generateIds(List.of(), options), "There must be .*");
            throwsArgument(
                    () -> generator.generateIds(List.of(new int[] {1, VOCABULARY}), options),
                    "The id 263 of the prompt is none of 263");
            throwsArgument(
                    () ->
                            generator.generateIds(
                                    List.of(new int[] {1}),
                                    options.toBuilder().optStopTokens(List.of(-1)).build()),
                    "The stop token -1 is none of 263 ids");
        }
        Generator closed = generator(1, 1);
        closed.close();
        closed.close();
        Refusals.throwsState(() -> closed.generate("hello", options));
        throwsArgument(() -> generator(7, 1), "7 ranks are more than the 6 query heads.*");
        throwsArgument(
                () -> Generator.builder().setModel(model).optMaxLength(401).build(),
                "The model is made for 400 positions, not for a length of 401.*");
        throwsArgument(
                () -> Generator.builder().setModel(model).optBatch(100_000_000).build(),
                "The model needs .* GB for float32 weights .*");
        throwsArgument(() -> Generator.builder().build(), "A Generator needs setPath or .*");
        throwsArgument(
                () -> Generator.builder().setModel(model).optConfig(ParallelConfig.data(2)).build(),
                "A model is cut over all ranks, and there are none for DATA mode.*");
        throwsArgument(() -> WeightType.of("int3"), "The type of weights must be one of.*");
        GenerationOptions.Builder builder = GenerationOptions.builder();
        throwsArgument(() -> builder.optMaxTokens(0), ".*1 or more, not 0");
        throwsArgument(() -> builder.optTemperature(-1), ".*0 or more, not -1.0");
        throwsArgument(() -> builder.optTemperature(Float.NaN), ".*not NaN");
        throwsArgument(() -> builder.optTopK(-1), ".*not -1");
        throwsArgument(() -> builder.optTopP(0), ".*not 0.0");
        throwsArgument(() -> builder.optMinP(2), ".*not 2.0");
        throwsArgument(() -> builder.optRepetitionPenalty(0), ".*not 0.0");
        throwsArgument(() -> builder.optLogProbabilities(-2), ".*not -2");
        throwsArgument(() -> builder.optStopStrings(List.of("")), "A stop string .*");
    }

    private static void throwsArgument(Assert.ThrowingRunnable call, String message) {
        IllegalArgumentException e = Assert.expectThrows(IllegalArgumentException.class, call);
        Assert.assertTrue(e.getMessage().matches(message), e.getMessage());
    }
}

package io.djltp.llm;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.nlp.generate.CausalLMOutput;
import ai.djl.modality.nlp.generate.SearchConfig;
import ai.djl.modality.nlp.generate.TextGenerator;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.AbstractBlock;
import ai.djl.nn.Block;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.ParameterStore;
import ai.djl.translate.NoBatchifyTranslator;
import ai.djl.translate.TranslatorContext;
import ai.djl.util.PairList;

import com.sun.management.ThreadMXBean;

import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.lang.management.ManagementFactory;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** DJL's TextGenerator over ranks gives what it gives over the whole network without a cache. */
public class TextGeneratorTest {

    private static final int IDS = 53;
    private static final int LENGTH = 24;
    private static final int BEAMS = 3;
    private static final int PAD = 99; // which is no id of the model
    private static final int[][] PROMPTS = {{3, 1, 4, 1, 5, 9, 2}, {6, 5}, {35, 8, 9, 7, 9}};

    private final Path folder = TestFolder.create();

    @BeforeClass
    public void write() throws Exception {
        for (String type : new String[] {"llama", "gpt2", "qwen2"}) {
            RandomFolder.write(folder.resolve(type), RandomFolder.config(type, ""), 11);
        }
    }

    /** The network, whose past is the ids, and which computes each text anew. */
    private static final class Serial extends AbstractBlock {

        private final Block network;

        Serial(LanguageModel model) {
            super((byte) 1);
            model.readWhole();
            network = model.getModel().getBlock();
        }

        /** Returns logits and features of a text, [T, ids] and [T, width]. */
        NDList compute(NDArray ids) {
            ParameterStore store = new ParameterStore(ids.getManager(), false);
            List<Block> parts = network.getChildren().values();
            NDList x = new NDList(ids.expandDims(0));
            for (Block part : parts.subList(0, parts.size() - 1)) {
                x = part.forward(store, x, false);
            }
            NDList logits = parts.get(parts.size() - 1).forward(store, x, false);
            return new NDList(logits.head().squeeze(0), x.head().squeeze(0));
        }

        @Override
        protected NDList forwardInternal(
                ParameterStore store, NDList inputs, boolean training, PairList<String, Object> p) {
            NDArray ids = inputs.head();
            long texts = ids.getShape().get(0);
            long count = ids.getShape().get(1);
            NDArray all = ids;
            if (inputs.size() > 3) {
                NDArray past = inputs.get(3).toType(DataType.INT64, false);
                all = past.reshape(texts, -1).concat(ids, 1);
            }
            NDList logits = new NDList();
            NDList features = new NDList();
            for (long i = 0; i < texts; i++) {
                long begin = inputs.get(2).get(i).eq(0).sum().getLong();
                NDList text = compute(all.get("{}, {}:", i, begin));
                for (int j = 0; j < 2; j++) {
                    NDArray part = text.get(j);
                    Shape padding = new Shape(begin, part.getShape().get(1));
                    NDArray padded = ids.getManager().zeros(padding).concat(part, 0);
                    (j == 0 ? logits : features).add(padded.get("{}:", -count));
                }
            }
            NDArray past = all.toType(DataType.FLOAT32, false).reshape(texts, 1, -1, 1);
            return new NDList(NDArrays.stack(logits), past, NDArrays.stack(features));
        }

        @Override
        public Shape[] getOutputShapes(Shape[] shapes) {
            throw new UnsupportedOperationException();
        }
    }

    private static final class Translator implements NoBatchifyTranslator<NDList, CausalLMOutput> {

        @Override
        public NDList processInput(TranslatorContext context, NDList input) {
            return input;
        }

        @Override
        public CausalLMOutput processOutput(TranslatorContext context, NDList output) {
            return new CausalLMOutput(
                    output.get(0), output.get(output.size() - 1), output.subNDList(1, 2));
        }
    }

    private static SearchConfig search() {
        SearchConfig config = new SearchConfig();
        config.setMaxSeqLength(LENGTH);
        config.setPadTokenId(PAD);
        config.setBeam(BEAMS);
        config.setSuffixPadding(false);
        return config;
    }

    private static long[][] search(
            Predictor<NDList, CausalLMOutput> predictor, String name, int[][] prompts)
            throws Exception {
        int longest = Arrays.stream(prompts).mapToInt(prompt -> prompt.length).max().orElseThrow();
        long[][] padded = new long[prompts.length][longest];
        for (int i = 0; i < prompts.length; i++) {
            Arrays.fill(padded[i], PAD);
            for (int j = 0; j < prompts[i].length; j++) {
                padded[i][longest - prompts[i].length + j] = prompts[i][j];
            }
        }
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray ids =
                    new TextGenerator(predictor, name, search()).generate(manager.create(padded));
            return IntStream.range(0, (int) ids.getShape().get(0))
                    .mapToObj(i -> ids.get(i).toLongArray())
                    .toArray(long[][]::new);
        }
    }

    @DataProvider
    public static Object[][] models() {
        return new Object[][] {
            {"llama", 1}, {"llama", 2}, {"llama", 3}, {"gpt2", 1}, {"gpt2", 3}, {"qwen2", 2},
        };
    }

    @Test(dataProvider = "models", timeOut = 120_000)
    public void testSearches(String type, int ranks) throws Exception {
        Criteria<NDList, CausalLMOutput> criteria =
                Criteria.builder()
                        .setTypes(NDList.class, CausalLMOutput.class)
                        .optGroupId("io.djltp.llm")
                        .optOption("model_id", folder.resolve(type).toString())
                        .optOption("tensor_parallel_degree", Integer.toString(ranks))
                        .optOption("batch", Integer.toString(2 * ranks))
                        .build();
        try (ZooModel<NDList, CausalLMOutput> model = criteria.loadModel();
                Predictor<NDList, CausalLMOutput> predictor = model.newPredictor();
                LanguageModel whole = LanguageModel.load(folder.resolve(type));
                Model serial = Model.newInstance("serial", "PyTorch")) {
            Serial network = new Serial(whole);
            serial.setBlock(network);
            try (Predictor<NDList, CausalLMOutput> expected =
                    serial.newPredictor(new Translator())) {
                for (String name : new String[] {"greedy", "beam", "contrastive"}) {
                    Assert.assertEquals(
                            search(predictor, name, PROMPTS),
                            search(expected, name, PROMPTS),
                            name);
                }
            }
            checkGreedy(predictor, type, ranks);
            long[][] beams = search(predictor, "beam", PROMPTS);
            for (int i = 0; i < PROMPTS.length; i++) {
                int padding = PROMPTS[0].length - PROMPTS[i].length;
                Set<String> found = new HashSet<>(); // DJL does not sort them
                for (int j = 0; j < BEAMS; j++) {
                    long[] ids = beams[BEAMS * i + j];
                    found.add(Arrays.toString(Arrays.copyOfRange(ids, padding, ids.length)));
                }
                Assert.assertEquals(found, beams(network, PROMPTS[i], LENGTH - padding));
            }
        }
    }

    private void checkGreedy(Predictor<NDList, CausalLMOutput> predictor, String type, int ranks)
            throws Exception {
        long[][] ids = search(predictor, "greedy", PROMPTS);
        try (Generator generator = generator(type, ranks, 3)) {
            int most = LENGTH - PROMPTS[0].length;
            Generation texts =
                    generator.generateIds(
                            List.of(PROMPTS),
                            GenerationOptions.builder().optMaxTokens(most).build());
            texts.finish();
            for (int i = 0; i < PROMPTS.length; i++) {
                long[] found = Arrays.copyOfRange(ids[i], PROMPTS[0].length, LENGTH);
                Assert.assertEquals(found, Arrays.stream(texts.getIds(i)).asLongStream().toArray());
            }
        }
    }

    private Generator generator(String type, int ranks, int batch) throws Exception {
        return Generator.builder()
                .setPath(folder.resolve(type))
                .optConfig(ParallelConfig.tensor(ranks))
                .optBatch(batch)
                .build();
    }

    private record Beam(int[] ids, double logProbability) {}

    /** The likeliest of all next tokens of as many texts, in float64. */
    private static Set<String> beams(Serial network, int[] prompt, int length) {
        List<Beam> beams = List.of(new Beam(prompt, 0));
        while (beams.get(0).ids.length < length) {
            List<Beam> next = new ArrayList<>();
            for (Beam beam : beams) {
                float[] logits;
                try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                    NDArray ids = manager.create(beam.ids).toType(DataType.INT64, false);
                    logits = network.compute(ids).head().get(-1).toFloatArray();
                }
                double sum = 0;
                for (float logit : logits) {
                    sum += Math.exp(logit);
                }
                for (int id = 0; id < IDS; id++) {
                    int[] longer = Arrays.copyOf(beam.ids, beam.ids.length + 1);
                    longer[beam.ids.length] = id;
                    next.add(new Beam(longer, beam.logProbability + logits[id] - Math.log(sum)));
                }
            }
            next.sort(Comparator.comparingDouble(beam -> -beam.logProbability));
            beams = next.subList(0, BEAMS);
        }
        return beams.stream().map(beam -> Arrays.toString(beam.ids)).collect(Collectors.toSet());
    }

    private static NDList inputs(NDManager manager, int begin, int... ids) {
        long[] positions = IntStream.range(begin, begin + ids.length).asLongStream().toArray();
        return new NDList(
                manager.create(ids).toType(DataType.INT64, false).expandDims(0),
                manager.create(positions).expandDims(0),
                manager.ones(new Shape(1, begin + ids.length), DataType.INT64));
    }

    /** Outputs of a text in parts are those of the network. */
    @Test(dataProvider = "models", timeOut = 120_000)
    public void testParts(String type, int ranks) throws Exception {
        try (Generator generator = generator(type, ranks, 1);
                LanguageModel model = LanguageModel.load(folder.resolve(type));
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            int[] ids = IntStream.range(0, 30).map(i -> i * i % IDS).toArray();
            NDList expected = new Serial(model).compute(inputs(manager, 0, ids).head().get(0));
            NDList all = generator.forward(inputs(manager, 0, ids));
            NDList first = generator.forward(inputs(manager, 0, Arrays.copyOf(ids, 11)));
            NDList rest = inputs(manager, 11, Arrays.copyOfRange(ids, 11, 30));
            rest.addAll(first.subNDList(1, first.size() - 1));
            rest = generator.forward(rest);
            int last = all.size() - 1;
            checkClose(all.get(0).get(0), expected.get(0));
            checkClose(all.get(last).get(0), expected.get(1));
            checkClose(first.get(0).concat(rest.get(0), 1), all.get(0));
            for (int i = 1; i < last; i++) {
                checkClose(rest.get(i), all.get(i));
                checkClose(first.get(i), all.get(i).get(":, :, :11"));
            }
        }
    }

    /** The past that a call returned is not read again, as a copy of it is; both give the same. */
    @Test(dataProvider = "models", timeOut = 120_000)
    public void testLastPastIsInTheCache(String type, int ranks) throws Exception {
        try (Generator generator = generator(type, ranks, 2);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            int[] ids = IntStream.range(0, 30).map(i -> i * i % IDS).toArray();
            NDList last = generator.forward(inputs(manager, 0, Arrays.copyOf(ids, 25)));
            NDList copied = new NDList(last);
            long[] read = {Long.MAX_VALUE, Long.MAX_VALUE}; // bytes of the heap, of the least step
            for (int i = 25; i < 30; i++) {
                long before = allocated();
                last = generator.forward(next(inputs(manager, i, ids[i]), last));
                read[0] = Math.min(read[0], allocated() - before);
            }
            for (int i = 25; i < 30; i++) {
                NDList copies = new NDList(copied);
                copies.replaceAll(NDArray::duplicate);
                long before = allocated();
                copied = generator.forward(next(inputs(manager, i, ids[i]), copies));
                read[1] = Math.min(read[1], allocated() - before);
            }
            for (int i = 0; i < last.size(); i++) {
                Assert.assertEquals(last.get(i), copied.get(i));
            }
            long past = 25 * 4 * last.get(1).get("0, :, 0").size() * (last.size() - 2);
            Assert.assertTrue(read[1] - read[0] > past / 2, Arrays.toString(read) + ", " + past);
            // a text takes the place: what was in the cache is read from the array
            GenerationOptions options = GenerationOptions.builder().optMaxTokens(9).build();
            NDList first = generator.forward(inputs(manager, 0, Arrays.copyOf(ids, 25)));
            generator.generateIds(List.of(PROMPTS), options).finish();
            NDList again = generator.forward(next(inputs(manager, 25, ids[25]), first));
            NDList whole = generator.forward(inputs(manager, 0, Arrays.copyOf(ids, 26)));
            checkClose(again.head().get("0, -1"), whole.head().get("0, -1"));
            // two branches of one past
            NDList branch = generator.forward(next(inputs(manager, 25, 1), first));
            NDList other = generator.forward(next(inputs(manager, 25, ids[25]), first));
            Assert.assertEquals(other.head(), again.head());
            Assert.assertNotEquals(branch.head(), again.head());
            // an array that is closed is the fault of its caller only
            NDList closed = next(inputs(manager, 25, 1), first);
            first.get(1).close();
            Assert.expectThrows(RuntimeException.class, () -> generator.forward(closed));
            NDList after = generator.forward(inputs(manager, 0, Arrays.copyOf(ids, 26)));
            checkClose(after.head(), whole.head());
        }
    }

    /** Of two threads that go on from one past at once, each finds its own tokens after it. */
    @Test(timeOut = 60_000)
    public void testTwoCallsGoOnFromOnePast() throws Exception {
        Path own = folder.resolve("llama");
        ParallelConfig ranks = ParallelConfig.tensor(2);
        Decoder.Size size = new Decoder.Size(2, 40, 9);
        ModelConfig config = ModelConfig.read(own);
        try (Decoder decoder =
                        new Decoder(config, own, null, WeightType.FLOAT32, ranks, size, false);
                GenerationLoop loop = new GenerationLoop(decoder);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            List<CausalForward.Past> pasts = new ArrayList<>();
            NDList begin = inputs(manager, 0, PROMPTS[0]);
            NDList first =
                    new CausalForward(decoder, begin).compute(loop, manager, null, pasts::add);
            List<NDList> outputs = new ArrayList<>();
            for (int id : new int[] {11, 22}) { // both have seen the past of the first call
                NDList inputs = next(inputs(manager, 7, id), first);
                CausalForward call = new CausalForward(decoder, inputs);
                outputs.add(call.compute(loop, manager, pasts.get(0), pasts::add));
            }
            for (int i = 0; i < 2; i++) {
                NDList inputs = next(inputs(manager, 8, 33), outputs.get(i));
                CausalForward call = new CausalForward(decoder, inputs);
                NDList found = call.compute(loop, manager, pasts.get(i + 1), past -> {});
                NDList whole = inputs(manager, 0, 3, 1, 4, 1, 5, 9, 2, i == 0 ? 11 : 22, 33);
                call = new CausalForward(decoder, whole);
                NDList expected = call.compute(loop, manager, null, past -> {});
                checkClose(found.head().get("0, -1"), expected.head().get("0, -1"));
            }
        }
    }

    private static NDList next(NDList inputs, NDList outputs) {
        inputs.addAll(outputs.subNDList(1, outputs.size() - 1));
        return inputs;
    }

    private static long allocated() {
        return ((ThreadMXBean) ManagementFactory.getThreadMXBean())
                .getThreadAllocatedBytes(Thread.currentThread().getId());
    }

    private static void checkClose(NDArray found, NDArray expected) {
        Assert.assertEquals(found.getShape(), expected.getShape());
        double most = expected.abs().max().getFloat();
        Assert.assertTrue(found.sub(expected).abs().max().getFloat() <= 1e-5 * most);
    }

    /** The only place of the cache has a text that nobody reads. */
    @Test(timeOut = 60_000)
    public void testPlacesAreShared() throws Exception {
        GenerationOptions options = GenerationOptions.builder().optMaxTokens(12).build();
        try (Generator generator = generator("llama", 2, 1);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            Generation text = generator.generateIds(List.of(PROMPTS[0]), options);
            text.next();
            NDArray logits = generator.forward(inputs(manager, 0, PROMPTS[1])).head();
            text.finish();
            Generation again = generator.generateIds(List.of(PROMPTS[0]), options);
            again.finish();
            Assert.assertEquals(text.getIds(0), again.getIds(0));
            checkClose(logits.get("0, -1"), manager.create(generator.getLogits(PROMPTS[1])));
        }
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {new long[] {1, 1, 0}, new long[] {0, 1, 2}, new long[] {1, 2, 3}, "setSuffixPadding"},
            {new long[] {0, 0, 0}, new long[] {0, 0, 0}, new long[] {1, 2, 3}, "setSuffixPadding"},
            {new long[] {0, 1, 1}, new long[] {0, 1, 2}, new long[] {1, 2, 3}, "makes 0 at [0, 1]"},
            {new long[] {1, 1, 1}, new long[] {0, 1, 2}, new long[] {1, 53, 3}, "none of 53"},
            {new long[] {1, 1}, new long[] {0, 1, 2}, new long[] {1, 2, 3}, "[B, 3, S, 6]"},
            {ones(33), LongStream.range(0, 33).toArray(), ones(33), "room for 32"},
        };
    }

    private static long[] ones(int count) {
        return LongStream.generate(() -> 1).limit(count).toArray();
    }

    @Test(dataProvider = "wrong", timeOut = 60_000)
    public void testBadInput(long[] mask, long[] positions, long[] ids, String message)
            throws Exception {
        try (Generator generator = generator("llama", 1, 1);
                NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDList inputs = new NDList();
            for (long[] each : new long[][] {ids, positions, mask}) {
                inputs.add(manager.create(each).expandDims(0));
            }
            Refusals.throwsArgument(() -> generator.forward(inputs), message);
        }
    }
}

package io.djltp.llm;

import io.djltp.llm.GeneratedToken.FinishReason;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;

/**
 * Times of prefill and decode beside llama.cpp's, in turns with pauses, on the same weights and
 * cores, and how far the logits of both are from those of float32.
 *
 * <pre>
 * ./mvnw -q -Ppeer -pl tp-blocks/llm -am process-test-classes -Dpeer="FOLDER TYPES TURNS"
 * </pre>
 *
 * <p>FOLDER is {@code target/peer} by default, where a Llama of 125 million random weights is
 * written; TYPES are {@code float32,float16,int8}, TURNS 15. Beside {@code model.safetensors} there
 * is a GGUF file of each type then.
 */
public final class LlamaCppBench {

    /** Of a Llama of 125 million numbers. */
    static final String SIZES =
            "'hidden_size': 768, 'num_hidden_layers': 12, 'num_attention_heads': 12,"
                    + " 'num_key_value_heads': 4, 'head_dim': 64, 'intermediate_size': 2048,"
                    + " 'vocab_size': 32000, 'max_position_embeddings': 4096";

    private static final Map<WeightType, Gguf.Type> TYPES =
            Map.of(
                    WeightType.FLOAT32, Gguf.Type.F32,
                    WeightType.FLOAT16, Gguf.Type.F16,
                    WeightType.BFLOAT16, Gguf.Type.BF16,
                    WeightType.INT8, Gguf.Type.Q8_0,
                    WeightType.INT4, Gguf.Type.Q8_0);
    private static final int PREFILL = 256;
    private static final int BLOCK = 16; // tokens of a turn
    private static final int PAUSE = 50; // ms, in which waiting threads stop to spin
    private static final int COMPARED = 48; // logits

    private final Path folder;
    private final WeightType type;
    private final int turns;
    private final int threads = Runtime.getRuntime().availableProcessors();
    private final int vocabulary;
    private final int longest;

    private LlamaCppBench(Path folder, WeightType type, int turns) throws Exception {
        this.folder = folder;
        this.type = type;
        this.turns = turns;
        ModelConfig config = ModelConfig.read(folder);
        vocabulary = config.getVocabularySize();
        longest = config.getMaxPositions();
    }

    /** What is timed. */
    private interface Work {

        void run();
    }

    /** Takes the folder, the types and the turns. */
    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments.length > 0 ? arguments[0] : "target/peer");
        String types = arguments.length > 1 ? arguments[1] : "float32,float16,int8";
        int turns = arguments.length > 2 ? Integer.parseInt(arguments[2]) : 15;
        if (!Files.exists(folder)) {
            System.out.println("Writing a random model to " + folder);
            RandomFolder.write(folder, RandomFolder.config("llama", SIZES), 7);
        }
        for (String name : types.split(",")) {
            new LlamaCppBench(folder, WeightType.of(name), turns).run();
        }
    }

    private void run() throws Exception {
        Gguf.Type other = TYPES.get(type);
        Path file = folder.resolve(other + ".gguf");
        if (!Files.exists(file)) {
            Gguf.write(folder, file, other);
        }
        int room = Math.min(longest, 2000 + (turns + 3) * BLOCK);
        generator(16).close(); // loads the libraries
        long before = resident();
        try (Generator ours = generator(room)) {
            long grown = resident() - before;
            long claimed = ours.getBytes().stream().mapToLong(Long::longValue).sum();
            System.out.printf(
                    "memory: %.1f MB claimed, %.1f MB resident%n", claimed / 1e6, grown / 1e6);
            try (LlamaCpp theirs = new LlamaCpp(file, room, type != WeightType.FLOAT32, false)) {
                run(ours, theirs, other, room);
            }
        }
    }

    private void run(Generator ours, LlamaCpp theirs, Gguf.Type other, int room) throws Exception {
        theirs.setThreads(threads);
        System.out.printf(
                "%s by %s on %d ranks, llama.cpp %s on %d threads%n",
                type, ours.getKernel(), ours.getRanks(), other, threads);
        compare(ours, theirs);
        prefill(ours, theirs);
        for (int context : new int[] {100, 2000}) {
            if (context + (turns + 3) * BLOCK <= room) {
                decode(ours, theirs, context);
            }
        }
    }

    private Generator generator(int room) throws Exception {
        return Generator.builder().setPath(folder).optWeights(type).optMaxLength(room).build();
    }

    /** Returns the memory of this process. */
    static long resident() throws IOException {
        return Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]) * 4096;
    }

    private int[] prompt(int length, long seed) {
        return new Random(seed).ints(length, 0, vocabulary).toArray();
    }

    private static GenerationOptions options(int tokens) {
        return GenerationOptions.builder().optMaxTokens(tokens).build();
    }

    private void prefill(Generator ours, LlamaCpp theirs) throws InterruptedException {
        int[] seed = {0};
        inTurns(
                "prefill of " + PREFILL,
                PREFILL,
                1,
                () -> ours.generateIds(List.of(prompt(PREFILL, seed[0]++)), options(1)).next(),
                () -> {
                    theirs.clear();
                    theirs.append(false, prompt(PREFILL, seed[0]++));
                });
    }

    private void decode(Generator ours, LlamaCpp theirs, int context) throws InterruptedException {
        int[] prompt = prompt(context, 3);
        theirs.clear();
        for (int at = 0; at < context; at += PREFILL) {
            theirs.append(false, Arrays.copyOfRange(prompt, at, Math.min(context, at + PREFILL)));
        }
        Generation text = ours.generateIds(List.of(prompt), options(BLOCK * (turns + 3)));
        text.next();
        inTurns("decode at " + context, 1, BLOCK, text::next, () -> theirs.append(false, 400));
    }

    /** Runs both in turns, the first two of which do not count. */
    private void inTurns(String what, int tokens, int block, Work ours, Work theirs)
            throws InterruptedException {
        List<List<Double>> times = List.of(new ArrayList<>(), new ArrayList<>());
        for (int turn = -2; turn < turns; turn++) {
            for (int side = 0; side < 2; side++) {
                Thread.sleep(PAUSE);
                for (int i = 0; i < block; i++) {
                    long start = System.nanoTime();
                    (side == 0 ? ours : theirs).run();
                    if (turn >= 0) {
                        times.get(side).add((System.nanoTime() - start) / 1e6 / tokens);
                    }
                }
            }
        }
        times.forEach(each -> each.sort(null));
        double[] least = {times.get(0).get(0), times.get(1).get(0)};
        int half = times.get(0).size() / 2;
        double[] median = {times.get(0).get(half), times.get(1).get(half)};
        System.out.printf(
                "%-14s ours %7.3f ms a token (median %7.3f), llama.cpp %7.3f (%7.3f):"
                        + " speed %.2f of llama.cpp (median %.2f)%n",
                what,
                least[0],
                median[0],
                least[1],
                median[1],
                least[1] / least[0],
                median[1] / median[0]);
    }

    /** Compares logits with those of float32, on a text that float32 samples. */
    private void compare(Generator ours, LlamaCpp theirs) throws Exception {
        List<float[]> exact = new ArrayList<>();
        int[] ids;
        try (Generator generator = Generator.builder().setPath(folder).build()) {
            Generation text =
                    generator.generateIds(
                            List.of(prompt(8, 5)),
                            options(COMPARED).toBuilder().optTemperature(1).optSeed(1).build());
            text.finish();
            if (text.getFinishReason(0) != FinishReason.LENGTH) {
                throw new IOException("The text of the model has an end: " + folder);
            }
            ids = text.getIds(0);
            for (int i = 1; i < COMPARED; i++) {
                exact.add(generator.getLogits(Arrays.copyOf(ids, i)));
            }
        }
        theirs.clear();
        theirs.append(true, ids);
        double[] loss = new double[3];
        double[] divergence = new double[2];
        for (int i = 1; i < COMPARED; i++) {
            double[] wanted = logSoftmax(exact.get(i - 1));
            double[] own = logSoftmax(ours.getLogits(Arrays.copyOf(ids, i)));
            double[] other = logSoftmax(theirs.output(i - 1));
            for (int id = 0; id < wanted.length; id++) {
                divergence[0] += Math.exp(wanted[id]) * (wanted[id] - own[id]) / (COMPARED - 1);
                divergence[1] += Math.exp(wanted[id]) * (wanted[id] - other[id]) / (COMPARED - 1);
            }
            loss[0] -= wanted[ids[i]] / (COMPARED - 1);
            loss[1] -= own[ids[i]] / (COMPARED - 1);
            loss[2] -= other[ids[i]] / (COMPARED - 1);
        }
        System.out.printf(
                "loss of float32 %.5f, ours %+.5f (divergence %.1e), llama.cpp %+.5f (%.1e)%n",
                loss[0], loss[1] - loss[0], divergence[0], loss[2] - loss[0], divergence[1]);
    }

    private static double[] logSoftmax(float[] logits) {
        double[] wide = new double[logits.length];
        Arrays.setAll(wide, i -> logits[i]);
        return logSoftmax(wide);
    }

    private static double[] logSoftmax(double[] logits) {
        double most = Arrays.stream(logits).max().orElseThrow();
        double sum = Arrays.stream(logits).map(each -> Math.exp(each - most)).sum();
        return Arrays.stream(logits).map(each -> each - most - Math.log(sum)).toArray();
    }
}

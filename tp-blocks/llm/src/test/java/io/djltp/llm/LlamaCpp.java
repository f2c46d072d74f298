package io.djltp.llm;

import com.sun.jna.Callback;
import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.Platform;
import com.sun.jna.Pointer;
import com.sun.jna.Structure;

import org.testng.SkipException;

import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;

/**
 * llama.cpp by its C API, which the library inside {@code de.kherud:llama:4.2.0} exports: its build
 * 4916, of March 2025. Its Java API gives no logits.
 */
public final class LlamaCpp implements AutoCloseable {

    /** A structure of the fields of its class, in their order. */
    public abstract static class Fields extends Structure implements Structure.ByValue {

        @Override
        protected List<String> getFieldOrder() {
            return Stream.of(getClass().getDeclaredFields()).map(Field::getName).toList();
        }
    }

    /** {@code llama_model_params}. */
    public static class ModelParams extends Fields {
        public Pointer devices;
        public int gpuLayers;
        public int splitMode;
        public int mainGpu;
        public Pointer tensorSplit;
        public Pointer progress;
        public Pointer progressData;
        public Pointer overrides;
        public byte vocabOnly;
        public byte mmap;
        public byte mlock;
        public byte check;
    }

    /** {@code llama_context_params}. */
    public static class ContextParams extends Fields {
        public int context;
        public int batch;
        public int microBatch;
        public int sequences;
        public int threads;
        public int threadsBatch;
        public int ropeType;
        public int pooling;
        public int attention;
        public float[] rope = new float[6]; // base, scale, and four of YaRN
        public int yarnContext;
        public float defrag;
        public Pointer callback;
        public Pointer callbackData;
        public int typeK;
        public int typeV;
        public byte logitsAll;
        public byte embeddings;
        public byte offload;
        public byte flash;
        public byte noPerf;
        public Pointer abort;
        public Pointer abortData;
    }

    /** {@code llama_batch}. */
    public static class Batch extends Fields {
        public int count;
        public Pointer token;
        public Pointer embedding;
        public Pointer position;
        public Pointer sequences;
        public Pointer sequence;
        public Pointer logits;
    }

    /** What is called. */
    public interface Api extends Library {
        void llama_backend_init();

        void llama_log_set(Callback log, Pointer data);

        ModelParams llama_model_default_params();

        ContextParams llama_context_default_params();

        Pointer llama_model_load_from_file(String path, ModelParams params);

        Pointer llama_init_from_model(Pointer model, ContextParams params);

        Pointer llama_model_get_vocab(Pointer model);

        int llama_vocab_n_tokens(Pointer vocab);

        int llama_model_n_embd(Pointer model);

        int llama_tokenize(
                Pointer vocab,
                byte[] text,
                int length,
                int[] tokens,
                int most,
                boolean addSpecial,
                boolean parseSpecial);

        Batch llama_batch_init(int tokens, int embedding, int sequences);

        void llama_batch_free(Batch batch);

        int llama_decode(Pointer context, Batch batch);

        Pointer llama_get_logits_ith(Pointer context, int i);

        Pointer llama_get_embeddings_ith(Pointer context, int i);

        void llama_kv_self_clear(Pointer context);

        boolean llama_kv_self_seq_rm(Pointer context, int sequence, int from, int to);

        void llama_set_n_threads(Pointer context, int threads, int threadsBatch);

        void llama_free(Pointer context);

        void llama_model_free(Pointer model);
    }

    /** Gets what llama.cpp says. */
    public interface Log extends Callback {
        void invoke(int level, String text, Pointer data);
    }

    private static final int ERROR = 4; // a level of the log
    private static final Log QUIET =
            (level, text, data) -> {
                if (level == ERROR) {
                    System.err.print(text);
                }
            };
    private static Api api;

    private final Pointer model;
    private final Pointer context;
    private final Batch batch;
    private final int most;
    private final int outputs;
    private final boolean encoder;
    private int position;

    /**
     * Loads the library.
     *
     * @throws SkipException if there is none for this platform
     */
    private static synchronized Api api() throws IOException {
        if (api != null) {
            return api;
        }
        String name = Platform.ARCH.equals("x86-64") ? "x86_64" : Platform.ARCH;
        String path = "/de/kherud/llama/Linux/" + name + "/libjllama.so";
        try (InputStream in =
                Platform.isLinux() ? LlamaCpp.class.getResourceAsStream(path) : null) {
            if (in == null) {
                throw new SkipException("llama.cpp is compared with on Linux only");
            }
            if (name.equals("x86_64")
                    && !Files.readString(Path.of("/proc/cpuinfo")).contains(" avx2 ")) {
                throw new SkipException("The library of llama.cpp needs AVX2");
            }
            Path file = Files.createTempFile("jllama", ".so");
            try {
                Files.copy(in, file, StandardCopyOption.REPLACE_EXISTING);
                api = Native.load(file.toString(), Api.class);
            } finally {
                Files.delete(file);
            }
            api.llama_log_set(QUIET, null);
            api.llama_backend_init();
            return api;
        }
    }

    /**
     * Opens a file. Attention is computed without flash attention.
     *
     * @param file a GGUF file
     * @param length tokens for which the cache has room
     * @param halfCache whether keys and values are float16, as by default, or float32
     * @param encoder whether tokens see those after them, and features are the output
     */
    LlamaCpp(Path file, int length, boolean halfCache, boolean encoder) throws IOException {
        Api all = api();
        this.encoder = encoder;
        ModelParams m = all.llama_model_default_params();
        ContextParams c = all.llama_context_default_params();
        if (c.context != 512 || c.rope[4] != 32 || c.typeK != 1 || c.offload != 1 || m.mmap != 1) {
            throw new IllegalStateException("another llama.cpp, of other structures: " + c);
        }
        m.gpuLayers = 0;
        m.mmap = 0; // weights in its own memory, as ours
        model = all.llama_model_load_from_file(file.toString(), m);
        if (model == null) {
            throw new IOException("llama.cpp does not load " + file);
        }
        c.context = length;
        most = Math.min(length, 512);
        c.batch = most;
        c.microBatch = most;
        c.typeK = halfCache ? 1 : 0;
        c.typeV = c.typeK;
        c.threads = 1;
        c.threadsBatch = 1;
        c.embeddings = (byte) (encoder ? 1 : 0);
        context = all.llama_init_from_model(model, c);
        batch = all.llama_batch_init(most, 0, 1);
        outputs =
                encoder
                        ? all.llama_model_n_embd(model)
                        : all.llama_vocab_n_tokens(all.llama_model_get_vocab(model));
    }

    /**
     * Prints ids for tests of other modules: those of a prompt, then the 300 that follow it, each
     * the likeliest.
     *
     * @param arguments a folder of Hugging Face, and the prompt
     * @throws Exception if the folder cannot be written as GGUF or read
     */
    public static void main(String... arguments) throws Exception {
        Path folder = Path.of(arguments[0]);
        Path file = folder.resolve("model.gguf");
        Gguf.write(folder, file, Gguf.Type.F32);
        try (LlamaCpp model = new LlamaCpp(file, 400, false, false)) {
            int[] prompt = model.tokenize(arguments[1]);
            System.out.println(Arrays.toString(prompt));
            System.out.println(Arrays.toString(model.greedy(prompt, 300)));
        }
    }

    /** Sets the number of threads, 1 at first. */
    void setThreads(int threads) {
        api.llama_set_n_threads(context, threads, threads);
    }

    /** Forgets all tokens. */
    void clear() {
        api.llama_kv_self_clear(context);
        position = 0;
    }

    /** Forgets the tokens before the last n, which the next token sees. */
    void keepLast(int n) {
        api.llama_kv_self_seq_rm(context, 0, 0, Math.max(0, position - n));
    }

    /** Appends tokens. */
    void append(boolean all, int... ids) {
        for (int i = 0; i < ids.length; i++) {
            batch.token.setInt(4L * i, ids[i]);
            batch.position.setInt(4L * i, position + i);
            batch.sequences.setInt(4L * i, 1);
            batch.sequence.getPointer(8L * i).setInt(0, 0);
            batch.logits.setByte(i, (byte) (all || i == ids.length - 1 ? 1 : 0));
        }
        batch.count = ids.length;
        int code = api.llama_decode(context, batch);
        if (code != 0) {
            throw new IllegalStateException("llama_decode returns " + code);
        }
        position += ids.length;
    }

    /**
     * Returns the logits, or the features, of a token that was appended last, or of -1, the last.
     */
    double[] output(int i) {
        Pointer found =
                encoder
                        ? api.llama_get_embeddings_ith(context, i)
                        : api.llama_get_logits_ith(context, i);
        double[] numbers = new double[outputs];
        Arrays.setAll(numbers, at -> found.getFloat(4L * at));
        return numbers;
    }

    /** Appends ids, and returns the n tokens that follow, each the likeliest. */
    int[] greedy(int[] ids, int n) {
        append(false, ids);
        int[] found = new int[n];
        for (int i = 0; i < n; i++) {
            double[] logits = output(-1);
            for (int id = 1; id < logits.length; id++) {
                found[i] = logits[id] > logits[found[i]] ? id : found[i];
            }
            append(false, found[i]);
        }
        return found;
    }

    /** Returns the ids of a text, which has no special tokens. */
    int[] tokenize(String text) {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        int[] ids = new int[bytes.length];
        Pointer vocab = api.llama_model_get_vocab(model);
        int count = api.llama_tokenize(vocab, bytes, bytes.length, ids, ids.length, false, false);
        return Arrays.copyOf(ids, count);
    }

    @Override
    public void close() {
        api.llama_batch_free(batch);
        api.llama_free(context);
        api.llama_model_free(model);
    }
}

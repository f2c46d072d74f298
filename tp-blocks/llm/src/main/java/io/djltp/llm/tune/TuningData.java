package io.djltp.llm.tune;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.internal.Errors;
import io.djltp.llm.LanguageModel;
import io.djltp.llm.ModelConfig;
import io.djltp.llm.tune.TuningText.Tokens;
import io.djltp.loss.VocabParallelCrossEntropyLoss;

import org.jspecify.annotations.Nullable;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The texts of a file of JSON lines, as batches of tokens for the training of a {@link
 * LanguageModel}.
 *
 * <p>Each line is one of
 *
 * <pre>{@code
 * {"text": "..."}
 * {"prompt": "...", "completion": "..."}
 * {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
 * }</pre>
 *
 * <p>All tokens of a text have a loss, and of a pair those of the completion. Both end with the
 * first {@code eos_token_id} of the model, which has a loss too. A chat is rendered by the chat
 * template of the model, and all that the template adds for a message of the assistant has a loss.
 * Other fields and empty lines are ignored. A text that is longer than a row is split over several
 * rows. A pair or chat is cut, and left out if no token with a loss remains; {@link #getCounts()}
 * counts them.
 *
 * <p>A batch has token ids [B, T] and labels [B, T]: of each token the next one, or {@link
 * #IGNORED} where there is no loss.
 *
 * <ul>
 *   <li>By default each row has one text, and T is the longest of the batch.
 *   <li>With {@link Builder#optPacked} a row has as many texts as fit, and the batch a mask [B, T,
 *       T] that hides the other texts of the row. The model needs rotary positions, of which only
 *       differences matter.
 * </ul>
 *
 * <p>The last batch of an epoch is filled up with rows that have no loss. The mean loss is over the
 * labels of a batch, on any mesh. To accumulate the gradients of several batches, multiply the loss
 * of each by its share of their labels.
 *
 * <p>The file is read once, and its tokens stay in memory, 4 bytes each. The order of an epoch
 * follows from the seed and its number.
 */
public final class TuningData implements ResumableDataset {

    /** The label of tokens that have no loss. */
    public static final long IGNORED = VocabParallelCrossEntropyLoss.DEFAULT_IGNORE_INDEX;

    private static final int BUCKET = 32; // batches among which rows are sorted by length

    private final Settings settings;
    private final List<Piece> pieces;
    private final List<List<Piece>> rows;
    private final int leftOut;
    private long epoch; // of the next getData

    private TuningData(Settings settings, List<Piece> pieces, int leftOut) {
        this.settings = settings;
        this.pieces = pieces;
        this.leftOut = leftOut;
        rows =
                settings.packed
                        ? pack(pieces, settings.length)
                        : pieces.stream().map(List::of).toList();
    }

    private record Settings(
            int length, int batch, boolean shuffled, boolean packed, boolean bucketed, long seed) {}

    /**
     * A text, or a part of one.
     *
     * @param text the number of its line
     * @param tokens the tokens of the text
     * @param first its first token
     * @param length its tokens, without the last, which is only a label
     * @param cut whether the text goes on, and the rest is left out
     */
    private record Piece(int text, Tokens tokens, int first, int length, boolean cut) {

        /** Returns how many labels it has. */
        int learnt() {
            return tokens.learnt().get(first + 1, first + length + 1).cardinality();
        }
    }

    /**
     * What there is to train on.
     *
     * @param texts the number of texts
     * @param rows the number of rows
     * @param tokens the number of tokens in the rows
     * @param labels how many of them have a loss
     * @param split how many texts are split over several rows
     * @param cut how many pairs or chats are cut
     * @param leftOut how many pairs or chats are left out
     */
    public record Counts(
            long texts, long rows, long tokens, long labels, long split, long cut, long leftOut) {}

    /** {@return a new builder} */
    public static Builder builder() {
        return new Builder();
    }

    /** Finds and checks all lines. */
    private static TuningData read(Path file, TuningText reader, Settings settings)
            throws IOException {
        List<Piece> pieces = new ArrayList<>();
        int leftOut = 0;
        try (InputStream in = new BufferedInputStream(Files.newInputStream(file))) {
            ByteArrayOutputStream line = new ByteArrayOutputStream();
            for (int number = 1, next = 0; next >= 0; number++) {
                line.reset();
                for (next = in.read(); next >= 0 && next != '\n'; next = in.read()) {
                    line.write(next);
                }
                byte[] bytes = line.toByteArray();
                if (isBlank(bytes)) {
                    continue;
                }
                List<Piece> found;
                try {
                    found = pieces(number, reader.read(bytes), settings.length);
                } catch (IllegalArgumentException e) {
                    throw new IllegalArgumentException(
                            "%s, line %d: %s".formatted(file, number, e.getMessage()), e);
                }
                leftOut += found.isEmpty() ? 1 : 0;
                pieces.addAll(found);
            }
        }
        Errors.check(
                !pieces.isEmpty(),
                leftOut == 0
                        ? "%s has no text: write lines such as {\"text\": \"...\"}"
                        : "No completion in %s begins within %s tokens: shorten the prompts, or raise the length",
                file,
                settings.length);
        return new TuningData(settings, pieces, leftOut);
    }

    private static boolean isBlank(byte[] line) {
        return IntStream.range(0, line.length).allMatch(i -> line[i] >= 0 && line[i] <= ' ');
    }

    private static List<Piece> pieces(int text, Tokens tokens, int length) {
        List<Piece> pieces = new ArrayList<>();
        int inputs = tokens.ids().length - 1;
        for (int first = 0; first < inputs; first += length) {
            int part = Math.min(length, inputs - first);
            boolean cut = part < inputs && !tokens.whole();
            Piece piece = new Piece(text, tokens, first, part, cut);
            if (piece.learnt() > 0) {
                pieces.add(piece);
            }
            if (cut) {
                break;
            }
        }
        return pieces;
    }

    /** Puts each piece into the row with the least room that has enough, the longest first. */
    private static List<List<Piece>> pack(List<Piece> pieces, int length) {
        List<List<Piece>> rows = new ArrayList<>();
        TreeMap<Integer, Deque<List<Piece>>> byRoom = new TreeMap<>();
        List<Piece> sorted = new ArrayList<>(pieces);
        sorted.sort(Comparator.comparingInt(Piece::length).reversed());
        for (Piece piece : sorted) {
            Map.Entry<Integer, Deque<List<Piece>>> best = byRoom.ceilingEntry(piece.length());
            int room = best == null ? length : best.getKey();
            List<Piece> row = best == null ? new ArrayList<>() : best.getValue().pop();
            if (best == null) {
                rows.add(row);
            } else if (best.getValue().isEmpty()) {
                byRoom.remove(room);
            }
            row.add(piece);
            byRoom.computeIfAbsent(room - piece.length(), any -> new ArrayDeque<>()).push(row);
        }
        return rows;
    }

    /**
     * Divides the texts by chance, such as into those to train on and those to evaluate with.
     *
     * @param share the share of the second part, of which there is at least one text
     * @return the two parts
     * @throws IllegalArgumentException if the share is not between 0 and 1, or a part is empty
     */
    public List<TuningData> split(double share) {
        Errors.check(share > 0 && share < 1, "The share must be between 0 and 1, not %s", share);
        List<Integer> texts = new ArrayList<>(pieces.stream().map(Piece::text).distinct().toList());
        Collections.shuffle(texts, new Random(settings.seed));
        int count = (int) Math.max(1, Math.round(share * texts.size()));
        Errors.check(
                count < texts.size(),
                "A share of %s of %s texts leaves none to train on: add texts",
                share,
                texts.size());
        Set<Integer> chosen = new HashSet<>(texts.subList(0, count));
        Map<Boolean, List<Piece>> parts =
                pieces.stream().collect(Collectors.partitioningBy(p -> chosen.contains(p.text())));
        return List.of(
                new TuningData(settings, Objects.requireNonNull(parts.get(false)), leftOut),
                new TuningData(settings, Objects.requireNonNull(parts.get(true)), 0));
    }

    /** {@return how many texts and tokens there are} */
    public Counts getCounts() {
        return new Counts(
                pieces.stream().mapToInt(Piece::text).distinct().count(),
                rows.size(),
                pieces.stream().mapToLong(Piece::length).sum(),
                pieces.stream().mapToLong(Piece::learnt).sum(),
                pieces.stream().filter(p -> p.first() > 0).mapToInt(Piece::text).distinct().count(),
                pieces.stream().filter(Piece::cut).count(),
                leftOut);
    }

    /** {@return the number of batches in an epoch, of which the last may be filled up} */
    public long getBatches() {
        return (rows.size() + settings.batch - 1L) / settings.batch;
    }

    /** {@inheritDoc} Nothing is left to prepare. */
    @Override
    public void prepare(@Nullable Progress progress) {
        // the file was checked when this was built
    }

    /**
     * Returns the batches of the next epoch.
     *
     * @param manager the manager of the batches
     * @return the batches
     */
    @Override
    public Iterable<Batch> getData(NDManager manager) {
        return getData(manager, null, epoch++, 0);
    }

    @Override
    public Iterable<Batch> getData(
            NDManager manager, @Nullable ExecutorService executor, long epoch, long firstBatch) {
        int[] order = order(epoch);
        return () ->
                IntStream.range((int) firstBatch, (int) getBatches())
                        .mapToObj(batch -> batch(manager, order, batch))
                        .iterator();
    }

    /** Returns the rows in the order of an epoch. */
    private int[] order(long number) {
        List<Integer> order = new ArrayList<>(IntStream.range(0, rows.size()).boxed().toList());
        if (!settings.shuffled) {
            return order.stream().mapToInt(i -> i).toArray();
        }
        Random random = new Random(31 * settings.seed + number);
        Collections.shuffle(order, random);
        int batch = settings.batch;
        for (int from = 0; settings.bucketed && from < order.size(); from += BUCKET * batch) {
            List<Integer> window =
                    order.subList(from, Math.min(order.size(), from + BUCKET * batch));
            window.sort(Comparator.comparingInt(row -> length(rows.get(row))));
            List<List<Integer>> batches = new ArrayList<>(); // those that are full change places
            for (int i = 0; i + batch <= window.size(); i += batch) {
                batches.add(List.copyOf(window.subList(i, i + batch)));
            }
            Collections.shuffle(batches, random);
            for (int i = 0; i < batches.size() * batch; i++) {
                window.set(i, batches.get(i / batch).get(i % batch));
            }
        }
        return order.stream().mapToInt(i -> i).toArray();
    }

    private static int length(List<Piece> row) {
        return row.stream().mapToInt(Piece::length).sum();
    }

    private Batch batch(NDManager manager, int[] order, int number) {
        int size = settings.batch;
        int from = number * size;
        List<List<Piece>> chosen =
                Arrays.stream(order, from, Math.min(order.length, from + size))
                        .mapToObj(rows::get)
                        .toList();
        int width = chosen.stream().mapToInt(TuningData::length).max().orElseThrow();
        long[] ids = new long[size * width];
        long[] labels = new long[ids.length];
        Arrays.fill(labels, IGNORED);
        int[] owners =
                new int[ids.length]; // of each token its place in the row, 0 if there is none
        fill(chosen, width, ids, labels, owners);
        NDManager own = manager.newSubManager();
        Shape shape = new Shape(size, width);
        NDList data = new NDList(own.create(ids, shape));
        if (settings.packed) {
            data.add(own.create(mask(owners, width), shape.add(width), DataType.BOOLEAN));
        }
        return new Batch(
                own,
                data,
                new NDList(own.create(labels, shape)),
                size,
                Batchifier.STACK,
                Batchifier.STACK,
                number,
                getBatches());
    }

    private static void fill(
            List<List<Piece>> chosen, int width, long[] ids, long[] labels, int[] owners) {
        for (int row = 0; row < chosen.size(); row++) {
            int place = row * width;
            int owner = 0;
            for (Piece piece : chosen.get(row)) {
                Tokens tokens = piece.tokens();
                owner++;
                for (int i = 0; i < piece.length(); i++, place++) {
                    int token = piece.first() + i;
                    ids[place] = tokens.ids()[token];
                    owners[place] = owner;
                    if (tokens.learnt().get(token + 1)) {
                        labels[place] = tokens.ids()[token + 1];
                    }
                }
            }
        }
    }

    /** Returns 1 where two tokens of a row are of one text. */
    private static ByteBuffer mask(int[] owners, int width) {
        byte[] mask = new byte[owners.length * width];
        for (int i = 0; i < owners.length; i++) {
            int row = i - i % width;
            for (int j = 0; j < width; j++) {
                mask[i * width + j] = (byte) (owners[i] == owners[row + j] ? 1 : 0);
            }
        }
        return ByteBuffer.wrap(mask);
    }

    /** A builder of {@link TuningData}. */
    public static final class Builder {

        private static final int LENGTH = 512;

        private @Nullable Path file;
        private @Nullable LanguageModel model;
        private @Nullable Integer length;
        private int batch = 8;
        private boolean shuffled = true;
        private boolean packed;
        private boolean bucketed;
        private long seed = 42;

        private Builder() {}

        /**
         * Sets the file, of UTF-8. This must be called.
         *
         * @param file the file
         * @return this builder
         */
        public Builder setFile(Path file) {
            this.file = file;
            return this;
        }

        /**
         * Sets the model whose tokenizer is used. This must be called.
         *
         * @param model the model
         * @return this builder
         */
        public Builder setModel(LanguageModel model) {
            this.model = model;
            return this;
        }

        /**
         * Sets the size of a batch, and whether each epoch has another order. Default: 8, true.
         *
         * @param batchSize the rows of a batch, over all ranks
         * @param shuffled whether the order is by chance, or else that of the file
         * @return this builder
         */
        public Builder optSampling(int batchSize, boolean shuffled) {
            batch = batchSize;
            this.shuffled = shuffled;
            return this;
        }

        /**
         * Sets the tokens of a row. Default: 512, or the positions of the model if these are fewer.
         *
         * @param tokens the largest number of tokens in a row, at most the positions of the model
         * @return this builder
         */
        public Builder optLength(int tokens) {
            length = tokens;
            return this;
        }

        /**
         * Sets whether rows have several texts. Default: false.
         *
         * @param packed whether as many texts share a row as fit
         * @return this builder
         */
        public Builder optPacked(boolean packed) {
            this.packed = packed;
            return this;
        }

        /**
         * Sets whether a batch has rows of similar length, which saves padding: of 32 batches in
         * their random order, the rows are sorted by length, and the batches shuffled. Default:
         * false.
         *
         * @param bucketed whether rows of similar length are together
         * @return this builder
         */
        public Builder optBucketed(boolean bucketed) {
            this.bucketed = bucketed;
            return this;
        }

        /**
         * Sets the seed of the order and of {@link TuningData#split}. Default: 42.
         *
         * @param seed the seed
         * @return this builder
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        private Path file() {
            return Errors.given(file, "setFile(path) must be called");
        }

        private LanguageModel model() {
            return Errors.given(model, "setModel(model) must be called");
        }

        private int length() {
            return length != null
                    ? length
                    : Math.min(LENGTH, model().getConfig().getMaxPositions());
        }

        /**
         * Reads and checks the file.
         *
         * @return the data
         * @throws IOException if the file cannot be read
         * @throws IllegalArgumentException if a line is not of one of the forms, whose number is in
         *     the message; if no text is left; or if a setting does not fit the model
         */
        public TuningData build() throws IOException {
            ModelConfig config = model().getConfig();
            int positions = config.getMaxPositions();
            Errors.check(
                    !config.isEncoder(),
                    "%s is an encoder: fine-tune a model that generates",
                    config.getModelType());
            Errors.check(batch > 0, "The batch must be greater than 0, not %s", batch);
            Errors.check(
                    length() > 0 && length() <= positions,
                    "The length must be from 1 to the %s positions of the model, not %s",
                    positions,
                    length());
            Errors.check(
                    !packed || config.getRotary() != null,
                    "%s has learned positions, and its texts cannot be packed: use padded batches",
                    config.getModelType());
            Errors.check(
                    !packed || (long) batch * length() * length() <= Integer.MAX_VALUE,
                    "The mask of %s packed rows of %s tokens is too large: use a smaller batch",
                    batch,
                    length());
            return read(
                    file(),
                    new TuningText(model()),
                    new Settings(length(), batch, shuffled, packed, bucketed, seed));
        }
    }
}

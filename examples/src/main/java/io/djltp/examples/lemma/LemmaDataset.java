package io.djltp.examples.lemma;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.Batchifier;
import ai.djl.util.Preconditions;
import ai.djl.util.Progress;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.zoo.lemma.CharNGrams;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;

/**
 * The batches of a {@link HeldOutSplit}: those to train on, shuffled anew in each pass, or the
 * held-out forms in their order.
 *
 * <p>A batch has
 *
 * <ul>
 *   <li>data: one array of type int32 and shape (batch size, {@link CharNGrams#limit()}), the rows
 *       of each word in the embedding table
 *   <li>labels: one array of type int64 and shape (batch size), the classes; of a held-out form
 *       with more than one right class, the first
 *   <li>indices: the pairs of the corpus in training, the items of the split otherwise
 * </ul>
 *
 * <p>In training every batch is full: what is left at the end of a pass is dropped.
 */
public final class LemmaDataset implements ResumableDataset {

    private final HeldOutSplit split;
    private final CharNGrams nGrams;
    private final int batchSize;
    private final int passes;
    private final long seed;
    private final BooleanSupplier stop;

    /** The pairs to train on, or null for the held-out forms. */
    private final int[] training;

    private final AtomicInteger nextPass;

    private LemmaDataset(Builder builder) {
        split = builder.split;
        nGrams = builder.nGrams;
        batchSize = builder.batchSize;
        seed = builder.seed;
        stop = builder.stop;
        training = builder.usage == Usage.TRAIN ? split.trainingPairs() : null;
        passes = training == null ? 1 : builder.passes;
        nextPass = new AtomicInteger(builder.firstPass);
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Returns the number of batches in a pass over the data.
     *
     * @return the number of batches
     */
    public int batchesPerPass() {
        return training == null
                ? (split.size() + batchSize - 1) / batchSize
                : training.length / batchSize;
    }

    /**
     * Returns the next batches: one pass over the data, or as many as the builder was told. Each
     * call goes on with the pass after that of the call before.
     *
     * @param manager the manager of the batches
     * @return the batches
     */
    @Override
    public Iterable<Batch> getData(NDManager manager) {
        int firstPass = nextPass.getAndAdd(passes);
        return () -> new Batches(manager, firstPass, 0);
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(
            NDManager manager, ExecutorService executor, long epoch, long firstBatch) {
        return () -> new Batches(manager, (int) epoch * passes, firstBatch);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Progress progress) {
        // all is in memory already
    }

    private BatchWords words(Permutation order, int number) {
        int from = number * batchSize;
        int size = training == null ? Math.min(batchSize, split.size() - from) : batchSize;
        BatchWords words = BatchWords.of(size, nGrams.limit());
        for (int i = 0; i < size; i++) {
            if (training == null) {
                int item = from + i;
                words.indices().add(item);
                nGrams.fill(split.form(item), words.rows(), i * nGrams.limit());
                words.labels()[i] = split.goldClasses(item)[0];
            } else {
                int pair = training[order.get(from + i)];
                words.indices().add(pair);
                nGrams.fill(split.corpus().form(pair), words.rows(), i * nGrams.limit());
                words.labels()[i] = split.corpus().classOf(pair);
            }
        }
        return words;
    }

    private Batch batch(NDManager parent, BatchWords words, long progress) {
        int size = words.labels().length;
        NDManager manager = parent.newSubManager();
        NDArray rows = manager.create(words.rows(), new Shape(size, nGrams.limit()));
        NDArray labels = manager.create(words.labels());
        NDList data = new NDList(rows);
        Batchifier stack = Batchifier.STACK;
        long all = (long) passes * batchesPerPass();
        return new Batch(
                manager,
                data,
                new NDList(labels),
                size,
                stack,
                stack,
                progress,
                all,
                words.indices());
    }

    /**
     * Goes through some passes. The ranks train on a batch while the words of the next are read.
     */
    private final class Batches implements Iterator<Batch> {

        private final NDManager manager;
        private final int firstPass;
        private long done;
        private int orderPass = -1;
        private Permutation order;
        private CompletableFuture<BatchWords>
                ahead; // the words of the next batch, once one was taken
        private boolean stopped;

        Batches(NDManager manager, int firstPass, long done) {
            this.manager = manager;
            this.firstPass = firstPass;
            this.done = done;
        }

        @Override
        public boolean hasNext() {
            stopped = stopped || stop.getAsBoolean();
            return !stopped && hasMore();
        }

        @Override
        public Batch next() {
            if (stopped || !hasMore()) {
                throw new NoSuchElementException();
            }
            BatchWords words = ahead == null ? words(order(), number()) : ahead.join();
            long progress = done++;
            if (hasMore()) {
                Permutation next = order();
                int number = number();
                ahead = CompletableFuture.supplyAsync(() -> words(next, number));
            }
            return batch(manager, words, progress);
        }

        private boolean hasMore() {
            return done < (long) passes * batchesPerPass();
        }

        private int number() {
            return (int) (done % batchesPerPass());
        }

        private Permutation order() {
            int pass = (int) (done / batchesPerPass());
            if (training != null && pass != orderPass) {
                order = new Permutation(training.length, Permutation.key(seed, firstPass + pass));
                orderPass = pass;
            }
            return order;
        }
    }

    /** The Builder to construct a {@link LemmaDataset}. */
    public static final class Builder {

        private HeldOutSplit split;
        private CharNGrams nGrams;
        private int batchSize;
        private Usage usage = Usage.TRAIN;
        private int passes = 1;
        private int firstPass;
        private long seed;
        private BooleanSupplier stop = () -> false;

        Builder() {}

        /**
         * Sets the split.
         *
         * @param split the split
         * @return this builder
         */
        public Builder setSplit(HeldOutSplit split) {
            this.split = split;
            return this;
        }

        /**
         * Sets how words become rows of the embedding table.
         *
         * @param nGrams the n-grams
         * @return this builder
         */
        public Builder setNGrams(CharNGrams nGrams) {
            this.nGrams = nGrams;
            return this;
        }

        /**
         * Sets the batch size.
         *
         * @param batchSize the batch size
         * @return this builder
         */
        public Builder setBatchSize(int batchSize) {
            this.batchSize = batchSize;
            return this;
        }

        /**
         * Sets which side of the split this is: {@link Usage#TRAIN}, which holds if this is not
         * called, or anything else for the held-out forms.
         *
         * @param usage the usage
         * @return this builder
         */
        public Builder optUsage(Usage usage) {
            this.usage = usage;
            return this;
        }

        /**
         * Sets how many passes over the training pairs one call of {@link
         * LemmaDataset#getData(NDManager)} makes, 1 if this is not called. What DJL calls an epoch
         * is one such call.
         *
         * @param passes the number of passes
         * @return this builder
         */
        public Builder optPasses(int passes) {
            this.passes = passes;
            return this;
        }

        /**
         * Sets the number of the first pass, so that training that goes on where it stopped does
         * not meet the same order again.
         *
         * @param firstPass the number, from 0
         * @return this builder
         */
        public Builder optFirstPass(int firstPass) {
            this.firstPass = firstPass;
            return this;
        }

        /**
         * Sets the seed of the order. The order of a pass depends on the seed and the number of the
         * pass alone.
         *
         * @param seed the seed
         * @return this builder
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * Sets what ends the data early: it is asked before each batch, and after a yes there are
         * no more batches. Limits of time and of steps go here.
         *
         * @param stop returns true when there has been enough
         * @return this builder
         */
        public Builder optStop(BooleanSupplier stop) {
            this.stop = stop;
            return this;
        }

        /**
         * Builds the {@link LemmaDataset}.
         *
         * @return the dataset
         */
        public LemmaDataset build() {
            Preconditions.checkArgument(split != null, "You must set the split");
            Preconditions.checkArgument(nGrams != null, "You must set the n-grams");
            Preconditions.checkArgument(batchSize > 0, "The batch size must be positive");
            Preconditions.checkArgument(passes > 0, "There must be at least one pass");
            return new LemmaDataset(this);
        }
    }

    /**
     * A pseudo-random order of the numbers below a size that needs no memory: four rounds of a
     * Feistel network over the next power of four, walked until the result is in range.
     */
    static final class Permutation {

        private static final int ROUNDS = 4;

        private final int size;
        private final long key;
        private final int halfBits;
        private final int mask;

        Permutation(int size, long key) {
            this.size = size;
            this.key = key;
            int bits = Integer.SIZE - Integer.numberOfLeadingZeros(Math.max(1, size - 1));
            halfBits = (bits + 1) / 2;
            mask = (1 << halfBits) - 1;
        }

        /** Returns the number at a place of the order. */
        int get(int place) {
            long number = place;
            do {
                number = encrypt(number);
            } while (number >= size);
            return (int) number;
        }

        /** Returns a key that depends on a seed and a number. */
        static long key(long seed, long number) {
            return mix(mix(seed + 0x9e3779b97f4a7c15L) + number);
        }

        private long encrypt(long number) {
            long left = number >>> halfBits;
            long right = number & mask;
            for (int round = 1; round <= ROUNDS; round++) {
                long mixed = mix(right + round * 0x9e3779b97f4a7c15L ^ key) & mask;
                long next = left ^ mixed;
                left = right;
                right = next;
            }
            return left << halfBits | right;
        }

        private static long mix(long bits) {
            long mixed = (bits ^ bits >>> 30) * 0xbf58476d1ce4e5b9L;
            mixed = (mixed ^ mixed >>> 27) * 0x94d049bb133111ebL;
            return mixed ^ mixed >>> 31;
        }
    }

    /**
     * What a batch of words is made of, before it is arrays.
     *
     * @param rows the rows in the embedding table, of one word after another
     * @param labels the class of each word
     * @param indices which words these are
     */
    private record BatchWords(int[] rows, long[] labels, List<Integer> indices) {

        /** Returns room for some words of some rows each. */
        static BatchWords of(int size, int limit) {
            return new BatchWords(new int[size * limit], new long[size], new ArrayList<>(size));
        }
    }
}

package io.djltp.examples.lemma;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.internal.files.Permutation;
import io.djltp.zoo.CharNGrams;

import org.jspecify.annotations.Nullable;

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
    private final boolean training;
    private final long seed;
    private final BooleanSupplier stop;
    private final int[] pairs; // of a held-out form the first
    private final AtomicInteger nextPass = new AtomicInteger();

    private LemmaDataset(
            HeldOutSplit split,
            CharNGrams nGrams,
            int batchSize,
            boolean training,
            long seed,
            BooleanSupplier stop) {
        this.split = split;
        this.nGrams = nGrams;
        this.batchSize = batchSize;
        this.training = training;
        this.seed = seed;
        this.stop = stop;
        pairs = training ? split.trainingPairs() : split.heldOutPairs();
    }

    /**
     * Creates a dataset of the pairs to train on. The order of a pass depends on the seed and the
     * number of the pass alone.
     *
     * @param split the split
     * @param nGrams how words become rows of the embedding table
     * @param batchSize the batch size
     * @param seed the seed of the order
     * @param stop asked before each batch; once it returns true, there are no more batches
     * @return the dataset
     */
    public static LemmaDataset training(
            HeldOutSplit split, CharNGrams nGrams, int batchSize, long seed, BooleanSupplier stop) {
        return new LemmaDataset(split, nGrams, batchSize, true, seed, stop);
    }

    /**
     * Creates a dataset of the held-out forms.
     *
     * @param split the split
     * @param nGrams how words become rows of the embedding table
     * @param batchSize the batch size
     * @return the dataset
     */
    public static LemmaDataset heldOut(HeldOutSplit split, CharNGrams nGrams, int batchSize) {
        return new LemmaDataset(split, nGrams, batchSize, false, 0, () -> false);
    }

    /**
     * Returns the number of batches in a pass over the data.
     *
     * @return the number of batches
     */
    public int batchesPerPass() {
        return training ? pairs.length / batchSize : (pairs.length + batchSize - 1) / batchSize;
    }

    /**
     * Returns the batches of the next pass over the data, after that of the call before.
     *
     * @param manager the manager of the batches
     * @return the batches
     */
    @Override
    public Iterable<Batch> getData(NDManager manager) {
        int pass = nextPass.getAndIncrement();
        return () -> new Batches(manager, pass, 0);
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(
            NDManager manager, @Nullable ExecutorService executor, long epoch, long firstBatch) {
        return () -> new Batches(manager, (int) epoch, firstBatch);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Progress progress) {
        // all is in memory already
    }

    /** Goes through a pass. The ranks train on a batch while the words of the next are read. */
    private final class Batches implements Iterator<Batch> {

        private final NDManager manager;
        private final Permutation order;
        private long done;
        private @Nullable CompletableFuture<Words>
                ahead; // those of the next batch, once one was taken
        private boolean stopped;

        Batches(NDManager manager, int pass, long done) {
            this.manager = manager;
            this.done = done;
            order = new Permutation(pairs.length, Permutation.key(seed, pass));
        }

        @Override
        public boolean hasNext() {
            stopped = stopped || stop.getAsBoolean();
            return !stopped && done < batchesPerPass();
        }

        @Override
        public Batch next() {
            if (stopped || done >= batchesPerPass()) {
                throw new NoSuchElementException();
            }
            Words words = ahead == null ? words(done) : ahead.join();
            long number = done++;
            if (done < batchesPerPass()) {
                ahead = CompletableFuture.supplyAsync(() -> words(number + 1));
            }
            int size = words.labels.length;
            NDManager own = manager.newSubManager();
            return new Batch(
                    own,
                    new NDList(own.create(words.rows, new Shape(size, nGrams.limit()))),
                    new NDList(own.create(words.labels)),
                    size,
                    Batchifier.STACK,
                    Batchifier.STACK,
                    number,
                    batchesPerPass(),
                    words.indices);
        }

        private Words words(long number) {
            int from = (int) number * batchSize;
            int size = Math.min(batchSize, pairs.length - from);
            Words words =
                    new Words(
                            new int[size * nGrams.limit()], new long[size], new ArrayList<>(size));
            for (int i = 0; i < size; i++) {
                int pair = pairs[training ? order.get(from + i) : from + i];
                nGrams.fill(split.corpus().form(pair), words.rows, i * nGrams.limit());
                words.labels[i] = split.corpus().classOf(pair);
                words.indices.add(training ? pair : from + i);
            }
            return words;
        }
    }

    /**
     * What a batch of words is made of, before it is arrays.
     *
     * @param rows the rows in the embedding table, of one word after another
     * @param labels the class of each word
     * @param indices which words these are
     */
    private record Words(int[] rows, long[] labels, List<Integer> indices) {}
}

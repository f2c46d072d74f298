package io.djltp.classes;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.classes.ClassData.Features;
import io.djltp.head.LossOptions;
import io.djltp.internal.Errors;
import io.djltp.internal.files.Permutation;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.atomic.AtomicInteger;

/** The batches of {@link ClassData}. */
final class ClassDataset implements ResumableDataset {

    private static final int MIXED = 256; // blocks whose rows are shuffled together

    private final ClassData data;
    private final RowIndex index;
    private final int batchSize;
    private final boolean shuffle;
    private final long seed;
    private final AtomicInteger nextPass = new AtomicInteger();

    ClassDataset(ClassData data, int batchSize, boolean shuffle, long seed) {
        Errors.check(batchSize > 0, "A batch needs at least 1 row, not %s", batchSize);
        this.data = data;
        index = data.index;
        this.batchSize = batchSize;
        this.shuffle = shuffle;
        this.seed = seed;
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(NDManager manager) {
        return getData(manager, null, nextPass.getAndIncrement(), 0);
    }

    /** {@inheritDoc} */
    @Override
    public Iterable<Batch> getData(
            NDManager manager, @Nullable ExecutorService executor, long epoch, long firstBatch) {
        return () -> new Batches(manager, epoch, firstBatch);
    }

    /** {@inheritDoc} */
    @Override
    public void prepare(Progress progress) {
        // rows are read as they are needed
    }

    /** The rows of a batch before they are arrays. */
    private static final class Rows {

        private final List<Long> numbers = new ArrayList<>();
        private final List<int[]> classes = new ArrayList<>();
        private final List<int[]> ids = new ArrayList<>();
        private final List<float[]> values = new ArrayList<>();
    }

    /**
     * Goes through a pass. While a batch is in use, the next is prepared; while some blocks are in
     * use, the next are read.
     */
    private final class Batches implements Iterator<Batch> {

        private final NDManager manager;
        private final long pass;
        private final long count = (index.getRows() + batchSize - 1) / batchSize;
        private final Permutation order;
        private final boolean inOrder; // the blocks
        private final RowFile.Bytes[] files =
                data.source.files.stream().map(RowFile::bytes).toArray(RowFile.Bytes[]::new);
        private final Features kind = data.getFeatures();
        private final RowParser[] parsers = data.source.newParsers();
        private final ParsedRow parsed = data.newRow();
        private long done;
        private @Nullable CompletableFuture<Rows> ahead; // once a batch was taken

        // of the one thread that prepares
        private int nextBlock; // in the order
        private @Nullable CompletableFuture<MixedRows> nextMixed;
        private @Nullable MixedRows mixed;
        private int place; // in the mixed rows

        Batches(NDManager manager, long pass, long firstBatch) {
            this.manager = manager;
            this.pass = pass;
            done = firstBatch;
            inOrder = !shuffle || data.source.isPacked();
            order = new Permutation(index.getBlocks(), Permutation.key(seed, pass));
            skip(Math.min(index.getRows(), firstBatch * batchSize));
        }

        /** Goes to a row of the pass: what is before it is not read. */
        private void skip(long rows) {
            long left = rows;
            while (nextBlock < index.getBlocks()) {
                long inside = 0;
                for (int block : blocks(nextBlock)) {
                    inside += index.rowsOf(block);
                }
                if (inside > left) {
                    break;
                }
                left -= inside;
                nextBlock += MIXED;
            }
            place = (int) left;
        }

        /** Returns those that are mixed from a place of the order on. */
        private int[] blocks(int first) {
            int[] blocks = new int[Math.min(MIXED, index.getBlocks() - first)];
            Arrays.setAll(blocks, i -> inOrder ? first + i : order.get(first + i));
            return blocks;
        }

        private CompletableFuture<MixedRows> readMixed() {
            int first = nextBlock;
            nextBlock += MIXED;
            Long key = shuffle ? Permutation.key(Permutation.key(seed, pass), first) : null;
            return CompletableFuture.supplyAsync(
                    () -> {
                        try {
                            return new MixedRows(data.source, index, blocks(first), files, key);
                        } catch (IOException e) {
                            throw new UncheckedIOException(e);
                        }
                    });
        }

        /** Returns the mixed rows that the next row is in. */
        private MixedRows mixed() {
            MixedRows now = mixed;
            if (now == null || place == now.size()) {
                CompletableFuture<MixedRows> next = nextMixed == null ? readMixed() : nextMixed;
                place = now == null ? place : 0;
                mixed = null; // its memory is free
                now = next.join();
                mixed = now;
                nextMixed = nextBlock < index.getBlocks() ? readMixed() : null;
            }
            return now;
        }

        private Rows prepare(long number) {
            Rows rows = new Rows();
            long size = Math.min(batchSize, index.getRows() - number * batchSize);
            for (int i = 0; i < size; i++) {
                long row = mixed().parse(place++, parsers, parsed);
                parsed.resolve(row, false);
                rows.numbers.add(row);
                rows.classes.add(Arrays.copyOf(parsed.classes, parsed.classCount));
                if (kind == Features.TEXT) {
                    rows.ids.add(data.textFeatures.apply(parsed.getText()));
                } else {
                    rows.values.add(Arrays.copyOf(parsed.values, parsed.count));
                }
                if (kind == Features.SPARSE) {
                    rows.ids.add(Arrays.copyOf(parsed.ids, parsed.count));
                }
            }
            return rows;
        }

        /** {@inheritDoc} */
        @Override
        public boolean hasNext() {
            return done < count;
        }

        /** {@inheritDoc} */
        @Override
        public Batch next() {
            if (done >= count) {
                throw new NoSuchElementException();
            }
            Rows rows;
            try {
                rows = ahead == null ? prepare(done) : ahead.join();
            } catch (CompletionException e) {
                throw e.getCause() instanceof RuntimeException cause ? cause : e;
            }
            long number = done++;
            ahead = done < count ? CompletableFuture.supplyAsync(() -> prepare(number + 1)) : null;
            NDManager own = manager.newSubManager();
            return new Batch(
                    own,
                    arrays(own, kind, data.getFeatureCount(), rows.ids, rows.values),
                    labels(rows, own),
                    rows.numbers.size(),
                    Batchifier.STACK,
                    Batchifier.STACK,
                    number,
                    count,
                    rows.numbers);
        }

        private NDList labels(Rows rows, NDManager own) {
            int size = rows.numbers.size();
            int width = data.hasManyLabels() ? longest(rows.classes, size) : 1;
            long[] all = new long[size * width];
            Arrays.fill(all, data.hasManyLabels() ? -1 : LossOptions.DEFAULT_IGNORE_INDEX);
            for (int i = 0; i < size; i++) {
                int at = i * width;
                for (int number : rows.classes.get(i)) {
                    all[at++] = number;
                }
            }
            Shape shape = data.hasManyLabels() ? new Shape(size, width) : new Shape(size);
            return new NDList(own.create(all, shape));
        }
    }

    /**
     * Returns the arrays of the features of rows, as {@link ClassData} has them.
     *
     * @param manager the manager of the arrays
     * @param kind what the features are
     * @param features the number of dense features
     * @param ids rows of the table of texts, or the sparse features from 0; empty if dense
     * @param values the sparse values or the dense features; empty if texts
     */
    static NDList arrays(
            NDManager manager, Features kind, int features, List<int[]> ids, List<float[]> values) {
        NDList arrays = new NDList();
        int size = kind == Features.TEXT ? ids.size() : values.size();
        int places = kind == Features.DENSE ? features : longest(ids, size);
        Shape shape = new Shape(size, places);
        if (kind != Features.DENSE) {
            int[] all = new int[size * places];
            int shift = kind == Features.SPARSE ? 1 : 0;
            for (int i = 0; i < size; i++) {
                int at = i * places;
                for (int id : ids.get(i)) {
                    all[at++] = id + shift;
                }
            }
            arrays.add(manager.create(all, shape));
        }
        if (kind != Features.TEXT) {
            float[] all = new float[size * places];
            for (int i = 0; i < size; i++) {
                float[] own = values.get(i);
                System.arraycopy(own, 0, all, i * places, own.length);
            }
            arrays.add(manager.create(all, shape));
        }
        return arrays;
    }

    /** Returns the length of the longest row, at least 1. */
    private static int longest(List<int[]> rows, int size) {
        int longest = 1;
        for (int[] each : rows) {
            longest = Math.max(longest, each.length);
        }
        Errors.check(
                (long) size * longest < Integer.MAX_VALUE,
                "A row has %s features or labels, which are too many for batches of %s rows: use"
                        + " smaller batches",
                longest,
                size);
        return longest;
    }
}

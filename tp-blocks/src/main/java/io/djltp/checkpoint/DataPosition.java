package io.djltp.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.training.dataset.RandomAccessDataset;
import ai.djl.training.dataset.Sampler;
import ai.djl.translate.TranslateException;
import ai.djl.util.RandomUtils;

import io.djltp.internal.Errors;
import io.djltp.internal.parameters.BlockWalk;

import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.function.LongUnaryOperator;
import java.util.zip.CRC32C;

/**
 * Where a training is in its data: the epoch, how many of its batches are done, and the random
 * numbers that its order follows from.
 *
 * <p>An epoch that is resumed is begun with the random numbers that it was begun with, so that it
 * has the same order; what is drawn after that goes on from the numbers at the checkpoint.
 */
final class DataPosition {

    private static final Logger logger = LoggerFactory.getLogger(DataPosition.class);

    private static final long UNKNOWN = -1;
    private static final int LOOKED_AT = 1 << 14; // elements of an array

    private long epoch;
    private long batches; // of the epoch, that are done or at work
    private boolean begun; // whether the order of the epoch is drawn
    private long epochRandom; // when the epoch began
    private long order; // a checksum of the batches
    private long records = UNKNOWN; // a checksum of those of the dataset
    private LongUnaryOperator numbers = LongUnaryOperator.identity(); // of the dataset
    private boolean resumed; // and nothing drawn since
    private long random; // at the checkpoint

    /**
     * Returns how many epochs are left, the running one included.
     *
     * @param epochs those of the whole training
     * @param folder the folder of the checkpoints, for the error
     * @throws IllegalArgumentException if the training is beyond them
     */
    int remainingEpochs(int epochs, Path folder) {
        long begunEpochs = epoch + (batches > 0 ? 1 : 0);
        if (begunEpochs > epochs) {
            String next = batches > 0 ? " and " + batches + " batches of the next" : "";
            throw new IllegalArgumentException(
                    ("The checkpoint in %s has trained for %d epochs%s, which is beyond the %d that"
                                    + " are asked for: ask for %d epochs or more, or choose another"
                                    + " folder")
                            .formatted(folder, epoch, next, epochs, begunEpochs));
        }
        return (int) (epochs - epoch);
    }

    /** Returns whether batches of the epoch were asked for, in this process. */
    boolean isRunning() {
        return begun && !resumed;
    }

    /**
     * Begins or resumes the running epoch.
     *
     * @throws IllegalStateException if the batches that were done are not those that they were
     */
    Iterator<Batch> begin(Dataset dataset, NDManager manager, @Nullable ExecutorService executor)
            throws IOException, TranslateException {
        boolean again = resumed && begun;
        if (resumed) {
            DataRandom.restore(again ? epochRandom : random);
        }
        if (!again) {
            epochRandom = DataRandom.state();
            order = 0;
        }
        long[] skipped = {0};
        Iterator<Batch> left = skip(dataset, manager, executor, skipped); // prepares the dataset
        compareRecords(dataset, resumed && !again);
        if (again) {
            // of a ResumableDataset the batches are not known
            if (!(dataset instanceof ResumableDataset) && skipped[0] != order) {
                throw Errors.state(
                        "The first %d batches of epoch %d are not those that the checkpoint has"
                                + " seen: resume with the data and the batch size of the run"
                                + " before. Data that randomSplit(...) splits need the same"
                                + " Engine.setRandomSeed(...) before it, and a dataset whose"
                                + " order does not follow from that has to implement"
                                + " ResumableDataset",
                        batches, epoch);
            }
            DataRandom.restore(random);
        }
        begun = true;
        resumed = false;
        return left;
    }

    /**
     * Begins a pass over a dataset behind the batches that are done, with as little work as it
     * allows:
     *
     * <ul>
     *   <li>a {@link ResumableDataset} is told where to begin
     *   <li>of a {@link RandomAccessDataset} of DJL the sampler draws the order of the whole pass,
     *       and what was done is left out of it: no record is read
     *   <li>of any other the batches that were done are read once more, and dropped
     * </ul>
     *
     * @param skipped gets a checksum of the batches that are left out
     */
    private Iterator<Batch> skip(
            Dataset dataset, NDManager manager, @Nullable ExecutorService executor, long[] skipped)
            throws IOException, TranslateException {
        if (dataset instanceof ResumableDataset resumable) {
            return resumable.getData(manager, executor, epoch, batches).iterator();
        }
        if (batches > 0
                && dataset instanceof RandomAccessDataset access
                && valueOf(RandomAccessDataset.class, "sampler", dataset)
                        instanceof Sampler sampler) { // which it says to its subclasses alone
            return access.getData(manager, skipping(sampler, dataset, skipped), executor)
                    .iterator();
        }
        Iterator<Batch> all = dataset.getData(manager, executor).iterator();
        LongUnaryOperator ofWhole = numbersOf(dataset); // which is prepared now
        for (long i = 0; i < batches; i++) {
            checkMore(all, i);
            try (Batch batch = all.next()) {
                skipped[0] = checksum(skipped[0], batch, ofWhole);
            }
        }
        return all;
    }

    private Sampler skipping(Sampler sampler, Dataset dataset, long[] skipped) {
        return new Sampler() {
            @Override
            public Iterator<List<Long>> sample(RandomAccessDataset records) {
                LongUnaryOperator ofWhole = numbersOf(dataset); // which is prepared now
                Iterator<List<Long>> all = sampler.sample(records);
                for (long i = 0; i < batches; i++) {
                    checkMore(all, i);
                    skipped[0] = checksum(skipped[0], all.next(), ofWhole);
                }
                return all;
            }

            @Override
            public int getBatchSize() {
                return sampler.getBatchSize();
            }
        };
    }

    private void checkMore(Iterator<?> all, long there) {
        if (!all.hasNext()) {
            throw Errors.argument(
                    "The checkpoint was taken after batch %d of epoch %d, and the training set"
                            + " has %d: resume with the data and the batch size of the run before",
                    batches, epoch, there);
        }
    }

    /** Between two epochs other data may be meant: that is said, and no error. */
    private void compareRecords(Dataset dataset, boolean betweenEpochs) {
        long before = records;
        records = recordsOf(dataset);
        numbers = numbersOf(dataset);
        if (betweenEpochs && before != UNKNOWN && before != records) {
            logger.warn(
                    "The training set has other records than before the checkpoint, or another"
                            + " number of them. If randomSplit(...) made it, call"
                            + " Engine.setRandomSeed(...) before the split");
        }
    }

    /** Notes a batch that training gets next. */
    void add(Batch batch) {
        order = checksum(order, batch, numbers);
        batches++;
    }

    /** Notes that the epoch is over. */
    void endEpoch() {
        epoch++;
        batches = 0;
        begun = false;
    }

    /** What a checkpoint has of the position. */
    record Saved(
            long epoch,
            long batches,
            long order,
            long records,
            boolean begun,
            long epochRandom,
            long random) {}

    Saved save() {
        return new Saved(epoch, batches, order, records, begun, epochRandom, DataRandom.state());
    }

    void restore(Saved saved) {
        epoch = saved.epoch();
        batches = saved.batches();
        order = saved.order();
        records = saved.records();
        epochRandom = saved.epochRandom();
        begun = saved.begun();
        random = saved.random();
        resumed = true;
        DataRandom.restore(random); // for loops that draw without a dataset
    }

    /**
     * Returns what tells one order of the data from another: a checksum of the batches of an epoch,
     * of the numbers of their records, or of the beginning of their arrays where the dataset says
     * none.
     *
     * @param before that of the batches before
     */
    private static long checksum(long before, Batch batch, LongUnaryOperator numbers) {
        List<?> indices = batch.getIndices();
        if (indices != null && indices.stream().allMatch(Number.class::isInstance)) {
            return checksum(before, indices, numbers);
        }
        CRC32C sum = new CRC32C();
        add(sum, before);
        for (NDList arrays : List.of(batch.getData(), batch.getLabels())) {
            for (NDArray array : arrays) {
                if (!array.isSparse()) {
                    sum.update(array.getShape().getEncoded());
                    long count = Math.min(LOOKED_AT, array.size());
                    try (NDArray flat = array.flatten();
                            NDArray beginning = flat.get(new NDIndex("0:" + count))) {
                        sum.update(beginning.toByteBuffer(true));
                    }
                }
            }
        }
        return sum.getValue();
    }

    /** Returns that of records by their numbers. */
    private static long checksum(long before, List<?> indices, LongUnaryOperator numbers) {
        CRC32C sum = new CRC32C();
        add(sum, before);
        for (Object index : indices) {
            add(sum, numbers.applyAsLong(((Number) index).longValue()));
        }
        return sum.getValue();
    }

    private static void add(CRC32C sum, long number) {
        sum.update(ByteBuffer.allocate(Long.BYTES).putLong(0, number));
    }

    /** Returns a checksum of what a dataset has: of a part which records, else how many. */
    private static long recordsOf(Dataset dataset) {
        CRC32C sum = new CRC32C();
        if (dataset instanceof RandomAccessDataset access) {
            add(sum, access.size());
            LongUnaryOperator ofWhole = numbersOf(dataset);
            for (long i = 0; isPart(dataset) && i < access.size(); i++) {
                add(sum, ofWhole.applyAsLong(i));
            }
        }
        return sum.getValue();
    }

    /**
     * Returns which records the numbers of a dataset mean. A part of a dataset, of {@code
     * randomSplit} or {@code subDataset}, numbers its records from 0, whichever they are: another
     * split has the same numbers. What tells them apart are the numbers that the records have in
     * the whole.
     */
    private static LongUnaryOperator numbersOf(Dataset dataset) {
        Class<?> type = dataset.getClass();
        if (!isPart(dataset) || !(valueOf(type, "dataset", dataset) instanceof Dataset whole)) {
            return number -> number;
        }
        LongUnaryOperator ofWhole = numbersOf(whole);
        if (valueOf(type, "subIndices", dataset) instanceof List<?> all) {
            return i -> ofWhole.applyAsLong(((Number) all.get((int) i)).longValue());
        }
        if (valueOf(type, "indices", dataset) instanceof int[] all
                && valueOf(type, "from", dataset) instanceof Integer from) {
            return i -> ofWhole.applyAsLong(all[from + (int) i]);
        }
        return number -> number;
    }

    /** DJL has two kinds of parts of arrays, and two of any other records. */
    private static boolean isPart(Dataset dataset) {
        Class<?> type = dataset.getClass();
        return type.getSimpleName().startsWith("SubDataset")
                && type.getPackage() == RandomAccessDataset.class.getPackage();
    }

    /** Returns what a private field of DJL has, or null. */
    private static @Nullable Object valueOf(Class<?> type, String field, Object of) {
        try {
            return BlockWalk.valueOf(of, type.getDeclaredField(field));
        } catch (NoSuchFieldException e) {
            logger.debug("{} has no {}", type, field, e);
            return null;
        }
    }

    /**
     * The random numbers from which DJL's samplers draw the order of an epoch, and its transforms
     * what they do to an image: {@link RandomUtils#RANDOM}, one generator for the process.
     *
     * <p>A {@link Random} says its state in one way alone, when it is serialized. Its last fields
     * there are {@code boolean haveNextNextGaussian, double nextNextGaussian, long seed} and an end
     * mark. The second number of a pair of normal ones is not restored: DJL's samplers draw none.
     */
    private static final class DataRandom {

        /** What {@link Random#setSeed} adds to a seed: Knuth's multiplier. */
        private static final long SCRAMBLE = 0x5DEECE66DL;

        private static final int SEED_FROM_END = Long.BYTES + 1;

        private DataRandom() {}

        /** Returns the state of 48 bits. */
        static long state() {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
                out.writeObject(RandomUtils.RANDOM);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
            return ByteBuffer.wrap(bytes.toByteArray()).getLong(bytes.size() - SEED_FROM_END);
        }

        /** Goes on from a state. */
        static void restore(long state) {
            RandomUtils.RANDOM.setSeed(state ^ SCRAMBLE);
        }
    }
}

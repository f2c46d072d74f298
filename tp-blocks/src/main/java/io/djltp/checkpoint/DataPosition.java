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

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectOutputStream;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
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

    private long epoch;
    private long batches; // of the epoch, that are done or at work
    private boolean begun; // whether the order of the epoch is drawn
    private long epochRandom; // when the epoch began
    private BatchOrder order = new BatchOrder(0);
    private long records = UNKNOWN; // which the dataset has
    private LongUnaryOperator numbers; // of the dataset
    private boolean resumed; // and nothing drawn since
    private long random; // at the checkpoint

    /** Returns the number of the running epoch, from 0. */
    long epoch() {
        return epoch;
    }

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
    Iterator<Batch> begin(Dataset dataset, NDManager manager, ExecutorService executor)
            throws IOException, TranslateException {
        boolean again = resumed && begun;
        if (resumed) {
            DataRandom.restore(again ? epochRandom : random);
        }
        if (!again) {
            epochRandom = DataRandom.state();
            order = new BatchOrder(0);
        }
        BatchOrder skipped = new BatchOrder(0);
        Iterator<Batch> left = skip(dataset, manager, executor, skipped); // prepares the dataset
        compareRecords(dataset, resumed && !again);
        if (again) {
            if (!(dataset instanceof ResumableDataset)) { // whose batches are not known
                checkOrder(skipped);
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
     * @param skipped gets the batches that are left out, but those of a {@link ResumableDataset}
     */
    private Iterator<Batch> skip(
            Dataset dataset, NDManager manager, ExecutorService executor, BatchOrder skipped)
            throws IOException, TranslateException {
        if (dataset instanceof ResumableDataset resumable) {
            return resumable.getData(manager, executor, epoch, batches).iterator();
        }
        Sampler sampler = batches > 0 ? samplerOf(dataset) : null;
        if (sampler != null) {
            Sampler left = skipping(sampler, dataset, skipped);
            return ((RandomAccessDataset) dataset).getData(manager, left, executor).iterator();
        }
        Iterator<Batch> all = dataset.getData(manager, executor).iterator();
        LongUnaryOperator ofWhole = RecordNumbers.of(dataset); // which is prepared now
        for (long i = 0; i < batches; i++) {
            if (!all.hasNext()) {
                throw tooFew(i);
            }
            try (Batch batch = all.next()) {
                skipped.add(batch, ofWhole);
            }
        }
        return all;
    }

    private Sampler skipping(Sampler sampler, Dataset dataset, BatchOrder skipped) {
        long count = batches;
        return new Sampler() {
            @Override
            public Iterator<List<Long>> sample(RandomAccessDataset records) {
                LongUnaryOperator ofWhole = RecordNumbers.of(dataset); // which is prepared now
                Iterator<List<Long>> all = sampler.sample(records);
                for (long i = 0; i < count; i++) {
                    if (!all.hasNext()) {
                        throw tooFew(i);
                    }
                    skipped.add(all.next(), ofWhole);
                }
                return all;
            }

            @Override
            public int getBatchSize() {
                return sampler.getBatchSize();
            }
        };
    }

    private IllegalArgumentException tooFew(long there) {
        return new IllegalArgumentException(
                "The checkpoint was taken after batch "
                        + batches
                        + " of epoch "
                        + epoch
                        + ", and the training set has "
                        + there
                        + ": resume with the data and the batch size of the run before");
    }

    /** A dataset says its sampler to its subclasses alone. */
    private static Sampler samplerOf(Dataset dataset) {
        if (!(dataset instanceof RandomAccessDataset)) {
            return null;
        }
        try {
            return (Sampler) field(RandomAccessDataset.class, "sampler").get(dataset);
        } catch (ReflectiveOperationException | RuntimeException e) {
            logger.debug("The sampler of {} cannot be had: its batches are read", dataset, e);
            return null;
        }
    }

    private static Field field(Class<?> type, String name) throws NoSuchFieldException {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    /** Between two epochs other data may be meant: that is said, and not refused. */
    private void compareRecords(Dataset dataset, boolean betweenEpochs) {
        long before = records;
        records = RecordNumbers.checksum(dataset);
        numbers = RecordNumbers.of(dataset);
        if (betweenEpochs && before != UNKNOWN && before != records) {
            logger.warn(
                    "The epoch before the checkpoint was of other records than this one. Was the"
                            + " data split anew? Engine.setRandomSeed(...) before randomSplit(...)"
                            + " splits it alike");
        }
    }

    private void checkOrder(BatchOrder skipped) {
        if (skipped.checksum() != order.checksum()) {
            throw new IllegalStateException(
                    "The first "
                            + batches
                            + " batches of epoch "
                            + epoch
                            + " are not those that the checkpoint has seen: resume with the data"
                            + " and the batch size of the run before. Data that randomSplit(...)"
                            + " splits need the same Engine.setRandomSeed(...) before it, and a"
                            + " dataset whose order does not follow from that has to implement "
                            + ResumableDataset.class.getSimpleName());
        }
    }

    /** Notes a batch that training gets next. */
    void add(Batch batch) {
        order.add(batch, numbers);
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
        return new Saved(
                epoch, batches, order.checksum(), records, begun, epochRandom, DataRandom.state());
    }

    void restore(Saved saved) {
        epoch = saved.epoch();
        batches = saved.batches();
        order = new BatchOrder(saved.order());
        records = saved.records();
        epochRandom = saved.epochRandom();
        begun = saved.begun();
        random = saved.random();
        resumed = true;
        DataRandom.restore(random); // for loops that draw without a dataset
    }

    /**
     * What tells one order of the data from another: a checksum of the batches of an epoch so far,
     * of the numbers of their records, or of the beginning of their arrays where the dataset says
     * none.
     */
    private static final class BatchOrder {

        private static final int LOOKED_AT = 1 << 14; // elements of an array

        private long checksum;

        BatchOrder(long checksum) {
            this.checksum = checksum;
        }

        long checksum() {
            return checksum;
        }

        /** Adds the batch that follows, of a dataset that numbers its records so. */
        void add(Batch batch, LongUnaryOperator numbers) {
            List<?> indices = batch.getIndices();
            if (indices != null && indices.stream().allMatch(BatchOrder::isNumber)) {
                add(indices, numbers);
                return;
            }
            CRC32C sum = begin();
            addTo(sum, batch.getData());
            addTo(sum, batch.getLabels());
            checksum = sum.getValue();
        }

        /** Adds the batch that follows, by the numbers of its records. */
        void add(List<?> indices, LongUnaryOperator numbers) {
            CRC32C sum = begin();
            for (Object index : indices) {
                long number = numbers.applyAsLong(((Number) index).longValue());
                sum.update(ByteBuffer.allocate(Long.BYTES).putLong(0, number));
            }
            checksum = sum.getValue();
        }

        private static boolean isNumber(Object index) {
            return index instanceof Number;
        }

        /** The checksum of what came before goes into that of what follows. */
        private CRC32C begin() {
            CRC32C sum = new CRC32C();
            sum.update(ByteBuffer.allocate(Long.BYTES).putLong(0, checksum));
            return sum;
        }

        private static void addTo(CRC32C sum, NDList arrays) {
            for (NDArray array : arrays) {
                if (array.isSparse()) {
                    continue;
                }
                sum.update(array.getShape().getEncoded());
                boolean large = array.size() > LOOKED_AT;
                NDArray flat = array.flatten();
                NDArray beginning = large ? flat.get(new NDIndex("0:" + LOOKED_AT)) : flat;
                sum.update(beginning.toByteBuffer(true));
                beginning.close();
                flat.close();
            }
        }
    }

    /**
     * Which records the numbers of a dataset mean. A part of a dataset, of {@code randomSplit} or
     * {@code subDataset}, numbers its records from 0, whichever they are: another split has the
     * same numbers. What tells them apart are the numbers that the records have in the whole.
     */
    private static final class RecordNumbers {

        private RecordNumbers() {}

        /**
         * Returns what the numbers of a dataset's records are in the whole that it is a part of.
         */
        static LongUnaryOperator of(Dataset dataset) {
            Class<?> type = dataset.getClass();
            if (!isPart(type)) {
                return number -> number;
            }
            try {
                LongUnaryOperator ofWhole = of((Dataset) field(type, "dataset").get(dataset));
                if (type.getSimpleName().equals("SubDatasetByIndices")) {
                    List<?> all = (List<?>) field(type, "subIndices").get(dataset);
                    return i -> ofWhole.applyAsLong(((Number) all.get((int) i)).longValue());
                }
                int[] all = (int[]) field(type, "indices").get(dataset);
                int from = field(type, "from").getInt(dataset);
                return i -> ofWhole.applyAsLong(all[from + (int) i]);
            } catch (ReflectiveOperationException | RuntimeException e) {
                logger.debug("Which records are in {} cannot be known", dataset, e);
                return number -> number;
            }
        }

        /** DJL has two kinds of parts of arrays, and two of any other records. */
        private static boolean isPart(Class<?> type) {
            return type.getSimpleName().startsWith("SubDataset")
                    && type.getPackage() == RandomAccessDataset.class.getPackage();
        }

        /** Returns a checksum of what a dataset has: of a part which records, else how many. */
        static long checksum(Dataset dataset) {
            CRC32C sum = new CRC32C();
            if (dataset instanceof RandomAccessDataset) {
                long size = ((RandomAccessDataset) dataset).size();
                ByteBuffer number = ByteBuffer.allocate(Long.BYTES);
                sum.update(number.putLong(0, size).rewind());
                LongUnaryOperator ofWhole = of(dataset);
                long listed = isPart(dataset.getClass()) ? size : 0;
                for (long i = 0; i < listed; i++) {
                    sum.update(number.putLong(0, ofWhole.applyAsLong(i)).rewind());
                }
            }
            return sum.getValue();
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

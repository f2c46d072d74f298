package io.djltp.checkpoint;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.ArrayDataset;
import ai.djl.training.dataset.Batch;
import ai.djl.training.dataset.Dataset;
import ai.djl.translate.Batchifier;
import ai.djl.util.Progress;
import ai.djl.util.RandomUtils;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;

import io.djltp.testing.RecordedTest;
import io.djltp.testing.Refusals;
import io.djltp.testing.Unchecked;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Function;

/** A training that is resumed gets the batches that would have come next, whatever it was at. */
public class DataPositionTest extends RecordedTest {

    private static final int RECORDS = 23;
    private static final int BATCH = 4; // 6 batches, the last one of 3
    private static final int BATCHES = 6;
    private static final int EPOCHS = 3;

    /** Kinds of datasets: how each is made in a process. */
    @DataProvider
    public static Object[][] datasets() {
        return new Object[][] {
            {"arrays", made(DataPositionTest::arrays), null},
            {"records", made(manager -> CountedRecords.of(RECORDS, BATCH, false, 0)), null},
            {"noise", made(manager -> CountedRecords.of(RECORDS, BATCH, true, 0)), null},
            {"prefetch", made(manager -> CountedRecords.of(RECORDS, BATCH, false, 2)), "threads"},
            {"no numbers", made(manager -> new Plain(false)), null},
            {"resumable", made(manager -> new Told()), null},
        };
    }

    private static Function<NDManager, Dataset> made(Function<NDManager, Dataset> function) {
        return function;
    }

    private static ArrayDataset arrays(NDManager manager) {
        return new ArrayDataset.Builder()
                .setData(manager.arange((float) RECORDS).reshape(RECORDS, 1))
                .optLabels(manager.arange(RECORDS))
                .setSampling(BATCH, true)
                .build();
    }

    @Test(dataProvider = "datasets", timeOut = 60_000)
    public void theBatchesThatComeNext(
            String name, Function<NDManager, Dataset> made, String threads) throws Exception {
        ExecutorService executor = threads == null ? null : Executors.newFixedThreadPool(2);
        try (NDManager manager = NDManager.newBaseManager()) {
            Engine.getInstance().setRandomSeed(7);
            List<JsonObject> states = new ArrayList<>();
            List<List<Float>> expected =
                    run(made.apply(manager), new DataPosition(), manager, executor, states);
            Assert.assertEquals(expected.size(), EPOCHS * BATCHES);
            Assert.assertNotEquals(expected.get(0), expected.get(BATCHES), name);
            for (int step = 0; step < states.size(); step++) {
                Engine.getInstance().setRandomSeed(100 + step); // another process
                DataPosition position = new DataPosition();
                position.restore(read(states.get(step)));
                List<List<Float>> rest =
                        run(made.apply(manager), position, manager, executor, new ArrayList<>());
                Assert.assertEquals(rest, expected.subList(step, expected.size()), name + step);
            }
        } finally {
            if (executor != null) {
                executor.shutdown();
            }
        }
    }

    /** Goes through what is left of all epochs, and keeps the state before each batch. */
    private static List<List<Float>> run(
            Dataset dataset,
            DataPosition position,
            NDManager manager,
            ExecutorService executor,
            List<JsonObject> states)
            throws Exception {
        List<List<Float>> seen = new ArrayList<>();
        while (position.save().epoch() < EPOCHS) {
            Iterator<Batch> batches = position.begin(dataset, manager, executor);
            states.add(save(position));
            while (batches.hasNext()) {
                try (Batch batch = batches.next()) {
                    position.add(batch);
                    List<Float> values = new ArrayList<>();
                    for (float value : batch.getData().head().toFloatArray()) {
                        values.add(value);
                    }
                    seen.add(values);
                }
                states.add(save(position));
            }
            states.remove(states.size() - 1); // the next epoch begins there
            position.endEpoch();
        }
        return seen;
    }

    private static JsonObject save(DataPosition position) {
        return JsonParser.parseString(CheckpointIndex.toJson(position.save()).toString())
                .getAsJsonObject();
    }

    /** The last moment of an epoch: all of its batches are done. */
    @Test(timeOut = 60_000)
    public void anEpochOfWhichNothingIsLeft() throws Exception {
        DataPosition position = new DataPosition();
        Iterator<Batch> batches = position.begin(arrays(manager), manager, null);
        while (batches.hasNext()) {
            position.add(batches.next());
        }
        DataPosition resumed = new DataPosition();
        resumed.restore(read(save(position)));
        Assert.assertFalse(resumed.begin(arrays(manager), manager, null).hasNext());
        Assert.assertEquals(resumed.save().epoch(), 0);
        Assert.assertEquals(resumed.save().batches(), BATCHES);
    }

    @Test(timeOut = 60_000)
    public void recordsThatWereSeenAreNotRead() throws Exception {
        DataPosition position = after(CountedRecords.of(RECORDS, BATCH, false, 0), manager, 5);
        CountedRecords records = CountedRecords.of(RECORDS, BATCH, false, 0);
        Iterator<Batch> left = position.begin(records, manager, null);
        Assert.assertEquals(records.reads(), 0);
        Assert.assertEquals(left.next().getSize(), 3);
        Assert.assertEquals(records.reads(), 3);
    }

    /** What a process has read some batches of, what the next one has, and why that is another. */
    @DataProvider
    public static Object[][] others() {
        List<Long> some = List.of(1L, 3L, 5L, 7L, 9L);
        List<Long> more = List.of(1L, 3L, 5L, 7L, 8L);
        return new Object[][] {
            {records(RECORDS), 2, records(RECORDS + 1), "The first 2 batches of epoch 0 are not"},
            // parts that have the same numbers, 0 to 16, and other records
            {split(1), 2, split(2), "randomSplit(...) splits need the same Engine.setRandomSeed"},
            {
                made(manager -> arrays(manager).subDataset(some)),
                2,
                made(manager -> arrays(manager).subDataset(more)),
                "The first 2 batches of epoch 0 are not"
            },
            {
                records(RECORDS),
                6,
                records(5),
                "after batch 6 of epoch 0, and the training set has 2"
            },
            // an order that nothing tells: the batches that are read once more are others
            {
                made(manager -> new Plain(true)),
                3,
                made(manager -> new Plain(true)),
                "has to implement ResumableDataset"
            }
        };
    }

    private static Function<NDManager, Dataset> records(int count) {
        return manager -> CountedRecords.of(count, BATCH, false, 0);
    }

    private static Function<NDManager, Dataset> split(int seed) {
        return manager -> {
            Engine.getInstance().setRandomSeed(seed);
            return Unchecked.call(() -> arrays(manager).randomSplit(3, 1)[0]);
        };
    }

    @Test(dataProvider = "others", timeOut = 60_000)
    public void otherDataIsRefused(
            Function<NDManager, Dataset> before,
            int batches,
            Function<NDManager, Dataset> then,
            String why)
            throws Exception {
        if (batches == 2) { // the same is none
            after(before.apply(manager), manager, batches)
                    .begin(before.apply(manager), manager, null);
        }
        DataPosition position = after(before.apply(manager), manager, batches);
        Dataset other = then.apply(manager);
        Refusals.expect(RuntimeException.class, () -> position.begin(other, manager, null), why);
    }

    private static DataPosition after(Dataset dataset, NDManager manager, int batches)
            throws Exception {
        DataPosition position = new DataPosition();
        Iterator<Batch> all = position.begin(dataset, manager, null);
        for (int i = 0; i < batches; i++) {
            position.add(all.next());
        }
        DataPosition resumed = new DataPosition();
        resumed.restore(read(save(position)));
        return resumed;
    }

    private static Iterator<Batch> batches(NDManager manager, List<Integer> order, int first) {
        List<Batch> batches = new ArrayList<>();
        for (int begin = first * BATCH; begin < RECORDS; begin += BATCH) {
            int end = Math.min(RECORDS, begin + BATCH);
            float[] values = new float[end - begin];
            for (int i = 0; i < values.length; i++) {
                values[i] = order.get(begin + i);
            }
            NDManager own = manager.newSubManager();
            NDArray data = own.create(values);
            batches.add(
                    new Batch(
                            own,
                            new NDList(data),
                            new NDList(data.mul(2)),
                            values.length,
                            Batchifier.STACK,
                            Batchifier.STACK,
                            end,
                            RECORDS));
        }
        return batches.iterator();
    }

    private static List<Integer> shuffled(Random random) {
        List<Integer> order = new ArrayList<>();
        for (int i = 0; i < RECORDS; i++) {
            order.add(i);
        }
        Collections.shuffle(order, random);
        return order;
    }

    /** Says no numbers of records; draws from DJL's generator, or from one of its own. */
    private static final class Plain implements Dataset {

        private final boolean ownRandom;

        Plain(boolean ownRandom) {
            this.ownRandom = ownRandom;
        }

        @Override
        public Iterable<Batch> getData(NDManager manager) {
            List<Integer> order = shuffled(ownRandom ? new Random() : RandomUtils.RANDOM);
            return () -> batches(manager, order, 0);
        }

        @Override
        public void prepare(Progress progress) {
            // there is nothing to prepare
        }
    }

    /** Is told where to begin. */
    private static final class Told implements ResumableDataset {

        @Override
        public Iterable<Batch> getData(NDManager manager) {
            throw new AssertionError("it is not told where to begin");
        }

        @Override
        public Iterable<Batch> getData(
                NDManager manager, ExecutorService executor, long epoch, long firstBatch) {
            return () -> batches(manager, shuffled(new Random(epoch)), (int) firstBatch);
        }

        @Override
        public void prepare(Progress progress) {
            // there is nothing to prepare
        }
    }

    private static DataPosition.Saved read(JsonObject saved) {
        return new Gson().fromJson(saved, DataPosition.Saved.class);
    }
}

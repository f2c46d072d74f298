package io.djltp.examples.lemma;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;

import io.djltp.internal.files.Permutation;
import io.djltp.zoo.CharNGrams;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;

public class LemmaDatasetTest {

    private final HeldOutSplit split = HeldOutSplit.of(TestCorpus.verbs(50, 4), 30, 1);
    private final CharNGrams nGrams = new CharNGrams(1024, 16);
    private NDManager manager;

    @BeforeClass
    public void openManager() {
        manager = NDManager.newBaseManager();
    }

    @AfterClass
    public void closeManager() {
        manager.close();
    }

    @Test(timeOut = 60_000)
    public void batchHoldsRowsAndClassesOfItsPairs() {
        Batch batch = training(3).getData(manager).iterator().next();
        Assert.assertEquals(batch.getSize(), 16);
        Assert.assertEquals(batch.getData().singletonOrThrow().getShape(), new Shape(16, 16));
        Assert.assertEquals(batch.getData().head().getDataType(), DataType.INT32);
        Assert.assertEquals(batch.getLabels().singletonOrThrow().getShape(), new Shape(16));
        long[] labels = batch.getLabels().head().toLongArray();
        for (int i = 0; i < 16; i++) {
            int pair = (Integer) batch.getIndices().get(i);
            Assert.assertEquals(labels[i], split.corpus().classOf(pair));
            Assert.assertEquals(
                    batch.getData().head().get(i).toIntArray(),
                    nGrams.rowsOf(split.corpus().form(pair)));
        }
        batch.close();
    }

    @Test(timeOut = 60_000)
    public void passMeetsEachPairOnceAndDropsTheRest() {
        LemmaDataset dataset = training(3);
        List<Object> pairs = pairs(dataset);
        // 200 pairs without 30: 10 batches of 16, and 10 pairs are left over
        Assert.assertEquals(dataset.batchesPerPass(), 10);
        Assert.assertEquals(pairs.size(), 160);
        Assert.assertEquals(new HashSet<>(pairs).size(), 160);
    }

    @Test(timeOut = 60_000)
    public void orderDependsOnSeedAndPassAlone() {
        LemmaDataset dataset = training(3);
        List<Object> first = pairs(dataset);
        List<Object> second = pairs(dataset);
        Assert.assertNotEquals(second, first);
        Assert.assertEquals(pairs(training(3)), first);
        Assert.assertEquals(pairs(dataset.getData(manager, null, 1, 0)), second);
        Assert.assertEquals(
                pairs(training(3).getData(manager, null, 1, 4)), second.subList(64, 160));
        Assert.assertNotEquals(pairs(training(4)), first);
    }

    @Test(timeOut = 60_000)
    public void nothingComesAfterTheStop() {
        AtomicInteger asked = new AtomicInteger();
        LemmaDataset dataset =
                LemmaDataset.training(split, nGrams, 16, 3, () -> asked.incrementAndGet() > 3);
        var batches = dataset.getData(manager).iterator();
        int count = 0;
        while (batches.hasNext()) {
            batches.next().close();
            count++;
        }
        Assert.assertEquals(count, 3);
        Assert.assertFalse(batches.hasNext());
        Assert.assertThrows(NoSuchElementException.class, batches::next);
    }

    @Test(timeOut = 60_000)
    public void heldOutFormsComeInOrderAndAll() {
        LemmaDataset dataset = LemmaDataset.heldOut(split, nGrams, 16);
        Assert.assertEquals(dataset.batchesPerPass(), 2);
        int item = 0;
        for (Batch batch : dataset.getData(manager)) {
            Assert.assertEquals(batch.getSize(), item == 0 ? 16 : 14);
            long[] labels = batch.getLabels().head().toLongArray();
            for (int i = 0; i < batch.getSize(); i++) {
                Assert.assertEquals(batch.getIndices().get(i), item);
                Assert.assertEquals(split.rank(item, labels[i]), 0);
                item++;
            }
            batch.close();
        }
        Assert.assertEquals(item, 30);
    }

    private LemmaDataset training(long seed) {
        return LemmaDataset.training(split, nGrams, 16, seed, () -> false);
    }

    private List<Object> pairs(LemmaDataset dataset) {
        return pairs(dataset.getData(manager));
    }

    private static List<Object> pairs(Iterable<Batch> batches) {
        List<Object> pairs = new ArrayList<>();
        for (Batch batch : batches) {
            pairs.addAll(batch.getIndices());
            batch.close();
        }
        return pairs;
    }

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {{1}, {2}, {3}, {16}, {17}, {1000}, {65537}};
    }

    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void everyNumberComesOnce(int size) {
        Permutation order = new Permutation(size, Permutation.key(3, 1));
        int[] sorted = IntStream.range(0, size).map(order::get).sorted().toArray();
        Assert.assertEquals(sorted, IntStream.range(0, size).toArray());
    }

    @Test
    public void orderDependsOnSeedAndNumber() {
        Assert.assertEquals(order(3, 1), order(3, 1));
        Assert.assertNotEquals(order(3, 1), order(3, 2));
        Assert.assertNotEquals(order(3, 1), order(4, 1));
    }

    @Test
    public void neighboursAreScattered() {
        int[] order = order(5, 0);
        int close = 0;
        for (int i = 1; i < order.length; i++) {
            if (Math.abs(order[i] - order[i - 1]) < 10) {
                close++;
            }
        }
        // 18 of 999 distances in a random order, and 40 is more than 5 sigma away
        Assert.assertTrue(close < 40, close + " neighbours stayed close");
    }

    private static int[] order(long seed, long number) {
        Permutation order = new Permutation(1000, Permutation.key(seed, number));
        return IntStream.range(0, 1000).map(order::get).toArray();
    }
}

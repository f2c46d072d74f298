package io.djltp.classes;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;

import io.djltp.checkpoint.ResumableDataset;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/** The order of rows, in files of many blocks. Row i has feature i with value i, and label i. */
public class ClassDatasetTest {

    private static final int ROWS = 3001;

    private final Path folder = TestFolder.create();
    private NDManager manager;
    private ClassData data; // 3 times as many blocks as are mixed
    private ClassData packed; // the same rows

    @BeforeClass
    public void create() throws IOException {
        manager = NDManager.newBaseManager();
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < ROWS; i++) {
            text.append("%d %d:%d\n%s".formatted(i, i, i, i % 7 == 0 ? "\n" : ""));
        }
        Path file = Files.writeString(folder.resolve("rows.txt"), text);
        data = ClassData.builder(file).blockBytes(60).build();
        packed = ClassData.builder(ClassDataTest.packed(file)).blockBytes(60).build();
        Assert.assertTrue(data.index.getBlocks() > 600, data.index.getBlocks() + " blocks");
    }

    @AfterClass(alwaysRun = true)
    public void close() {
        manager.close();
    }

    @DataProvider
    public Object[][] orders() {
        return new Object[][] {{1, true}, {64, true}, {64, false}, {1000, true}, {5000, true}};
    }

    @Test(dataProvider = "orders", timeOut = 120_000)
    public void aPassHasEveryRowOnce(int batchSize, boolean shuffle) throws Exception {
        for (ClassData each : List.of(data, packed)) {
            List<Long> rows = rows(each.newDataset(batchSize, shuffle, 5), 0, 0);
            List<Long> inOrder = LongStream.range(0, ROWS).boxed().toList();
            Assert.assertEquals(rows.stream().sorted().toList(), inOrder);
            Assert.assertEquals(rows.equals(inOrder), !shuffle);
        }
    }

    /** Rows of a packed file stay among those of 256 blocks, a third of the file. */
    @Test(timeOut = 120_000)
    public void aPackedFileIsReadOnce() throws Exception {
        List<Long> rows = rows(packed.newDataset(64, true, 5), 0, 0);
        long first = packed.index.firstRow(256);
        List<Long> begin = rows.subList(0, (int) first);
        Assert.assertEquals(
                begin.stream().sorted().toList(), LongStream.range(0, first).boxed().toList());
        Assert.assertTrue(begin.indexOf(0L) > 9, begin + "");
    }

    @Test(timeOut = 120_000)
    public void theOrderDependsOnSeedAndPassAlone() throws Exception {
        List<Long> rows = rows(data.newDataset(64, true, 5), 3, 0);
        ResumableDataset again = data.newDataset(100, true, 5);
        Assert.assertEquals(rows(again, 3, 0), rows);
        Assert.assertNotEquals(rows(again, 2, 0), rows);
        Assert.assertNotEquals(rows(data.newDataset(64, true, 6), 3, 0), rows);
        ResumableDataset next = data.newDataset(64, true, 5);
        for (int pass = 0; pass < 2; pass++) {
            List<Long> counted = numbers(next.getData(manager).iterator());
            Assert.assertEquals(counted, rows(again, pass, 0));
        }
    }

    /** Among the rows of a batch are few neighbours, and rows from everywhere. */
    @Test(timeOut = 120_000)
    public void batchesAreMixed() throws Exception {
        List<Long> rows = rows(data.newDataset(64, true, 5), 0, 0);
        for (int from = 0; from + 64 <= ROWS; from += 64) {
            long[] batch =
                    rows.subList(from, from + 64).stream().mapToLong(x -> x).sorted().toArray();
            int close =
                    (int) IntStream.range(1, 64).filter(i -> batch[i] - batch[i - 1] < 2).count();
            Assert.assertTrue(close < 20, close + " neighbours in " + Arrays.toString(batch));
            Assert.assertTrue(batch[63] - batch[0] > ROWS / 2, Arrays.toString(batch));
        }
    }

    @DataProvider
    public Object[][] places() {
        return new Object[][] {{0}, {1}, {15}, {16}, {17}, {40}, {46}, {47}, {100}};
    }

    @Test(dataProvider = "places", timeOut = 120_000)
    public void resumedAtABatchItGoesOn(int batch) throws Exception {
        for (ClassData each : List.of(data, packed)) {
            for (boolean shuffle : new boolean[] {true, false}) {
                ResumableDataset dataset = each.newDataset(64, shuffle, 5);
                List<Long> rows = rows(dataset, 1, 0);
                List<Long> left = rows.subList(Math.min(ROWS, batch * 64), ROWS);
                Assert.assertEquals(rows(dataset, 1, batch), left);
            }
        }
    }

    @Test(timeOut = 120_000)
    public void batchesSayWhereTheyAre() throws Exception {
        Iterator<Batch> batches =
                data.newDataset(1000, true, 5).getData(manager, null, 0, 2).iterator();
        for (int i = 2; i < 4; i++) {
            try (Batch batch = batches.next()) {
                Assert.assertEquals(batch.getProgress(), i);
                Assert.assertEquals(batch.getProgressTotal(), 4);
                Assert.assertEquals(batch.getSize(), i == 3 ? 1 : 1000);
            }
        }
        Assert.assertFalse(batches.hasNext());
        Assert.assertThrows(NoSuchElementException.class, batches::next);
    }

    @Test(timeOut = 120_000)
    public void whatGoesWrongInFeaturesIsThrown() throws Exception {
        Path file = Files.writeString(folder.resolve("text.txt"), "__label__a x\n".repeat(9));
        ClassData texts =
                ClassData.builder(file)
                        .optTextFeatures(
                                text -> {
                                    throw new IllegalStateException("features");
                                })
                        .build();
        Iterator<Batch> batches =
                texts.newDataset(2, true, 0).getData(manager, null, 0, 0).iterator();
        Assert.assertThrows(IllegalStateException.class, batches::next);
        Assert.assertThrows(IllegalArgumentException.class, () -> data.newDataset(0, true, 0));
    }

    private List<Long> rows(ResumableDataset dataset, long pass, long firstBatch) throws Exception {
        return numbers(dataset.getData(manager, null, pass, firstBatch).iterator());
    }

    /** Returns the rows of batches, and checks that data and labels are theirs. */
    private static List<Long> numbers(Iterator<Batch> batches) {
        List<Long> rows = new ArrayList<>();
        while (batches.hasNext()) {
            try (Batch batch = batches.next()) {
                int[] ids = batch.getData().get(0).toIntArray();
                float[] values = batch.getData().get(1).toFloatArray();
                long[] labels = batch.getLabels().get(0).toLongArray();
                for (int i = 0; i < ids.length; i++) {
                    long row = (Long) batch.getIndices().get(i);
                    Assert.assertEquals(ids[i], row + 1);
                    Assert.assertEquals(values[i], row, 0);
                    Assert.assertEquals(labels[i], row);
                    rows.add(row);
                }
            }
        }
        return rows;
    }
}

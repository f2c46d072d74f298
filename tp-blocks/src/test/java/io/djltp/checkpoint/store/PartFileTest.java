package io.djltp.checkpoint.store;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.TimeUnit;

/** A file has the bytes that were written to it, past the page cache or through it. */
public class PartFileTest {

    private static final int CHUNK = WriteChunk.SIZE;

    private final WriteChunk spare = new WriteChunk();
    private final Random random = new Random(7);
    private Path folder;

    @BeforeMethod
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("part");
    }

    @AfterMethod(alwaysRun = true)
    public void removeFolder() throws IOException {
        DurableFiles.removeFolder(folder);
    }

    @DataProvider
    public Object[][] sizes() {
        return new Object[][] {
            {0}, {1}, {CHUNK - 1}, {CHUNK}, {CHUNK + 1}, {2 * CHUNK}, {3 * CHUNK + 4097}
        };
    }

    /** Pieces of any size; the rest goes through the page cache from a random byte on, or never. */
    @Test(dataProvider = "sizes", timeOut = 60_000)
    public void hasWhatWasWritten(int size) throws IOException {
        byte[] bytes = new byte[size];
        random.nextBytes(bytes);
        for (int round = 0; round < 4; round++) {
            Path path = folder.resolve("file" + round);
            int hurry = round == 0 ? Integer.MAX_VALUE : random.nextInt(size + 1);
            write(path, bytes, hurry);
            byte[] written = Files.readAllBytes(path);
            Assert.assertTrue(Arrays.equals(written, bytes), size + " bytes, hurry at " + hurry);
        }
    }

    private void write(Path path, byte[] bytes, int hurry) throws IOException {
        int[] done = {0};
        try (PartFile file = new PartFile(path, bytes.length, spare, () -> done[0] >= hurry)) {
            while (done[0] < bytes.length) {
                int count = Math.min(bytes.length - done[0], 1 + random.nextInt(1 << 20));
                ByteBuffer piece = ByteBuffer.wrap(bytes, done[0], count);
                Assert.assertEquals(file.write(piece), count);
                Assert.assertFalse(piece.hasRemaining());
                done[0] += count;
            }
            file.finish();
            file.sync();
        }
    }

    /** Pieces of memory that begin where the file's blocks do, or elsewhere. */
    @Test(timeOut = 60_000)
    public void takesWhatLiesAlikeWithoutACopy() throws IOException {
        int page = 4096;
        ByteBuffer memory = ByteBuffer.allocateDirect(9 * CHUNK + page).alignedSlice(page);
        byte[] bytes = new byte[memory.capacity()];
        random.nextBytes(bytes);
        memory.put(0, bytes);
        for (int round = 0; round < 20; round++) {
            Path path = folder.resolve("file" + round);
            int before = random.nextInt(2 * CHUNK); // from the heap
            boolean alike = round % 4 != 0;
            int hurry = round % 5 != 0 ? Integer.MAX_VALUE : random.nextInt(bytes.length);
            int begin = alike ? before % page : (before + 1 + random.nextInt(page - 1)) % page;
            int[] done = {begin};
            int count = 0;
            try (PartFile file = new PartFile(path, bytes.length, spare, () -> done[0] > hurry)) {
                boolean direct = file.unit() == page;
                file.write(ByteBuffer.wrap(bytes, 0, before));
                while (done[0] < bytes.length) {
                    int most = bytes.length - done[0];
                    int size = Math.min(most, 1 + random.nextInt(4 * CHUNK));
                    ByteBuffer piece = memory.duplicate().position(done[0]).limit(done[0] + size);
                    count += file.takesWithoutCopy(piece) ? 1 : 0;
                    Assert.assertEquals(file.write(piece), size);
                    done[0] += size;
                }
                file.finish();
                boolean some = count > 0;
                boolean early = hurry < bytes.length; // perhaps before the first of them
                Assert.assertEquals(some, direct && alike && (some || !early), "" + round);
            }
            byte[] written = Files.readAllBytes(path);
            Assert.assertTrue(
                    Arrays.equals(written, 0, before, bytes, 0, before)
                            && Arrays.equals(
                                    written, before, written.length, bytes, begin, bytes.length),
                    before + " bytes, then those from " + begin + " on, hurry at " + hurry);
        }
    }

    /** What nobody waits for leaves nothing in the page cache but its end. */
    @Test(timeOut = 60_000)
    public void goesPastThePageCacheUntilItIsWaitedFor() throws Exception {
        byte[] bytes = new byte[4 * CHUNK + 100];
        Path patient = folder.resolve("patient");
        write(patient, bytes, Integer.MAX_VALUE);
        Path hurried = folder.resolve("hurried");
        write(hurried, bytes, 0);
        long all = cached(hurried);
        if (all < 4 * CHUNK) {
            throw new SkipException("only " + all + " bytes are in the page cache");
        }
        long some = cached(patient);
        if (some >= all) {
            throw new SkipException("this file system takes no direct writes");
        }
        Assert.assertTrue(some < 1 << 20, "in the page cache: " + some);
    }

    private static long cached(Path file) throws Exception {
        Process process;
        try {
            process = new ProcessBuilder("fincore", "-nb", "-o", "RES", "" + file).start();
        } catch (IOException e) {
            throw new SkipException("There is no fincore: apt-get install util-linux", e);
        }
        byte[] said = process.getInputStream().readAllBytes();
        Assert.assertTrue(process.waitFor(20, TimeUnit.SECONDS));
        return Long.parseLong(new String(said, StandardCharsets.US_ASCII).trim());
    }

    /** One chunk of memory for all saves. */
    @Test
    public void givesTheChunkBack() throws IOException {
        byte[] bytes = new byte[CHUNK + 1];
        write(folder.resolve("a"), bytes, Integer.MAX_VALUE);
        ByteBuffer chunk = spare.take(folder);
        if (chunk == null) {
            throw new SkipException("this file system says nothing of its blocks");
        }
        spare.giveBack(chunk);
        write(folder.resolve("b"), bytes, CHUNK);
        PartFile given = new PartFile(folder.resolve("c"), CHUNK, spare, () -> false);
        given.write(ByteBuffer.wrap(bytes));
        given.close(); // given up
        Assert.assertSame(spare.take(folder), chunk);
    }
}

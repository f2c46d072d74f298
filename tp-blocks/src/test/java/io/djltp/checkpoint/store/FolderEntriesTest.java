package io.djltp.checkpoint.store;

import ai.djl.util.Utils;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** What lies in a folder of checkpoints and is none, and who has the folder. */
public class FolderEntriesTest {

    private Path path;

    @BeforeMethod
    public void create() throws IOException {
        path = Files.createTempDirectory("entries");
    }

    @AfterMethod(alwaysRun = true)
    public void remove() {
        Utils.deleteQuietly(path);
    }

    @Test
    public void aFileIsNoCheckpoint() throws IOException {
        Files.writeString(path.resolve("step-00000099"), "x");
        Files.createDirectory(path.resolve("step-00000007"));
        try (CheckpointFolder folder = CheckpointFolder.open(path)) {
            Assert.assertEquals(folder.getSteps(), List.of(7L));
        }
    }

    /** An interrupted thread ends a channel that it uses: the folder is given back before. */
    @Test
    public void anInterruptedThreadGivesTheFolderBack() throws IOException {
        CheckpointFolder folder = CheckpointFolder.open(path);
        Assert.assertTrue(Files.size(path.resolve(StepNames.LOCK)) > 0);
        Thread.currentThread().interrupt();
        try {
            folder.close();
        } finally {
            Assert.assertTrue(Thread.interrupted(), "the thread stays interrupted");
        }
        Assert.assertEquals(Files.size(path.resolve(StepNames.LOCK)), 0);
        CheckpointFolder.open(path).close();
    }
}

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

    /** Not even silently: a run would go on from an older one. */
    @Test
    public void whatHasTheNameOfACheckpointAndIsNoFolderIsRefused() throws IOException {
        Files.createDirectory(path.resolve("step-00000007"));
        Files.writeString(path.resolve("step-00000099.txt"), "x"); // has another name
        Path newest = path.resolve("step-00000099");
        try (CheckpointFolder folder = CheckpointFolder.open(path)) {
            Assert.assertEquals(folder.getSteps(), List.of(7L));
            Files.writeString(newest, "x");
            refuse(folder, newest);
            Files.delete(newest);
            Files.createSymbolicLink(newest, path.resolve("gone"));
            refuse(folder, newest);
            Files.delete(newest);
            Assert.assertEquals(folder.getSteps(), List.of(7L));
        }
    }

    private static void refuse(CheckpointFolder folder, Path newest) {
        for (Assert.ThrowingRunnable call :
                new Assert.ThrowingRunnable[] {folder::getSteps, folder::openNewest}) {
            String message = Assert.expectThrows(CheckpointException.class, call).getMessage();
            Assert.assertTrue(
                    message.startsWith(newest + " has the name of a checkpoint and is no folder"),
                    message);
        }
    }

    /** An interrupted thread ends a channel that it uses: the folder is given back before. */
    @Test
    public void anInterruptedThreadGivesTheFolderBack() throws IOException {
        CheckpointFolder folder = CheckpointFolder.open(path);
        Assert.assertTrue(Files.size(path.resolve(".lock")) > 0);
        Thread.currentThread().interrupt();
        try {
            folder.close();
        } finally {
            Assert.assertTrue(Thread.interrupted(), "the thread stays interrupted");
        }
        Assert.assertEquals(Files.size(path.resolve(".lock")), 0);
        CheckpointFolder.open(path).close();
    }
}

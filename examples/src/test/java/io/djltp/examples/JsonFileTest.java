package io.djltp.examples;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Whether a file can be written is found out without writing it. */
public class JsonFileTest {

    private static final int PROCESSES = 4;

    private Path folder;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("tp-json");
    }

    @AfterMethod(alwaysRun = true)
    public void deleteFolder() throws IOException {
        Files.delete(folder); // and nothing is left in it
    }

    /** As the processes of a job do, which start together. */
    @Test(timeOut = 60_000)
    public void manyCheckTheSameFileAtOnce() throws Exception {
        Path file = folder.resolve("run.json");
        ExecutorService threads = Executors.newFixedThreadPool(PROCESSES);
        CyclicBarrier together = new CyclicBarrier(PROCESSES);
        List<Future<?>> checks = new ArrayList<>();
        for (int i = 0; i < PROCESSES; i++) {
            checks.add(
                    threads.submit(
                            () -> {
                                for (int k = 0; k < 3000; k++) {
                                    together.await();
                                    JsonFile.check("--json", file);
                                }
                                return null;
                            }));
        }
        try {
            for (Future<?> check : checks) {
                check.get();
            }
        } finally {
            threads.shutdownNow();
        }
    }

    @Test
    public void whatCannotBeWrittenIsRefused() {
        for (Path file : List.of(folder, folder.resolve("none").resolve("run.json"))) {
            BadInputException e =
                    Assert.expectThrows(
                            BadInputException.class, () -> JsonFile.check("--json", file));
            Assert.assertEquals(
                    e.getMessage(),
                    "--json %s cannot be written: name a file in an existing folder with write"
                                    .formatted(file)
                            + " permission");
        }
    }
}

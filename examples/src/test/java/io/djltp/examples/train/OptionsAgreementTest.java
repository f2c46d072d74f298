package io.djltp.examples.train;

import io.djltp.examples.BadInputException;
import io.djltp.examples.FreePort;
import io.djltp.examples.JobVariables;
import io.djltp.job.Job;
import io.djltp.launch.Launcher;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import picocli.CommandLine;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Both processes of a job learn which option of {@code tp train} they do not have alike. They are
 * threads here; see {@link ManyProcessesBadInputTest} for how the command ends then.
 */
public class OptionsAgreementTest {

    private static final String ANY = "";

    private Path out;

    @BeforeClass
    public void createFolder() throws IOException {
        out = Files.createTempDirectory("tp-alike");
    }

    @AfterClass
    public void deleteFolder() throws IOException {
        Files.delete(out); // nothing was saved
    }

    /** The options of each process, and what both of them must say. */
    @DataProvider
    public Object[][] options() {
        return new Object[][] {
            {"--mode data", "--mode mixed", "--mode is data on process 0 and mixed on process 1"},
            {"--steps 5", "--steps 6", "--steps is 5 on process 0 and 6 on process 1"},
            {"--languages de", "--languages en", "--languages is de on process 0 and en on"},
            {"--backend tcp", ANY, "--backend is tcp on process 0 and auto on process 1"},
            {ANY, "--lr 3", "--lr is 0.3 on process 0 and 3.0 on process 1"},
        };
    }

    @Test(dataProvider = "options", timeOut = 60_000)
    public void bothNameTheOption(String first, String second, String expected) throws Exception {
        inBothProcesses(
                (process, port) -> {
                    String own = process == 0 ? first : second;
                    String message =
                            Assert.expectThrows(
                                            BadInputException.class,
                                            () -> agree(process, port, own))
                                    .getMessage();
                    Assert.assertTrue(message.contains(expected), message);
                });
    }

    @Test(timeOut = 60_000)
    public void theSameOptionsAgree() throws Exception {
        inBothProcesses((process, port) -> agree(process, port, "--lr 3"));
    }

    /** What a process does, with its number and the port of the job. */
    private interface Part {

        void run(int process, int port);
    }

    private static void inBothProcesses(Part part) throws Exception {
        int port = FreePort.find();
        ExecutorService threads = Executors.newFixedThreadPool(2);
        try {
            List<Future<?>> processes =
                    List.of(
                            threads.submit(() -> part.run(0, port)),
                            threads.submit(() -> part.run(1, port)));
            for (Future<?> each : processes) {
                each.get(50, TimeUnit.SECONDS);
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private void agree(int process, int port, String options) {
        TrainOptions parsed = new TrainOptions();
        new CommandLine(parsed)
                .setCaseInsensitiveEnumValuesAllowed(true)
                .parseArgs(("--out " + out + " " + options).strip().split(" "));
        parsed.check();
        Map<String, String> variables = JobVariables.of(process, 2, port);
        try (Job job = Launcher.join(variables, 2, Duration.ofSeconds(30))) {
            TrainingJob.checkAlike(parsed.alike(), job);
        }
    }
}

package io.djltp.examples.train;

import ai.djl.Device;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.internal.job.AgreedSettings;
import io.djltp.testing.FreePort;
import io.djltp.testing.TestFolder;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import picocli.CommandLine;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Processes that do not fit together: each says so in one line, and ends. */
public class ManyProcessesBadInputTest {
    private Path out;

    @BeforeClass
    public void createFolder() throws IOException {
        out = TestFolder.create();
    }

    @AfterClass(alwaysRun = true)
    public void deleteFolder() throws IOException {
        Files.delete(out); // nothing was saved
    }

    /** The RANK and WORLD_SIZE of each process, the options of each, and what all must say. */
    @DataProvider
    public static Object[][] jobs() {
        String[] two = {"0 2", "1 2"};
        String gpus = Files.exists(Path.of("/dev/nvidiactl")) ? "" : "--device gpu";
        boolean wide = Precision.BFLOAT16.whyNot(Device.cpu()).isPresent();
        return new Object[][] {
            {
                two,
                "--seed 1|--seed 2",
                "--seed is 1 on process 0 .* and 2 on process 1 .*: start all"
            },
            {two, "--tp 2|--tp 4", "says 2 ranks, process 1 .*says 4"},
            {
                two,
                "--checkpoint-steps 9|--checkpoint-steps 9 --resume",
                "--resume is false on proc"
            },
            // process 0 looks into the folder, and tells the other
            {two, "--resume-from 7", "--resume-from 7: .*has no checkpoint"},
            {two, "--tp 3", "--tp 3 ranks cannot be shared evenly by the 2 processes"},
            {two, "--backend local", "the backend local reaches the ranks of one"},
            {
                two,
                wide ? "" : "lm --timeout 30|lm --timeout 30 --precision bfloat16",
                "--precision is float32 on process 0 .* and bfloat16 on process 1 "
            },
            {two, gpus, "(NVIDIA|GPU)"}, // of which there is no driver, or none
            {
                new String[] {"0 2", "1 4"},
                "--tp 4",
                "process 0 .*says 2 processes, process 1 .*says 4: set the same world"
            },
            {
                new String[] {"0 3", "1 3", "1 3"},
                "--seed 1",
                "have the same number: give every process a RANK of its own"
            },
        };
    }

    @Test(dataProvider = "jobs", timeOut = 120_000)
    public void allSayWhatDoesNotFit(String[] ranks, String options, String expected)
            throws Exception {
        if (options.isEmpty()) {
            throw new SkipException("This machine has GPUs, or no bfloat16");
        }
        int port = FreePort.find();
        List<Map<String, String>> environments = new ArrayList<>();
        for (String each : ranks) {
            String[] numbers = each.split(" ");
            int size = Integer.parseInt(numbers[1]);
            environments.add(JobVariables.of(Integer.parseInt(numbers[0]), size, port));
        }
        String[] each = options.split("\\|");
        List<ForkedTp.Result> results =
                ForkedTp.job(environments, i -> arguments(each[Math.min(i, each.length - 1)]));
        results.forEach(result -> check(result, expected));
    }

    /** Both listen, or want to, and nobody comes. */
    @Test(timeOut = 120_000)
    public void twoMasters() throws Exception {
        int port = FreePort.find();
        Map<String, String> master = JobVariables.of(0, 2, port);
        List<ForkedTp.Result> results =
                ForkedTp.job(List.of(master, master), i -> arguments("--timeout 9"));
        String cannotListen = "Process 0 cannot listen at 127.0.0.1:" + port;
        boolean firstListens = results.get(1).err().contains(cannotListen);
        check(results.get(firstListens ? 1 : 0), cannotListen);
        check(results.get(firstListens ? 0 : 1), "process 1 of 2 did not come");
    }

    @Test(timeOut = 120_000)
    public void noMasterListens() throws Exception {
        int port = FreePort.find();
        second(
                Map.of("MASTER_PORT", "" + port),
                "--timeout 2",
                "Process 1 cannot reach process 0 at 127.0.0.1:" + port + " within 2 s");
    }

    @Test(timeOut = 120_000)
    public void anUnknownMaster() throws Exception {
        second(
                Map.of("MASTER_ADDR", "no-such-host.invalid", "TP_SECRET", "of the test"),
                "--timeout 5", // the name is asked for once at least, on a busy machine too
                "cannot reach process 0 at no-such-host.invalid:29500 .*unknown");
    }

    @Test(timeOut = 120_000)
    public void noSecretForAnotherMachine() throws Exception {
        second(Map.of("MASTER_ADDR", "192.0.2.1"), "--seed 1", "needs a secret: set TP_SECRET");
    }

    private void second(Map<String, String> variables, String options, String expected)
            throws Exception {
        Map<String, String> environment = new HashMap<>(JobVariables.of(1, 2, 29500));
        environment.putAll(variables);
        check(ForkedTp.job(List.of(environment), i -> arguments(options)).get(0), expected);
    }

    @Test(timeOut = 120_000)
    public void aPortThatIsUsed() throws Exception {
        try (ServerSocket used = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            int port = used.getLocalPort();
            List<ForkedTp.Result> results =
                    ForkedTp.job(
                            List.of(JobVariables.of(0, 2, port), JobVariables.of(1, 2, port)),
                            i -> arguments("--timeout 3"));
            check(results.get(0), "cannot listen at 127.0.0.1:" + port + ".*MASTER_PORT");
            check(results.get(1), "Process 1 cannot reach process 0 at 127.0.0.1:" + port);
        }
    }

    private String arguments(String options) {
        if (options.startsWith("lm ")) {
            return options;
        }
        String timeout = options.contains("--timeout") ? "" : " --timeout 30";
        return "train --out " + out + timeout + " " + options;
    }

    private static void check(ForkedTp.Result result, String expected) {
        Assert.assertTrue(result.status() > 0, result.toString());
        List<String> lines = result.err().lines().filter(l -> l.startsWith("tp: ")).toList();
        Assert.assertEquals(lines.size(), 1, result.toString());
        Assert.assertTrue(lines.get(0).matches("tp: .*" + expected + ".*"), lines.get(0));
        Assert.assertFalse(result.err().contains("\tat "), "a stack trace: " + result);
    }

    /** The options of two processes, and the difference; null where they agree. */
    @DataProvider
    public static Object[][] options() {
        return new Object[][] {
            {"--mode data", "--mode mixed", "--mode is data on process 0 and mixed on process 1"},
            {"--steps 5", "--steps 6", "--steps is 5 on process 0 and 6 on process 1"},
            {"--languages de", "--languages en", "--languages is de on process 0 and en on"},
            {"--backend tcp", "--seed 1", "--backend is tcp on process 0 and auto on process 1"},
            {"--seed 1", "--lr 3", "--lr is not set on process 0 and 3.0 on process 1"},
            {"--out a", "--mode mixed --out b --languages DE", null},
        };
    }

    /** Options that only process 0 uses may differ, and what is said may be what is usual. */
    @Test(dataProvider = "options")
    public void whatMustBeAlikeIsCompared(String first, String second, String expected) {
        String difference = alike(first).difference(alike(second), "process 0", "process 1");
        if (expected == null) {
            Assert.assertNull(difference);
        } else {
            Assert.assertTrue(difference.contains(expected), difference);
        }
    }

    private static AgreedSettings alike(String options) {
        TrainOptions parsed = new TrainOptions();
        CommandLine line =
                new CommandLine(CommandLine.Model.CommandSpec.forAnnotatedObject(parsed));
        line.setCaseInsensitiveEnumValuesAllowed(true).parseArgs(options.split(" "));
        parsed.check();
        return new AgreedSettings(parsed.alike(line.getCommandSpec()));
    }
}

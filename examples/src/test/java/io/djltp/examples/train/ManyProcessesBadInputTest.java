package io.djltp.examples.train;

import ai.djl.Device;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.FreePort;
import io.djltp.examples.JobVariables;
import io.djltp.torch.Precision;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

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

    private static final String ANY = "";

    private Path out;

    @BeforeClass
    public void createFolder() throws IOException {
        out = Files.createTempDirectory("tp-bad");
    }

    @AfterClass
    public void deleteFolder() throws IOException {
        Files.delete(out); // nothing was saved
    }

    /**
     * The options of each process, and what both of them must say; of options that must be alike,
     * one: see {@link OptionsAgreementTest} for others.
     */
    @DataProvider
    public Object[][] options() {
        return new Object[][] {
            {"--seed 1", "--seed 2", "--seed is 1 on process 0 and 2 on process 1"},
            {"--tp 2", "--tp 4", "says 2 ranks, process 1 .*says 4"},
            {"--checkpoint-steps 9", "--checkpoint-steps 9 --resume", "--resume is false on proc"},
            // process 0 looks into the folder, and tells the other
            {"--resume-from 7", "--resume-from 7", "--resume-from 7: .*has no checkpoint"},
            {"--tp 3", "--tp 3", "--tp 3 ranks cannot be shared evenly by the 2 processes"},
            {"--backend local", "--backend local", "the backend local reaches the ranks of one"},
        };
    }

    @Test(dataProvider = "options", timeOut = 120_000)
    public void optionsThatDoNotFit(String first, String second, String expected) throws Exception {
        both(first, second, expected);
    }

    @Test(timeOut = 120_000)
    public void aLanguageModelInTwoPrecisions() throws Exception {
        if (Precision.BFLOAT16.whyNot(Device.cpu()).isPresent()) {
            throw new SkipException("This machine has no bfloat16");
        }
        both(
                "lm --timeout 30",
                "lm --timeout 30 --precision bfloat16",
                "--precision is float32 on process 0 and bfloat16 on process 1");
    }

    @Test(timeOut = 120_000)
    public void gpusWhereThereAreNone() throws Exception {
        if (Files.exists(Path.of("/dev/nvidiactl"))) {
            throw new SkipException("This machine has GPUs");
        }
        // of which there is no driver, or none
        both("--device gpu", "--device gpu", "(NVIDIA|GPU)");
    }

    @Test(timeOut = 120_000)
    public void anotherWorldSize() throws Exception {
        int port = FreePort.find();
        String expected = "process 0 .*says 2 processes, process 1 .*says 4: set the same world";
        run(
                List.of(environment(0, 2, port), environment(1, 4, port)),
                List.of("--tp 4", "--tp 4"),
                List.of(expected, expected));
    }

    @Test(timeOut = 120_000)
    public void twoProcessesWithOneRank() throws Exception {
        int port = FreePort.find();
        String expected = "have the same number: give every process a RANK of its own";
        run(
                List.of(environment(0, 3, port), environment(1, 3, port), environment(1, 3, port)),
                List.of(ANY, ANY, ANY),
                List.of(expected, expected, expected));
    }

    /** Both listen, or want to, and nobody comes. */
    @Test(timeOut = 120_000)
    public void twoMasters() throws Exception {
        int port = FreePort.find();
        List<ForkedTp.Result> results =
                await(
                        List.of(environment(0, 2, port), environment(0, 2, port)),
                        List.of("--timeout 3", "--timeout 3"));
        String cannotListen = "Process 0 cannot listen at 127.0.0.1:" + port;
        boolean firstListens = results.get(1).err().contains(cannotListen);
        check(results.get(firstListens ? 1 : 0), cannotListen);
        check(results.get(firstListens ? 0 : 1), "process 1 of 2 did not come");
    }

    @Test(timeOut = 120_000)
    public void noMasterListens() throws Exception {
        int port = FreePort.find();
        run(
                List.of(environment(1, 2, port)),
                List.of("--timeout 2"),
                List.of("Process 1 cannot reach process 0 at 127.0.0.1:" + port + " within 2 s"));
    }

    @Test(timeOut = 120_000)
    public void anUnknownMaster() throws Exception {
        Map<String, String> environment = environment(1, 2, 29500);
        environment.put("MASTER_ADDR", "no-such-host.invalid");
        environment.put("TP_SECRET", "of the test");
        run(
                List.of(environment),
                // the name is asked for once at least, on a busy machine too
                List.of("--timeout 5"),
                List.of("cannot reach process 0 at no-such-host.invalid:29500 .*unknown"));
    }

    @Test(timeOut = 120_000)
    public void noSecretForAnotherMachine() throws Exception {
        Map<String, String> environment = environment(1, 2, 29500);
        environment.put("MASTER_ADDR", "192.0.2.1");
        run(List.of(environment), List.of(ANY), List.of("needs a secret: set TP_SECRET"));
    }

    @Test(timeOut = 120_000)
    public void aPortThatIsUsed() throws Exception {
        try (ServerSocket used = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            int port = used.getLocalPort();
            run(
                    List.of(environment(0, 2, port), environment(1, 2, port)),
                    List.of("--timeout 3", "--timeout 3"),
                    List.of(
                            "cannot listen at 127.0.0.1:" + port + ".*MASTER_PORT",
                            "Process 1 cannot reach process 0 at 127.0.0.1:" + port));
        }
    }

    /** Starts two processes of a job, of which both say the same. */
    private void both(String first, String second, String expected) throws Exception {
        int port = FreePort.find();
        run(
                List.of(environment(0, 2, port), environment(1, 2, port)),
                List.of(first, second),
                List.of(expected, expected));
    }

    private Map<String, String> environment(int rank, int size, int port) {
        return new HashMap<>(JobVariables.of(rank, size, port));
    }

    private List<String> arguments(String options) {
        if (options.startsWith("lm ")) {
            return List.of(options.split(" "));
        }
        List<String> arguments = new ArrayList<>(List.of("train", "--out", out.toString()));
        if (!options.contains("--timeout")) {
            arguments.addAll(List.of("--timeout", "30"));
        }
        if (!options.isEmpty()) {
            arguments.addAll(List.of(options.split(" ")));
        }
        return arguments;
    }

    private void run(
            List<Map<String, String>> environments, List<String> options, List<String> expected)
            throws IOException, InterruptedException {
        List<ForkedTp.Result> results = await(environments, options);
        for (int i = 0; i < results.size(); i++) {
            check(results.get(i), expected.get(i));
        }
    }

    private List<ForkedTp.Result> await(
            List<Map<String, String>> environments, List<String> options)
            throws IOException, InterruptedException {
        List<ForkedTp> processes = new ArrayList<>();
        try {
            for (int i = 0; i < environments.size(); i++) {
                processes.add(ForkedTp.start(environments.get(i), arguments(options.get(i))));
            }
            List<ForkedTp.Result> results = new ArrayList<>();
            for (ForkedTp process : processes) {
                results.add(process.await());
            }
            return results;
        } finally {
            for (ForkedTp process : processes) {
                process.close();
            }
        }
    }

    private static void check(ForkedTp.Result result, String expected) {
        Assert.assertTrue(result.status() > 0, result.toString());
        List<String> lines = result.err().lines().filter(l -> l.startsWith("tp: ")).toList();
        Assert.assertEquals(lines.size(), 1, result.toString());
        Assert.assertTrue(lines.get(0).matches("tp: .*" + expected + ".*"), lines.get(0));
        Assert.assertFalse(result.err().contains("\tat "), "a stack trace: " + result);
    }
}

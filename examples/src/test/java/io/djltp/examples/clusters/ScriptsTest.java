package io.djltp.examples.clusters;

import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.TpRun;
import io.djltp.testing.FreePort;

import org.apache.commons.io.FileUtils;
import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.net.ConnectException;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * {@code tp train} by the scripts of {@code examples/clusters}: it learns what it learns in one
 * process, and when a process is killed, it ends with an error, or is started again and goes on.
 *
 * <p>All launchers are killed with {@code -Dclusters.all=true}, one of them without.
 */
public class ScriptsTest {

    private static final boolean ALL = Boolean.getBoolean("clusters.all");
    private static final String TRAIN = "train --dim 4 --batch 32 --seed 7 --timeout 90 --steps ";
    private static final String TORCHRUN = "torchrun.sh";
    private static final String MPIRUN = "mpirun.sh";
    private static final String SLURM = "slurm.sh";
    private static final String RUN = "run";
    private static final Pattern GOING_ON = Pattern.compile("Going on after step (\\d+)");

    private static final Map<String, JsonObject> EXPECTED = new HashMap<>();

    private Path folder;
    private SlurmCluster slurm;
    private Script script;

    @BeforeMethod
    public void createFolder() throws IOException {
        folder = Files.createTempDirectory("tp-scripts");
        script = new Script(folder);
    }

    @AfterMethod(alwaysRun = true)
    public void deleteFolder() throws Exception {
        if (slurm != null) {
            slurm.stop();
            slurm = null;
        }
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    static Object[][] launches() {
        return new Object[][] {
            {TORCHRUN, "c10d", 2}, {MPIRUN, "", 2}, {SLURM, "2 nodes", 4},
        };
    }

    @Test(groups = "sweep", timeOut = 240_000)
    public void itLearnsTheSameAtAStaticRendezvous() throws Exception {
        itLearnsTheSame(TORCHRUN, "static", 2);
    }

    /** The order of sums is that of the ranks, wherever these are: every bit is the same. */
    @Test(dataProvider = "launches", timeOut = 240_000)
    public void itLearnsTheSame(String name, String how, int ranks) throws Exception {
        prepare(name);
        if (how.equals("static")) {
            script.with("TORCHRUN", Torchrun.script());
        } else if (how.equals("c10d")) {
            script.with("RDZV", "localhost:" + FreePort.find());
        }
        if (name.equals(MPIRUN) && !ALL) {
            throw new SkipException("See train.ManyProcessesTest, and -Dclusters.all=true");
        }
        try (ForkedTp launcher = start(name, TRAIN + 4, "--ntasks-per-node=2")) {
            ForkedTp.Result result = launcher.await();
            Assert.assertEquals(result.status(), 0, text(result));
        }
        assertSame(TRAIN + 4 + " --tp " + ranks, "loss", "top1", "top5", "steps", "ranks");
    }

    @DataProvider
    static Object[][] launchers() {
        return ALL
                ? new Object[][] {{TORCHRUN, 1}, {MPIRUN, 137}, {SLURM, 137}}
                : new Object[][] {{MPIRUN, 137}};
    }

    /** Of 137 = 128 + SIGKILL, torchrun makes 1. */
    @Test(dataProvider = "launchers", timeOut = 240_000)
    public void aKillEndsTheJob(String name, int status) throws Exception {
        if (!ALL) {
            throw new SkipException("With -Dclusters.all=true");
        }
        prepare(name);
        String arguments = TRAIN + "2000 --checkpoint-steps 5";
        try (ForkedTp launcher = start(name, arguments, "--ntasks-per-node=1")) {
            awaitCheckpoint(launcher);
            script.kill();
            ForkedTp.Result result = launcher.await();
            Assert.assertEquals(result.status(), status, text(result));
            Assert.assertTrue(
                    text(result).matches("(?s).*process \\d \\(rank \\d.*ended without a word.*"),
                    text(result));
        }
    }

    /** It goes on by itself, to the weights of a run that somebody has resumed by hand. */
    @Test(dataProvider = "launchers", timeOut = 360_000)
    public void aKilledJobGoesOnByItself(String name, int status) throws Exception {
        prepare(name);
        script.with("RESTARTS", "2");
        int steps = ALL ? 60 : 30;
        String arguments = TRAIN + steps + " --checkpoint-steps 5 --keep 20 --resume";
        Path byHand = folder.resolve("by-hand");
        try (ForkedTp launcher = start(name, arguments, "--ntasks-per-node=1")) {
            awaitCheckpoint(launcher);
            script.kill();
            ForkedTp.Result result = launcher.await();
            Assert.assertEquals(result.status(), 0, text(result));
            Assert.assertTrue(text(result).contains("ended without a word"), text(result));
            Matcher from = GOING_ON.matcher(text(result));
            Assert.assertTrue(from.find(), text(result));
            String checkpoint = "checkpoints/step-%08d".formatted(Long.parseLong(from.group(1)));
            FileUtils.copyDirectory(
                    folder.resolve(RUN).resolve(checkpoint).toFile(),
                    byHand.resolve(checkpoint).toFile());
        }
        TpRun resumed = run(arguments + " --tp 2", "by-hand");
        Assert.assertTrue(resumed.output().contains("Going on after step "), resumed.output());
        String weights = "model.safetensors";
        Assert.assertEquals(
                Files.mismatch(folder.resolve(RUN).resolve(weights), byHand.resolve(weights)), -1);
        Assert.assertEquals(
                TpRun.json(folder.resolve("run.json")).get("loss"),
                TpRun.json(folder.resolve("by-hand.json")).get("loss"));
    }

    /** Two machines, of which one goes: the ranks of the other go on, and hold all of the head. */
    @Test(timeOut = 360_000)
    public void torchrunGoesOnWithFewerRanks() throws Exception {
        if (!ALL) {
            throw new SkipException("With -Dclusters.all=true");
        }
        prepare(TORCHRUN);
        int port = FreePort.find();
        script.with("RESTARTS", "2").with("NODES", "1:2").with("PROCESSES", "1");
        script.with("RDZV", "localhost:" + port).with("TP_SECRET", "of both").hold();
        String arguments = TRAIN + "400 --checkpoint-steps 5 --resume";
        ForkedTp.Result result;
        try (ForkedTp stays = start(TORCHRUN, arguments, "")) {
            awaitListening(stays, port); // who comes first keeps what the agents agree on
            try (ForkedTp goes = start(TORCHRUN, arguments, "")) {
                awaitCheckpoint(goes);
            } // with its process
            script.release();
            result = stays.await();
        }
        Assert.assertEquals(result.status(), 0, text(result));
        List<String> worlds = script.worlds();
        Assert.assertEquals(worlds.subList(0, 2), List.of("2", "2"), worlds + text(result));
        Assert.assertEquals(worlds.get(worlds.size() - 1), "1", worlds + text(result));
        Assert.assertTrue(text(result).contains("Going on after step "), text(result));
        Assert.assertTrue(text(result).contains("on 1 rank,"), text(result));
    }

    private void prepare(String name) throws Exception {
        if (name.equals(TORCHRUN)) {
            Torchrun.skipWithout();
            script.with("TORCHRUN", Torchrun.COMMAND);
            script.with("MASTER_PORT", "" + FreePort.find());
        } else if (name.equals(MPIRUN)) {
            ForkedTp.skipWithout("mpirun", "apt-get install openmpi-bin libopenmpi3");
        } else {
            slurm = SlurmCluster.start();
            script.with("SLURM_CONF", slurm.conf());
        }
    }

    private ForkedTp start(String name, String arguments, String tasks) throws IOException {
        String all = arguments + " --out " + out(RUN) + " --json " + out("run.json");
        if (!name.equals(SLURM)) {
            return script.start(name, all);
        }
        return script.start(
                name, all, "sbatch", "-W", "-N", "2", tasks, "-o", out("slurm.log").toString());
    }

    /** Returns what a launcher and its processes have printed. */
    private String text(ForkedTp.Result result) throws IOException {
        Path log = out("slurm.log");
        return result + (Files.exists(log) ? Files.readString(log) : "");
    }

    private void awaitCheckpoint(ForkedTp launcher) throws Exception {
        Path checkpoint = folder.resolve("run/checkpoints/step-00000005");
        while (!Files.exists(checkpoint)) {
            assertRuns(launcher);
            Thread.sleep(10);
        }
    }

    private void awaitListening(ForkedTp launcher, int port) throws Exception {
        while (true) {
            try {
                new Socket("localhost", port).close();
                return;
            } catch (ConnectException e) {
                assertRuns(launcher);
                Thread.sleep(100);
            }
        }
    }

    private void assertRuns(ForkedTp launcher) throws Exception {
        if (!launcher.isAlive()) {
            Assert.fail(text(launcher.await()));
        }
    }

    private void assertSame(String arguments, String... figures) throws IOException {
        JsonObject one = EXPECTED.get(arguments);
        if (one == null) {
            run(arguments, "one");
            one = TpRun.json(folder.resolve("one.json"));
            EXPECTED.put(arguments, one);
        }
        JsonObject launched = TpRun.json(folder.resolve("run.json"));
        for (String figure : figures) {
            Assert.assertEquals(launched.get(figure), one.get(figure), figure);
        }
    }

    /** Runs it in this process. */
    private TpRun run(String arguments, String name) {
        String all = arguments + " --out " + out(name) + " --json " + out(name + ".json");
        TpRun run = TpRun.line(all);
        run.assertPrints(0);
        return run;
    }

    private Path out(String name) {
        return folder.resolve(name);
    }
}

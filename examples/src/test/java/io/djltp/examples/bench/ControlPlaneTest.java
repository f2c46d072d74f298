package io.djltp.examples.bench;

import com.google.gson.JsonObject;

import io.djltp.examples.TpRun;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Jobs of many members meet, and all of them learn of the end of one, by its name. */
public class ControlPlaneTest {

    private Path json;

    @BeforeMethod
    public void makeFile() throws IOException {
        json = Files.createTempFile("control-plane", ".json");
    }

    @AfterMethod
    public void deleteFile() throws IOException {
        Files.delete(json);
    }

    private JsonObject run(String... options) throws IOException {
        List<String> args = new ArrayList<>(List.of("bench", "control-plane"));
        args.addAll(List.of(options));
        args.addAll(List.of("--idle", "1", "--repeats", "1", "--json", json.toString()));
        TpRun run = TpRun.of(args.toArray(new String[0]));
        Assert.assertEquals(run.status(), 0, run.output());
        return TpRun.json(json);
    }

    private static void assertAllKnow(JsonObject row, String pattern, double seconds) {
        List<String> errors = new ArrayList<>();
        row.getAsJsonArray("errors").forEach(each -> errors.add(each.getAsString()));
        Assert.assertEquals(errors.size(), 1, "" + errors); // the same one on all members
        Assert.assertTrue(errors.get(0).matches(pattern), "" + errors);
        double known = row.get("known_s").getAsDouble();
        Assert.assertTrue(known > 0 && known < seconds, "" + known);
    }

    @Test(timeOut = 90_000)
    public void fiftyMembersLearnOfADeath() throws IOException {
        JsonObject row = run("--members", "50", "--processes", "4");
        Assert.assertEquals(row.get("members").getAsInt(), 50);
        Assert.assertTrue(row.get("join_s").getAsDouble() < 30, "" + row);
        // two for its connection, two for what it hears, and those of the JVM itself
        Assert.assertTrue(row.get("member_threads").getAsDouble() < 5, "" + row);
        assertAllKnow(row, "process 49 \\(rank 49, pid \\d+ on .*\\) ended without a word", 10);
    }

    @Test(timeOut = 60_000)
    public void aFrozenMemberIsGivenUp() throws IOException {
        JsonObject row =
                run(
                        "--members",
                        "8",
                        "--processes",
                        "3",
                        "--end",
                        "freeze",
                        "--heartbeat-timeout",
                        "2");
        assertAllKnow(row, "process 7 \\(rank 7, .*\\) has not been heard for 2 s.*", 20);
    }

    @Test(timeOut = 60_000)
    public void membersInProcessesOfTheirOwnSumOverSockets() throws IOException {
        JsonObject row = run("--members", "3", "--processes", "3", "--all-reduce", "--end", "fail");
        Assert.assertTrue(row.get("reduce_s").getAsDouble() > 0, "" + row);
        assertAllKnow(row, "rank 2 \\(process 2, pid \\d+ on .*\\) failed: .*on order", 10);
    }
}

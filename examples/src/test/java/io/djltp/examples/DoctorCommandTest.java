package io.djltp.examples;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;

/** {@code tp doctor} says what is here and tests what can be used. */
public class DoctorCommandTest {

    @Test(timeOut = 120_000)
    public void testEveryBackendIsUsedOrExplained() throws IOException {
        Path file = Files.createTempFile("doctor", ".json");
        try {
            TpRun run =
                    TpRun.of("doctor", "--tp", "3", "--megabytes", "1", "--json", file.toString());
            Assert.assertEquals(run.status(), 0, run.output());
            Assert.assertTrue(run.output().contains("All sums are right."), run.output());
            Assert.assertTrue(run.output().contains("local  yes, would be used"), run.output());
            JsonObject json = TpRun.json(file);
            Assert.assertEquals(json.get("chosen").getAsString(), "local");
            JsonObject facts = json.get("facts").getAsJsonObject();
            Assert.assertTrue(facts.has("libtorch"));
            String precisions = facts.get("precisions").getAsString();
            Assert.assertTrue(precisions.startsWith("float32"), precisions);
            // had, or why not
            Assert.assertTrue(precisions.contains("bfloat16"), precisions);
            Map<String, JsonObject> backends = new HashMap<>();
            for (JsonElement backend : json.get("backends").getAsJsonArray()) {
                JsonObject each = backend.getAsJsonObject();
                backends.put(each.get("name").getAsString(), each);
            }
            Assert.assertEquals(backends.size(), 3);
            for (String name : new String[] {"local", "tcp"}) {
                // 8, 64, 512, 4 Ki, 32 Ki, 256 Ki and 1 Mi bytes
                Assert.assertEquals(
                        backends.get(name).get("all_reduce").getAsJsonArray().size(), 7, name);
            }
        } finally {
            Files.delete(file);
        }
    }

    @Test(timeOut = 60_000)
    public void testBadSizesAreRefused() {
        TpRun run = TpRun.of("doctor", "--megabytes", "0");
        Assert.assertEquals(run.status(), 2);
        Assert.assertTrue(run.output().contains("from 1 to 1024, not 0"), run.output());
        TpRun none = TpRun.of("doctor", "--tp", "0");
        Assert.assertEquals(none.status(), 2);
        Assert.assertTrue(none.output().contains("not 0"), none.output());
    }
}

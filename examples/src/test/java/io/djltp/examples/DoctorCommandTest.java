package io.djltp.examples;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;

/** {@code tp doctor} says what is here and tests what can be used. */
public class DoctorCommandTest {

    @Test
    public void testManyRanksAreAnError() {
        TpRun.line("doctor --tp 9999").assertPrints(2, "--tp 9999 is too many for this machine");
    }

    @Test(timeOut = 120_000)
    public void testEveryBackendIsUsedOrExplained() throws IOException {
        TpRun run = TpRun.withJson("doctor --tp 3 --megabytes 1");
        run.assertPrints(0, "All sums are right.", "local  yes, would be used");
        JsonObject json = run.figures().getAsJsonObject();
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
    }
}

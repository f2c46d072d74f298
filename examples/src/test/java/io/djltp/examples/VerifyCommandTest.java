package io.djltp.examples;

import com.google.gson.JsonObject;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;

/** {@code tp verify} finds parallel layers equal to the layers that they are cut from. */
public class VerifyCommandTest {

    @DataProvider
    public Object[][] ranks() {
        return new Object[][] {{1}, {2}, {3}, {4}, {8}};
    }

    @Test(dataProvider = "ranks", timeOut = 60_000)
    public void testFormsAreEqual(int ranks) throws IOException {
        JsonObject json = TpRun.withJson("verify --tp " + ranks).figures().getAsJsonObject();
        Assert.assertTrue(json.get("equal").getAsBoolean());
        Assert.assertEquals(json.get("forms").getAsJsonArray().size(), 3);
        Assert.assertEquals(json.get("trainings").getAsJsonArray().size(), 2);
        JsonObject mlp = json.get("forms").getAsJsonArray().get(2).getAsJsonObject();
        String collectives = ranks == 1 ? "none" : "1 all-reduce";
        Assert.assertEquals(mlp.get("collectivesForward").getAsString(), collectives);
        Assert.assertEquals(mlp.get("collectivesBackward").getAsString(), collectives);
        double row = json.get("activation").getAsJsonObject().get("rowDifference").getAsDouble();
        Assert.assertEquals(row > 0.1, ranks > 1, "f(a + b) is not f(a) + f(b)");
    }
}

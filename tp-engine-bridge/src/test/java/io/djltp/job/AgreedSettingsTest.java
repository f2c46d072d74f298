package io.djltp.job;

import io.djltp.internal.job.AgreedSettings;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.LinkedHashMap;
import java.util.Map;

/** The first difference between the facts of two processes is named, after they were sent. */
public class AgreedSettingsTest {

    @DataProvider
    public Object[][] differences() {
        return new Object[][] {
            {"rate=1 mode=data", "rate=1 mode=data", null},
            {"", "", null},
            {"rate=1 mode=data", "rate=1 mode=mixed", "mode is data on A and mixed on B"},
            {"rate=1 mode=data", "rate=2 mode=mixed", "rate is 1 on A and 2 on B"},
            {"rate=1 mode=", "rate=1 mode=mixed", "mode is  on A and mixed on B"},
            {"rate=1", "rate=1 mode=data", "mode is not there on A and data on B"},
            {"rate=1 mode=data", "rate=1", "mode is data on A and not there on B"},
            {"rate=1 mode=data", "mode=data rate=1", "they come in another order"},
        };
    }

    @Test(dataProvider = "differences")
    public void theFirstDifferenceIsNamed(String first, String other, String expected) {
        Assert.assertEquals(sent(facts(first)).difference(sent(facts(other)), "A", "B"), expected);
    }

    @Test
    public void whiteSpaceIsNoBorder() {
        AgreedSettings facts = new AgreedSettings(Map.of("the\tpath", "of two\n lines"));
        String difference = sent(facts).difference(facts("the=path"), "A", "B");
        Assert.assertEquals(difference, "the path is of two lines on A and not there on B");
    }

    /** As many bytes as an exchange takes may be fewer than there are. */
    @Test
    public void aTextThatIsCutOffIsRead() {
        String text = facts("rate=1 mode=data").write();
        AgreedSettings cut =
                AgreedSettings.read(text.substring(0, text.length() - 6)); // within "mode"
        String difference = cut.difference(AgreedSettings.read("rate\t2"), "A", "B");
        Assert.assertEquals(difference, "rate is 1 on A and 2 on B");
    }

    private static AgreedSettings sent(AgreedSettings facts) {
        return AgreedSettings.read(facts.write());
    }

    private static AgreedSettings facts(String text) {
        Map<String, String> values = new LinkedHashMap<>();
        for (String each : text.isEmpty() ? new String[0] : text.split(" ")) {
            String[] parts = each.split("=", 2);
            values.put(parts[0], parts[1]);
        }
        return new AgreedSettings(values);
    }
}

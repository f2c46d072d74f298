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

    /** Each process learns what another one than process 0 says, and one that is alone nothing. */
    @Test(timeOut = 60_000)
    public void allProcessesAreTold() throws Exception {
        AgreedSettings.check(null, "rates", Map.of(), "none");
        Jobs.each(
                3,
                3,
                job -> {
                    AgreedSettings.check(job, "equal", Map.of("rate", "1"), "none");
                    Map<String, String> own = Map.of("rate", job.getProcess() < 2 ? "1" : "2");
                    Jobs.assertThrows(
                            IllegalArgumentException.class,
                            "rate is 1 on process 0 \\(rank 0, pid \\d+ on .*\\) and 2 on process 2"
                                    + " \\(rank 2, pid \\d+ on .*\\): set one",
                            () -> AgreedSettings.check(job, "other", own, "set one"));
                });
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

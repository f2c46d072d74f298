package io.djltp.examples;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** The script of {@code tp completion}, in a bash that reads keys. */
public class CompletionCommandTest {

    private Path script;

    @BeforeClass
    public void printScript() throws IOException {
        ForkedTp.skipWithout("bash", "apt-get install bash");
        TpRun run = TpRun.of("completion");
        run.assertPrints(0);
        script = Files.createTempFile("tp", ".bash");
        Files.writeString(script, run.output());
    }

    @AfterClass(alwaysRun = true)
    public void deleteScript() throws IOException {
        if (script != null) {
            Files.delete(script);
        }
    }

    @DataProvider
    public static Object[][] keys() {
        return new Object[][] {
            {"tp tra\t", "train"},
            {"tp doct\t", "doctor"},
            {"tp train --langu\t", "train --languages"},
            {"./tp comp\t", "completion"},
        };
    }

    @Test(dataProvider = "keys", timeOut = 60_000)
    public void tabCompletes(String keys, String expected)
            throws IOException, InterruptedException {
        Process bash =
                new ProcessBuilder(List.of("bash", "--norc", "--noprofile", "-i"))
                        .directory(script.getParent().toFile())
                        .redirectErrorStream(true)
                        .start();
        String text =
                "source '"
                        + script
                        + "'\n"
                        + "tp() { printf 'called with <%s>\\n' \"$*\"; }\n"
                        + "function ./tp() { tp \"$@\"; }\n"
                        + keys
                        + "\nexit\n";
        bash.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
        bash.getOutputStream().close();
        String output = new String(bash.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        bash.waitFor();
        Assert.assertTrue(output.contains("called with <" + expected + ">"), output);
    }
}

package io.djltp.architecture;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** Messages cost nothing as long as nobody reads them. */
public class MessagesTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();

    private static final String TEXT = "\"(?:[^\"\\\\]|\\\\.)*+\"";

    /** A check: its condition, and behind the first text its values. */
    private static final Pattern CHECK =
            Pattern.compile(
                    "Errors\\.check(?:State)?\\([^;\"]*+((?:" + TEXT + "|[^;\"])*+);",
                    Pattern.DOTALL);

    private static final Pattern WRITES =
            Pattern.compile("Arrays\\.toString|\\.stream\\(|\\.formatted\\(|String\\.join");

    @Test(timeOut = 60_000)
    public void checksThatHoldWriteNoText() throws IOException {
        List<String> found = new ArrayList<>();
        int checks = 0;
        try (Stream<Path> files = Files.walk(ROOT)) {
            for (Path file : files.filter(MessagesTest::isSource).toList()) {
                for (MatchResult each : CHECK.matcher(Files.readString(file)).results().toList()) {
                    checks++;
                    if (WRITES.matcher(each.group(1).replaceAll(TEXT, "")).find()) {
                        found.add(file + ": " + each.group());
                    }
                }
            }
        }
        Assert.assertTrue(checks > 150, checks + " checks");
        Assert.assertEquals(found, List.of(), "write: if (...) throw Errors.argument(...)");
    }

    private static boolean isSource(Path file) {
        return file.toString().matches(".*/src/main/.*\\.java");
    }
}

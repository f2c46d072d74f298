package io.djltp.examples.docs;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * A block of Java that a page says is run by a test, {@code <!-- java skipped: run by Class#method
 * -->}, stands in that test, but for white space and comments.
 */
public class QuotedTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();

    private static final Pattern QUOTE =
            Pattern.compile(
                    "<!-- java skipped: run by (\\w+)#(\\w+) -->\n```java\n(.*?)\n```",
                    Pattern.DOTALL);

    @Test
    public void theTestHasTheCodeOfThePage() throws IOException {
        int count = 0;
        for (Path page : Page.paths(ROOT)) {
            Matcher quotes = QUOTE.matcher(Files.readString(page));
            for (; quotes.find(); count++) {
                String source = Files.readString(source(quotes.group(1)));
                String where = page.getFileName() + ": " + quotes.group();
                Assert.assertTrue(source.contains("void " + quotes.group(2) + "("), where);
                Assert.assertTrue(words(source).contains(words(quotes.group(3))), where);
            }
        }
        Assert.assertEquals(count, 4);
    }

    private static Path source(String test) throws IOException {
        List<Path> found = new ArrayList<>();
        for (String module : List.of("tp-engine-bridge", "tp-blocks", "examples")) {
            try (Stream<Path> files = Files.walk(ROOT.resolve(module).resolve("src/test/java"))) {
                files.filter(file -> file.endsWith(test + ".java")).forEach(found::add);
            }
        }
        Assert.assertEquals(found.size(), 1, test);
        return found.get(0);
    }

    private static String words(String code) {
        return code.replaceAll("//[^\n]*", "").replaceAll("\\s+", "");
    }
}

package io.djltp.examples.docs;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.StringTokenizer;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Pages are few and short, and lead to each other, to every picture, and by code to tests. */
public class PageLinksTest {
    private static final Path ROOT = SnippetsTest.ROOT;
    private static final Path README = ROOT.resolve("README.md");
    private static final Path DOCS = ROOT.resolve("docs");
    private static final Pattern CODE = Pattern.compile("(?ms)^```.*?^```$|`[^`\n]*`");
    private static final Pattern LINK = Pattern.compile("\\]\\(([^)\\s]+)\\)");
    private static final Pattern HEADING = Pattern.compile("(?m)^#+ (.*)$");
    private static final Pattern TEST = Pattern.compile("\\b[A-Z]\\w*Test\\b");
    private static final Pattern QUOTE =
            Pattern.compile("(?s)<!-- java skipped: run by (\\w+)#(\\w+) -->\n```java\n(.*?)\n```");

    @Test
    public void everyLinkLeadsSomewhere() throws IOException {
        Set<String> broken = new TreeSet<>();
        for (Path page : SnippetsTest.pages()) {
            for (String link : links(page)) {
                String[] parts = link.split("#", 2);
                Path target = parts[0].isEmpty() ? page : page.resolveSibling(parts[0]);
                boolean there = Files.exists(target);
                if (!there || parts.length > 1 && !anchors(target).contains(parts[1])) {
                    broken.add(ROOT.relativize(page) + ": " + link);
                }
            }
        }
        Assert.assertEquals(broken, Set.of());
    }

    @Test
    public void theReadmeLeadsToEveryPage() throws IOException {
        Assert.assertEquals(notReached(files(DOCS, ".md"), List.of(README)), Set.of());
    }

    @Test
    public void theArchitectureLeadsToEveryDecision() throws IOException {
        List<Path> architecture = List.of(DOCS.resolve("architecture.md"));
        Assert.assertEquals(
                notReached(files(DOCS.resolve("decisions"), ".md"), architecture), Set.of());
    }

    @Test
    public void everyPictureIsShown() throws IOException {
        List<Path> pictures = files(DOCS.resolve("images"), ".svg", ".png");
        Assert.assertEquals(notReached(pictures, SnippetsTest.pages()), Set.of());
    }

    @Test
    public void theManualIsShort() throws IOException {
        int words = 0;
        for (Path page : manual()) {
            words += new StringTokenizer(Files.readString(page)).countTokens();
        }
        Assert.assertTrue(words <= 24_000, "README and docs have " + words + " words");
        Assert.assertTrue(Files.readAllLines(README).size() <= 120, "the README is too long");
        Assert.assertTrue(files(DOCS, ".md").size() <= 12, "there are too many pages");
    }

    /** What is tested is a matter of maintainers: users read what a class does. */
    @Test
    public void noPageNamesATest() throws IOException {
        Set<String> found = new TreeSet<>();
        for (Path page : manual()) {
            Matcher names = TEST.matcher(Files.readString(page).replaceAll("(?s)<!--.*?-->", ""));
            while (names.find()) {
                found.add(ROOT.relativize(page) + ": " + names.group());
            }
        }
        Assert.assertEquals(found, Set.of());
    }

    /** The README and all pages of docs. */
    private static List<Path> manual() throws IOException {
        return SnippetsTest.pages().stream()
                .filter(page -> page.equals(README) || page.startsWith(DOCS))
                .toList();
    }

    private static List<Path> files(Path folder, String... ends) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.filter(file -> Stream.of(ends).anyMatch(file.toString()::endsWith))
                    .toList();
        }
    }

    private static Set<Path> notReached(List<Path> targets, List<Path> pages) throws IOException {
        Set<Path> missing = new TreeSet<>(targets);
        for (Path page : pages) {
            for (String link : links(page)) {
                missing.remove(page.resolveSibling(link.split("#")[0]).normalize());
            }
        }
        return missing;
    }

    private static Set<String> links(Path page) throws IOException {
        return LINK.matcher(CODE.matcher(Files.readString(page)).replaceAll(""))
                .results()
                .map(each -> each.group(1))
                .filter(link -> !link.matches("\\w+:.*"))
                .collect(Collectors.toCollection(TreeSet::new));
    }

    /** As those who show Markdown name headings: lower case, hyphens, no punctuation. */
    private static Set<String> anchors(Path page) throws IOException {
        String text = Files.readString(page).replaceAll("(?ms)^```.*?^```$", "");
        return HEADING.matcher(text)
                .results()
                .map(each -> each.group(1).toLowerCase(Locale.ROOT))
                .map(each -> each.replaceAll("[^\\p{L}\\p{N}_ -]", "").strip().replace(' ', '-'))
                .collect(Collectors.toSet());
    }

    /** A block that a page says a test runs stands in it, but for white space and comments. */
    @Test
    public void theTestHasTheCodeOfThePage() throws IOException {
        int count = 0;
        for (Path page : SnippetsTest.pages()) {
            Matcher quotes = QUOTE.matcher(Files.readString(page));
            for (; quotes.find(); count++) {
                String source = source(quotes.group(1));
                String where = page.getFileName() + ": " + quotes.group();
                Assert.assertTrue(source.contains("void " + quotes.group(2) + "("), where);
                Assert.assertTrue(words(source).contains(words(quotes.group(3))), where);
            }
        }
        Assert.assertEquals(count, 4);
    }

    private static String source(String test) throws IOException {
        try (Stream<Path> files = Files.walk(ROOT)) {
            List<Path> found = files.filter(file -> file.endsWith(test + ".java")).toList();
            Assert.assertEquals(found.size(), 1, test);
            return Files.readString(found.get(0));
        }
    }

    private static String words(String code) {
        return code.replaceAll("//[^\n]*", "").replaceAll("\\s+", "");
    }
}

package io.djltp.examples.docs;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Pages lead somewhere: to each other by links, from the README to all, and to tests by code. */
public class PageLinksTest {
    private static final Path ROOT = SnippetsTest.ROOT;
    private static final Pattern CODE = Pattern.compile("(?ms)^```.*?^```$|`[^`\n]*`");
    private static final Pattern LINK = Pattern.compile("\\]\\(([^)\\s]+)\\)");
    private static final Pattern HEADING = Pattern.compile("(?m)^#+ (.*)$");
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
        Path readme = ROOT.resolve("README.md");
        Set<Path> reached =
                links(readme).stream()
                        .map(link -> ROOT.resolve(link.split("#")[0]).normalize())
                        .collect(Collectors.toSet());
        List<Path> missing =
                SnippetsTest.pages().stream()
                        .filter(page -> !page.equals(readme) && !reached.contains(page))
                        .toList();
        Assert.assertEquals(missing, List.of(), "not linked from the README");
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

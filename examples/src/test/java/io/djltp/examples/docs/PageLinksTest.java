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
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Links between the pages lead somewhere, and the README leads to every page. */
public class PageLinksTest {

    private static final Path ROOT =
            Path.of(System.getProperty("basedir", ".")).toAbsolutePath().normalize().getParent();
    private static final Pattern CODE = Pattern.compile("(?ms)^```.*?^```$|`[^`\n]*`");
    private static final Pattern LINK = Pattern.compile("\\]\\(([^)\\s]+)\\)");
    private static final Pattern HEADING = Pattern.compile("(?m)^#+ (.*)$");

    @Test
    public void everyLinkLeadsSomewhere() throws IOException {
        Set<String> broken = new TreeSet<>();
        for (Path page : Page.paths(ROOT)) {
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
                Page.paths(ROOT).stream()
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
                .map(PageLinksTest::anchor)
                .collect(Collectors.toCollection(TreeSet::new));
    }

    private static String anchor(MatchResult heading) {
        return heading.group(1)
                .toLowerCase(Locale.ROOT)
                .replaceAll("[^\\p{L}\\p{N}_ -]", "")
                .strip()
                .replace(' ', '-');
    }
}

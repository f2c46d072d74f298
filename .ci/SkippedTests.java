import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

import javax.xml.parsers.DocumentBuilder;
import javax.xml.parsers.DocumentBuilderFactory;

import org.w3c.dom.Element;
import org.w3c.dom.NodeList;

/**
 * Prints how many tests of a build were skipped, and for want of what: the arguments are the root of the project and
 * the time at which the build began. Prints nothing where no test was run.
 */
public class SkippedTests {

    public static void main(String[] arguments) throws Exception {
        Path root = Path.of(arguments[0]).toRealPath();
        Instant start = Instant.parse(arguments[1]);
        DocumentBuilder parser = DocumentBuilderFactory.newInstance().newDocumentBuilder();
        Map<String, Integer> skipped = new TreeMap<>();
        int run = 0;
        int all = 0;
        for (Path report : reports(root, start)) {
            NodeList tests = parser.parse(report.toFile()).getElementsByTagName("testcase");
            for (int i = 0; i < tests.getLength(); i++) {
                NodeList marks = ((Element) tests.item(i)).getElementsByTagName("skipped");
                if (marks.getLength() == 0) {
                    run++;
                } else {
                    skipped.merge(((Element) marks.item(0)).getAttribute("message"), 1, Integer::sum);
                    all++;
                }
            }
        }
        if (run + all > 0) {
            System.out.printf("%n%,d tests were run, %,d were skipped:%n", run, all);
            skipped.entrySet().stream()
                    .filter(each -> each.getKey().contains("install"))
                    .sorted(Map.Entry.comparingByValue(Comparator.reverseOrder()))
                    .forEach(each -> System.out.printf("%,7d  %s%n", each.getValue(), each.getKey()));
            int others = skipped.entrySet().stream()
                    .filter(each -> !each.getKey().contains("install"))
                    .mapToInt(Map.Entry::getValue)
                    .sum();
            System.out.printf("%,7d  for what this machine, the backend or the settings are%n%n", others);
        }
    }

    private static List<Path> reports(Path root, Instant start) throws IOException {
        try (Stream<Path> files = Files.walk(root, 5)) {
            return files.filter(file -> root.relativize(file).toString().matches(".*surefire-reports.*TEST-.*[.]xml"))
                    .filter(file -> !Files.isSymbolicLink(file) && lastModified(file).isAfter(start))
                    .toList();
        }
    }

    private static Instant lastModified(Path file) {
        return Instant.ofEpochMilli(file.toFile().lastModified());
    }
}

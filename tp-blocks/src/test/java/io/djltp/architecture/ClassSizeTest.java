package io.djltp.architecture;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

/** Source files are small: with comments, blank lines and imports. */
public class ClassSizeTest {

    private static final int MOST = 330; // about 300: what is public is described in full
    private static final int MEDIAN = 100;
    private static final List<String> MODULES =
            List.of(
                    "tp-engine-bridge",
                    "tp-blocks",
                    "tp-blocks/spark",
                    "examples",
                    "examples/spark");

    @Test
    public void classesAreSmall() throws IOException {
        Map<String, Integer> lines = new TreeMap<>();
        for (String module : MODULES) {
            Path sources =
                    Path.of(System.getProperty("basedir", "."), "..", module, "src/main/java");
            try (Stream<Path> files = Files.walk(sources)) {
                for (Path file : files.filter(ClassSizeTest::isClass).toList()) {
                    lines.put(sources.relativize(file).toString(), Files.readAllLines(file).size());
                }
            }
        }
        Map<String, Integer> large = new TreeMap<>(lines);
        large.values().removeIf(size -> size <= MOST);
        Assert.assertEquals(large, Map.of(), "longer than " + MOST + " lines");
        List<Integer> sizes = new ArrayList<>(lines.values());
        sizes.sort(null);
        int median = sizes.get(sizes.size() / 2);
        Assert.assertTrue(median <= MEDIAN, "the median is " + median);
    }

    private static boolean isClass(Path file) {
        String name = file.getFileName().toString();
        return name.endsWith(".java") && !name.equals("package-info.java");
    }
}

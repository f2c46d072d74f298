package io.djltp.classes;

import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;

public class TextFeaturesTest {

    @DataProvider
    public static Object[][] texts() {
        return new Object[][] {
            {new TextFeatures(1 << 16, 3, 5, 2), 1, "Der Öltanker  liegt\n\nim Hafen."},
            {new TextFeatures(1000, 1, 2, 1), 1, " Київ 東京 \uD83D\uDE00 \uD83D x"},
            {new TextFeatures(2, 2, 30, 4), 1, "a bb ccc dddd"},
            {new TextFeatures(1 << 16, 2, 5, 1, 2), 1, "a zu den Öltankern"},
            {new TextFeatures(1 << 16, 0, 0, 2, 1), 1, "Київ 東京 singt"},
            {new TextFeatures(Integer.MAX_VALUE, 0, 0, 3), 1, "no part of a word"},
            {new TextFeatures(1 << 20, 3, 6, Integer.MAX_VALUE), 1, "<a> b <>"},
            {new TextFeatures(1 << 20, 3, 6, 5), 2000, "ein Satz\tmit Wörtern "},
            {new TextFeatures(9, 1, 1, 2), 1, ""},
            {new TextFeatures(9, 1, 1, 2), 1, " \t\u0000\n "},
            {new TextFeatures(9, 1, 1, 2), 3000, "w"},
        };
    }

    @Test(dataProvider = "texts")
    public void idsEqualAPlainImplementation(TextFeatures features, int times, String part) {
        String text = part.repeat(times);
        List<Integer> expected = new ArrayList<>();
        List<String> words =
                Arrays.stream(text.split("[ \\t-\\r\\x00]+")).filter(w -> !w.isEmpty()).toList();
        for (String word : words) {
            int[] marked = ("<" + word + ">").codePoints().toArray();
            if (features.beginnings() == 0 || marked.length < 5) {
                expected.add(row(hash("<" + word + ">"), features));
            }
            for (int i = 0; i < marked.length; i++) {
                for (int n = 1; i + n <= marked.length && n < marked.length; n++) {
                    int row = row(hash(new String(marked, i, n)), features);
                    boolean mark = n == 1 && (i == 0 || i == marked.length - 1);
                    if (n >= features.minChars() && n <= features.maxChars() && !mark) {
                        expected.add(row);
                    }
                    if (i == 0 && n > 3) {
                        expected.addAll(Collections.nCopies(features.beginnings(), row));
                    }
                }
            }
        }
        for (int i = 0; i < words.size(); i++) {
            long hash = hash(words.get(i));
            for (int j = i + 1; j < words.size() && j - i < features.wordNGrams(); j++) {
                hash = hash * 116049371 + hash(words.get(j));
                expected.add(row(hash, features));
            }
        }
        Assert.assertEquals(Arrays.stream(features.ids(text)).boxed().toList(), expected);
    }

    /** FNV-1a, which fastText computes with signed bytes. */
    private static int hash(String text) {
        int hash = 0x811c9dc5;
        for (byte each : text.getBytes(StandardCharsets.UTF_8)) {
            hash = (hash ^ each) * 0x01000193;
        }
        return hash;
    }

    private static int row(int hash, TextFeatures features) {
        return 1 + (int) (Integer.toUnsignedLong(hash) % (features.rows() - 1));
    }

    private static int row(long hash, TextFeatures features) {
        return 1 + (int) Long.remainderUnsigned(hash, features.rows() - 1);
    }

    /** A saved model is of use only as long as these stay. */
    @Test
    public void idsAreTheSameInEveryRun() {
        Assert.assertEquals(
                new TextFeatures(1 << 16, 3, 3, 2).ids("Öl ab"),
                new int[] {59750, 47904, 14159, 4453, 44929, 50277, 31505});
    }

    /** The vector of a text that has no known word is the mean of the rows of its parts. */
    @Test(timeOut = 60_000)
    public void vectorsEqualFastText() throws IOException, InterruptedException {
        int bucket = 5000;
        Path folder = TestFolder.create();
        Path file = Files.writeString(folder.resolve("data"), "__label__a known words\n");
        fastText(
                folder,
                "",
                ("supervised -input %s -output %s -bucket %d -minn 2 -maxn 6 -wordNgrams 3 -dim 8"
                                + " -thread 1 -epoch 1 -verbose 0")
                        .formatted(file, folder.resolve("model"), bucket)
                        .split(" "));
        String model = folder.resolve("model.bin").toString();
        double[][] table =
                fastText(folder, "", "dump", model, "input").stream()
                        .skip(1)
                        .map(TextFeaturesTest::vector)
                        .toArray(double[][]::new);
        Random random = new Random(3);
        for (int i = 0; i < 5; i++) {
            // words whose marked form is an n-gram, which is their row here
            StringBuilder text = new StringBuilder();
            for (int word = 0; word < 7; word++) {
                random.ints(1 + random.nextInt(4), 0, 30)
                        .forEach(letter -> text.appendCodePoint(letter < 26 ? 'a' + letter : 'ф'));
                text.append(' ');
            }
            int[] ids = new TextFeatures(bucket + 1, 2, 6, 3).ids(text);
            double[] expected =
                    vector(
                            fastText(folder, text.toString(), "print-sentence-vectors", model)
                                    .get(0));
            for (int d = 0; d < expected.length; d++) {
                double sum = 0;
                for (int id : ids) {
                    sum += table[table.length - bucket + id - 1][d];
                }
                Assert.assertEquals(sum / ids.length, expected[d], 1e-5, "text " + text);
            }
        }
    }

    private static double[] vector(String line) {
        return Arrays.stream(line.trim().split(" ")).mapToDouble(Double::parseDouble).toArray();
    }

    private static List<String> fastText(Path folder, String input, String... arguments)
            throws IOException, InterruptedException {
        List<String> command = new ArrayList<>(List.of("fasttext"));
        command.addAll(List.of(arguments));
        Path output = folder.resolve("output");
        Path in = Files.writeString(folder.resolve("input"), input);
        Process process;
        try {
            process =
                    new ProcessBuilder(command)
                            .redirectInput(in.toFile())
                            .redirectOutput(output.toFile())
                            .redirectError(ProcessBuilder.Redirect.DISCARD)
                            .start();
        } catch (IOException e) {
            throw new SkipException("fastText is not installed", e);
        }
        try {
            Assert.assertTrue(process.waitFor(30, TimeUnit.SECONDS));
        } finally {
            process.destroyForcibly();
        }
        Assert.assertEquals(process.exitValue(), 0);
        return Files.readAllLines(output);
    }

    @DataProvider
    public static Object[][] wrong() {
        return new Object[][] {
            {1, 3, 6, 1, "2 or more rows of a table, not 1"},
            {9, 0, 6, 1, "1 <= minChars <= maxChars, or 0 and 0 for none, not 0 and 6"},
            {9, 4, 3, 1, "not 4 and 3"},
            {9, 3, 0, 1, "not 3 and 0"},
            {9, 3, 6, 0, "1 or more words, not 0"},
        };
    }

    @Test(dataProvider = "wrong")
    public void wrongNumbersAreNamed(int rows, int min, int max, int words, String message) {
        Refusals.throwsArgument(() -> new TextFeatures(rows, min, max, words), message);
        Refusals.throwsArgument(() -> new TextFeatures(9, 3, 6, 1, -1), "0 times or more, not -1");
    }
}

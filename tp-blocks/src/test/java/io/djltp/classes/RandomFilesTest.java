package io.djltp.classes;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;

import com.google.gson.Gson;

import io.djltp.classes.ClassData.Format;
import io.djltp.testing.TestCases;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/** Random rows, written plainly, are read as they were; files are larger than the buffer. */
public class RandomFilesTest {

    private static final String[] CHARACTERS = {
        "a",
        "b",
        "Z",
        "0",
        "_",
        "\u00e4",
        "\u20ac",
        "\ud83d\ude00",
        "#",
        ":",
        ",",
        "\"",
        "\n",
        "\t",
        " ",
        "\\",
        "\r",
        "'"
    };

    private final Path folder = TestFolder.create();

    /** A row as it is meant. */
    private record Meant(String text, List<String> labels) {}

    @DataProvider
    public Object[][] cases() {
        Format[] formats = {Format.FASTTEXT, Format.TSV, Format.CSV, Format.JSONL, Format.LIBSVM};
        return TestCases.product(formats, new Integer[] {0, 1});
    }

    @Test(dataProvider = "cases", timeOut = 120_000)
    public void rowsAreReadAsTheyWereMeant(Format format, int seed) throws Exception {
        Random random = new Random(31L * seed + format.ordinal());
        String end = random.nextBoolean() ? "\n" : "\r\n";
        StringBuilder file = new StringBuilder(random.nextBoolean() ? "\ufeff" : "");
        List<Meant> rows = new ArrayList<>();
        for (int i = 0; i < 4000; i++) {
            int longest = i == 1000 ? 1_200_000 : random.nextInt(50) == 0 ? 20_000 : 200;
            Meant row = row(format, random, longest);
            rows.add(row);
            file.append(line(format, row, random)).append(end);
            file.append(random.nextInt(20) == 0 ? end : "");
        }
        file.setLength(file.length() - (random.nextBoolean() ? end.length() : 0));
        Path path = Files.writeString(folder.resolve(format + "." + seed + ".txt"), file);
        List<String> texts = new ArrayList<>();
        ClassData data =
                ClassData.builder(path)
                        .optFormat(format)
                        .optManyLabels(true)
                        .optLabelSeparator(';')
                        .optTextFeatures(
                                text -> {
                                    texts.add(text);
                                    return new int[] {1};
                                })
                        .blockBytes(1 + random.nextInt(100_000))
                        .build();
        List<String> names = rows.stream().flatMap(row -> row.labels.stream()).distinct().toList();
        Assert.assertEquals(data.getClasses(), names);
        List<String> expected = rows.stream().map(row -> describe(format, row, names)).toList();
        try (Stream<ClassData.Row> found = data.stream()) {
            Assert.assertEquals(found.map(RandomFilesTest::describe).toList(), expected);
        }
        // and in blocks
        long[] labels = new long[data.getClasses().size()];
        try (NDManager manager = NDManager.newBaseManager()) {
            for (Batch batch : data.newDataset(64, false, 0).getData(manager, null, 0, 0)) {
                for (long label : batch.getLabels().get(0).toLongArray()) {
                    labels[(int) Math.max(0, label)] += label < 0 ? 0 : 1;
                }
                batch.close();
            }
        }
        Assert.assertEquals(labels, data.getClassCounts());
        if (format != Format.LIBSVM) {
            Assert.assertEquals(texts, rows.stream().map(Meant::text).toList());
        }
        Path saved = folder.resolve("labels.txt");
        data.getClasses().save(saved);
        Assert.assertEquals(ClassNames.load(saved), names);
    }

    private static Meant row(Format format, Random random, int longest) {
        String text =
                switch (format) {
                    case LIBSVM -> sparse(random, longest / 8);
                    case TSV -> text(random, longest, "\t\n\r");
                    case FASTTEXT -> text(random, longest, "\n\r").strip();
                    default -> text(random, longest, "");
                };
        List<String> labels = new ArrayList<>();
        for (int i = random.nextInt(4); i > 0; i--) {
            labels.add("l" + text(random, 5, "\t\n\r ,:;").strip());
        }
        boolean blank = text.isBlank() && labels.isEmpty();
        return new Meant(blank && format != Format.CSV ? text + "1:1" : text, labels);
    }

    private static String text(Random random, int longest, String without) {
        return Stream.generate(() -> CHARACTERS[random.nextInt(CHARACTERS.length)])
                .filter(each -> !without.contains(each))
                .limit(random.nextInt(1 + longest))
                .collect(Collectors.joining());
    }

    private static String sparse(Random random, int longest) {
        return Stream.generate(() -> random.nextInt(1 << 30) + ":" + number(random))
                .limit(1 + random.nextInt(1 + longest))
                .collect(Collectors.joining(" "));
    }

    /** Returns a number as people and programs write them. */
    static String number(Random random) {
        return switch (random.nextInt(6)) {
            case 0 -> Float.toString(Float.intBitsToFloat(random.nextInt(0x7f800000)));
            case 1 -> "-" + random.nextInt(1000) + "." + random.nextInt(100_000);
            case 2 -> "+." + random.nextInt(10);
            case 3 -> Double.toString(random.nextGaussian() / 1e4);
            case 4 -> (1 + random.nextInt(1 << 25)) + "." + (random.nextBoolean() ? "5" : "");
            default -> random.nextLong() + "" + random.nextInt(100);
        };
    }

    private static String line(Format format, Meant row, Random random) {
        String labels = String.join(";", row.labels);
        return switch (format) {
            case LIBSVM -> String.join(",", row.labels) + " " + row.text;
            case TSV -> labels + "\t" + row.text;
            case CSV -> field(labels, random) + "," + field(row.text, random);
            case JSONL -> {
                Map<String, Object> object = new LinkedHashMap<>();
                object.put("text", row.text);
                object.put("other", List.of(1, Map.of("text", "x")));
                object.put("label", row.labels);
                yield new Gson().toJson(object);
            }
            default ->
                    row.labels.stream()
                                    .map(label -> "__label__" + label + " ")
                                    .collect(Collectors.joining())
                            + row.text;
        };
    }

    private static String field(String text, Random random) {
        boolean plain = text.matches("[^\",\n\r]*") && random.nextBoolean();
        return plain ? text : '"' + text.replace("\"", "\"\"") + '"';
    }

    private static String describe(Format format, Meant row, List<String> names) {
        TreeSet<Integer> classes = new TreeSet<>();
        row.labels.forEach(label -> classes.add(names.indexOf(label)));
        return describe(format == Format.LIBSVM ? plain(row.text) : row.text, classes.toString());
    }

    /** Returns sparse features with their values as Java writes them. */
    private static String plain(String text) {
        return Stream.of(text.split(" "))
                .map(each -> each.split(":"))
                .map(each -> each[0] + ":" + Float.parseFloat(each[1]))
                .collect(Collectors.joining(" "));
    }

    private static String describe(ClassData.Row row) {
        String text = row.text();
        int[] ids = row.ids();
        float[] values = row.values();
        if (ids != null && values != null) {
            text =
                    IntStream.range(0, ids.length)
                            .mapToObj(i -> ids[i] + ":" + values[i])
                            .collect(Collectors.joining(" "));
        }
        return describe(String.valueOf(text), Arrays.toString(row.classes()));
    }

    private static String describe(String text, String classes) {
        boolean large = text.length() > 100;
        return (large ? text.length() + " " + text.hashCode() : text) + " " + classes;
    }
}

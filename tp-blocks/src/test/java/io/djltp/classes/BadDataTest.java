package io.djltp.classes;

import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;

import io.djltp.classes.ClassData.Builder;
import io.djltp.classes.ClassData.Format;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileTime;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.function.UnaryOperator;

public class BadDataTest {

    private final Path folder = TestFolder.create();

    @DataProvider
    public Object[][] texts() {
        Object[][] all = {
            {null, "", "is empty"},
            {null, "word", "begins with \"word\", which tells no format: set one of [FASTTEXT, "},
            {null, "\u001f\u008b", "cannot be unpacked: "},
            {null, "[\n  {\"text\"", "is a JSON array: write an object a line"},
            {null, "[ {\"text\": \"a\", \"label\": 1}]", "is a JSON array: write an object a line"},
            {null, "1, 2 3:0.5", "tells no format (LIBSVM has commas without spaces between"},
            {
                null,
                "a,b\nc",
                "line 2, column 2: expected 2 fields, not 1, found the end of the line (read as CSV:"
                        + " set the format if it is another)"
            },
            {
                null,
                "name,shelf,price\n",
                "line 1: expected a label and a text, or the names of fields, found [name, shelf,"
                        + " price]. Set which fields are text and label (--fields), or a format other"
                        + " than CSV"
            },
            {
                Format.CSV,
                "a;Hello, b",
                "line 1: either ; or , may be between label and text. Quote"
            },
            {null, "\u00ff\u00fea", "is UTF-16: convert it with iconv -f UTF-16 -t UTF-8"},
            {Format.LIBSVM, "\n\n", "has no rows"},
            {Format.FASTTEXT, "a b\n", "No row of FILE has a label"},
            {
                Format.FASTTEXT,
                "__label__a x\n\n__label__ y",
                "line 3, column 10: expected a name behind __label__, found \" y\""
            },
            {
                Format.FASTTEXT,
                "__label__a \u00c3\u00a4\u00e4 x",
                "line 1, column 13: expected UTF-8, found \"\ufffd x\""
            },
            {
                Format.LIBSVM,
                "1 2:0.5 \n1 2:0.5 3:x 4:1",
                "line 2, column 11: expected a finite number, found \"x 4:1\""
            },
            {Format.LIBSVM, "1 2:nan", "column 5: expected a finite number, found \"nan\""},
            {Format.LIBSVM, "1 2:1e39", "column 5: expected a finite number, found \"1e39\""},
            {
                Format.LIBSVM,
                "1 2:",
                "column 5: expected a finite number, found the end of the line"
            },
            {Format.LIBSVM, "1 2:1f", "column 5: expected a finite number, found \"1f\""},
            {Format.LIBSVM, "1 2:1:3", "column 5: expected a finite number, found \"1:3\""},
            {Format.LIBSVM, "1 -2:1", "column 3: expected feature:value, found \"-2:1\""},
            {Format.LIBSVM, "1 qid:2", "column 3: expected feature:value, found \"qid:2\""},
            {Format.LIBSVM, "1,,2 3:1", "column 3: expected a label, found \",2 3:1\""},
            {
                Format.LIBSVM,
                "1 99999999999:1",
                "column 3: expected a feature below 2147483646, found \"99999999999:1\""
            },
            {
                Format.XC_OLD,
                "1 2:3",
                "line 1, column 1: expected rows features labels, found \"1 2:3\""
            },
            {null, "3 5 4\n0 1:1\n", "line 1: the header says 3 rows, and the file has 1"},
            {null, "1 5 4\n0 1:1\n1 1:1", "line 1: the header says 1 rows, and the file has 2"},
            {null, "1 5 4\n0,4 1:1", "line 2, column 3: expected a label below 4, found \"4 1:1\""},
            {null, "1 5 4\n01 1:1", "line 2, column 1: expected a label below 4, found \"01 1:1\""},
            {null, "1 5 4\n1 5:1", "line 2, column 3: expected a feature below 5, found \"5:1\""},
            {Format.TSV, "a\tb\nc", "line 2, column 2: expected 2 fields, not 1, found the end"},
            {Format.TSV, "a\tb\nc\td\te", "line 2, column 6: expected 2 fields, not 3, found the"},
            {
                Format.CSV,
                "a,\"b\n\nc\"d\n",
                "line 3, column 3: expected a comma or the end of the line behind a quote, found"
                        + " \"d\""
            },
            {
                Format.CSV,
                "a,b\na,\"b\n\nc,d\n",
                "line 2, column 3: expected a quote that is closed, found \"\"b\""
            },
            {
                Format.JSONL,
                "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"\u00c3\u00a4\", \"label\": true}",
                "line 2, column 28: expected a JSON object, with a text or number at $.label, found"
            },
            {
                Format.JSONL,
                "{\"text\": \"a\", \"label\": [\"b\", \"\"]}",
                "line 1, column 30: expected a label that is not empty at $.label[1], found \"\"\"]}"
            },
            {
                Format.JSONL,
                "{\"text\": \"a\"}",
                "line 1, column 1: expected a field \"label\", found"
            },
            {
                Format.JSONL,
                "{\"text\": \"a\", \"label\": 1} {}",
                "column 28: expected a JSON object, with a text or number at $"
            },
        };
        return all;
    }

    @Test(dataProvider = "texts", timeOut = 60_000)
    public void errorsSayWhere(Format format, String text, String message) throws IOException {
        Path file = write(text);
        Builder builder = ClassData.builder(file);
        String found = message(format == null ? builder : builder.optFormat(format));
        Assert.assertTrue(found.contains(message.replace("FILE", file.toString())), found);
        Assert.assertTrue(found.contains(file.toString()), found);
    }

    @Test(timeOut = 60_000)
    public void packedFilesMustBeWhole() throws IOException {
        Path file = ClassDataTest.packed(write("a 1:1\n".repeat(100_000)));
        byte[] bytes = Files.readAllBytes(file);
        ClassData data = ClassData.builder(file).build();
        Assert.assertEquals(data.size(), 100_000);
        Files.write(file, Arrays.copyOf(bytes, bytes.length - 9));
        String found = message(ClassData.builder(file));
        Assert.assertTrue(found.startsWith(file + " cannot be unpacked: "), found);
        bytes[bytes.length / 2] ^= 1;
        Files.write(file, bytes);
        found = message(ClassData.builder(file));
        Assert.assertTrue(found.startsWith(file + " cannot be unpacked: "), found);
        Files.write(file, new byte[0]);
        Assert.assertThrows(IllegalArgumentException.class, () -> rows(data));
        Path array = write("\u0093NUMPY");
        found = message(ClassData.builder(ClassDataTest.packed(array)));
        Assert.assertTrue(found.contains("which a file of NPY must not be: unpack it"), found);
    }

    @DataProvider
    public Object[][] options() {
        UnaryOperator<Builder> fields = builder -> builder.optFields("body", "tag");
        UnaryOperator<Builder> one = builder -> builder.optManyLabels(false);
        UnaryOperator<Builder> labels = builder -> builder.optLabelFile(folder);
        UnaryOperator<Builder> filter = builder -> builder.optFilterFile(folder);
        return new Object[][] {
            {
                fields,
                Format.CSV,
                "body,label\nx,y",
                "expected the fields \"body\" and \"tag\", found [body, label]"
            },
            {fields, Format.JSONL, "{\"text\": \"x\"}", "expected a field \"body\""},
            {
                one,
                Format.FASTTEXT,
                "__label__a x\n__label__a __label__b y",
                "line 2, column 1: expected one label, not 2, found \"__label__a __label__\""
            },
            {
                labels,
                Format.CSV,
                "a,b",
                "has its labels itself, as CSV: it needs no file of labels"
            },
            {filter, Format.CSV, "a,b", "needs rows and classes that have numbers"},
        };
    }

    @Test(dataProvider = "options", timeOut = 60_000)
    public void optionsDoNotFit(
            UnaryOperator<Builder> options, Format format, String text, String message)
            throws IOException {
        String found = message(options.apply(ClassData.builder(write(text)).optFormat(format)));
        Assert.assertTrue(found.contains(message), found);
    }

    @DataProvider
    public Object[][] arrays() {
        return new Object[][] {
            {
                "'<f4', 'fortran_order': True, 'shape': (1, 2)",
                8,
                "has its columns one after another"
            },
            {"'>f4', 'fortran_order': False, 'shape': (1, 2)", 8, "has elements of type >f4"},
            {
                "'<f4', 'fortran_order': False, 'shape': (2, 2)",
                8,
                "and an array of [2, 2] would have"
            },
            {"'<i4', 'fortran_order': False, 'shape': (1, 2)", 8, "has vectors of int32"},
            {
                "'<f4', 'fortran_order': False, 'shape': (1, 1, 2)",
                8,
                "has an array of shape [1, 1, 2]"
            },
            {
                "'<f4', 'fortran_order': False, 'shape': (2, 1)",
                8,
                "row 1: expected finite numbers, found NaN in column 0 of 1"
            },
        };
    }

    @Test(dataProvider = "arrays", timeOut = 60_000)
    public void arraysThatCannotBeRead(String header, int bytes, String message)
            throws IOException {
        String text = "\u0093NUMPY\1\0\u0076\0{'descr': " + header + ", }";
        text += " ".repeat(127 - text.length()) + "\n" + "\u00ff".repeat(bytes);
        Path file = Files.createTempFile(folder, "array", ".npy");
        Files.writeString(file, text, StandardCharsets.ISO_8859_1);
        String found = message(ClassData.builder(file).optLabelFile(write("a\n")));
        Assert.assertTrue(found.contains(message), found);
    }

    @Test(timeOut = 60_000)
    public void filesHaveAsManyRows() throws IOException {
        Path rows = write("2 3\n1:1\n2:1\n");
        String found = message(ClassData.builder(rows).optLabelFile(write("3 3\n1:1\n\n\n")));
        Assert.assertTrue(found.contains("has 2 rows, and "), found);
        found = message(ClassData.builder(rows).optLabelFile(write("2 3\n1:1\n")));
        Assert.assertTrue(found.contains("has more rows than"), found);
        found = message(ClassData.builder(rows).optLabelFile(write("2 3\n1:1\n3:1\n")));
        Assert.assertTrue(found.contains("line 3, column 1: expected a label below 3"), found);
    }

    @Test(timeOut = 60_000)
    public void badLinesAreSkippedUpToALimit() throws Exception {
        Path file = write("1 1:1\nx y\n2 2:2\n3 :\n4 4:4\n5 nan:0\n6 6:6");
        ClassData data = ClassData.builder(file).optSkipBadLines(3).blockBytes(1).build();
        Assert.assertEquals(data.getSkippedLines(), 3);
        Assert.assertEquals(data.getClasses(), List.of("1", "2", "4", "6"));
        Assert.assertEquals(
                ClassDataTest.rowsOf(data),
                List.of("[1] [1.0] [0]", "[2] [2.0] [1]", "[4] [4.0] [2]", "[6] [6.0] [3]"));
        Assert.assertEquals(rows(data), 4);
        String found = message(ClassData.builder(file).optSkipBadLines(2));
        Assert.assertTrue(found.contains("line 6, column 3: expected feature:value"), found);
        Assert.assertTrue(found.endsWith("; 2 lines before it are bad, too"), found);
        // whose end is not known
        Path open = write("a,b\na,\"b\nc,d\n");
        found = message(ClassData.builder(open).optFormat(Format.CSV).optSkipBadLines(9));
        Assert.assertTrue(found.contains("line 2, column 3: expected a quote"), found);
    }

    @Test(timeOut = 60_000)
    public void whatTrainingDoesNotKnowIsCounted() throws IOException {
        ClassData training = ClassData.builder(write("a 1:1\nb 3:1\n")).build();
        Path file = write("b,c 1:1 4:2 3:3\nc 9:1\nd,e,b 2:1");
        ClassData data =
                ClassData.builder(file)
                        .optClasses(training.getClasses())
                        .optFeatureCount(training.getFeatureCount())
                        .build();
        Assert.assertEquals(data.getUnknownLabels(), 4);
        Assert.assertEquals(data.getUnknownFeatures(), 2);
        Assert.assertEquals(data.getClassCounts(), new long[] {0, 2});
        Assert.assertEquals(
                ClassDataTest.rowsOf(data),
                List.of("[1, 3] [1.0, 3.0] [1]", "[] [] []", "[2] [1.0] [1]"));
    }

    @DataProvider
    public Object[][] changes() {
        return new Object[][] {{"a 1:1\nb 2:2\nc 3:3\n"}, {"a 1:1\n"}, {"a 1:1\nb 3:2\n"}, {""}};
    }

    @Test(dataProvider = "changes", timeOut = 60_000)
    public void aFileMustNotChange(String text) throws Exception {
        Path file = write("a 1:1\nb 2:2\n");
        ClassData data = ClassData.builder(file).build();
        RowFile early = new RowFile(file, 0, 1, RowFile.Split.LINES);
        Files.writeString(file, text);
        Files.setLastModifiedTime(file, FileTime.fromMillis(1));
        IllegalArgumentException error =
                Assert.expectThrows(IllegalArgumentException.class, () -> rows(data));
        Assert.assertTrue(error.getMessage().startsWith(file + " has changed"), "" + error);
        Refusals.throwsArgument(early::checkUnchanged);
        Files.delete(file);
        Assert.expectThrows(java.io.UncheckedIOException.class, () -> rows(data));
    }

    @Test(timeOut = 60_000)
    public void aFileMustNotShrinkWhileItIsRead() throws IOException {
        Path file = write("a 1:1\nb 2:2\n");
        RowFile rows = new RowFile(file, 0, 1, RowFile.Split.LINES);
        try (RowFile.Cursor cursor = rows.open()) {
            Files.write(file, new byte[3], StandardOpenOption.TRUNCATE_EXISTING);
            Refusals.throwsArgument(cursor::next, "it ends at byte 3");
        }
    }

    private static int rows(ClassData data) throws Exception {
        int rows = 0;
        try (NDManager manager = NDManager.newBaseManager()) {
            Iterator<Batch> batches =
                    data.newDataset(2, true, 0).getData(manager, null, 0, 0).iterator();
            while (batches.hasNext()) {
                rows += batches.next().getIndices().size();
            }
        }
        return rows;
    }

    private static String message(Builder builder) {
        return Assert.expectThrows(IllegalArgumentException.class, builder::build).getMessage();
    }

    /** Writes a character of a text as a byte. */
    private Path write(String text) throws IOException {
        Path file = Files.createTempFile(folder, "data", ".txt");
        return Files.writeString(file, text, StandardCharsets.ISO_8859_1);
    }
}

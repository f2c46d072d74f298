package io.djltp.classes;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.dataset.Batch;

import io.djltp.classes.ClassData.Format;
import io.djltp.internal.safetensors.SafetensorsWriter;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.zip.GZIPOutputStream;

public class ClassDataTest {

    private final Path folder = TestFolder.create();
    private NDManager manager;

    @BeforeClass
    public void create() throws IOException {
        manager = NDManager.newBaseManager();
    }

    @AfterClass(alwaysRun = true)
    public void close() {
        manager.close();
    }

    @DataProvider
    public Object[][] files() {
        return new Object[][] {
            {
                Format.FASTTEXT,
                "__label__a one two\n\n__label__b __label__a  three\t\r\nno label\nx __label__c y",
                "[a, b, c]",
                "one two [0]|three\t [0, 1]|no label []|x y [2]"
            },
            {
                Format.LIBSVM,
                "# generated\n3,1 2:0.5 7:-1e-3 # that\n\n10 0:1\n 4:2\n1\n",
                "[1, 3, 10]",
                "[2, 7] [0.5, -0.001] [0, 1]|[0] [1.0] [2]|[4] [2.0] []|[] [] [0]"
            },
            {
                Format.XC_OLD,
                "3 5 4\n3,0 4:1\n 0:0.25\n\n",
                "[0, 1, 2, 3]",
                "[4] [1.0] [0, 3]|[0] [0.25] []|[] [] []"
            },
            {
                Format.CSV,
                "\ufefflabel,id,text\r\n\"b, c\",1,\"say \"\"yes\"\",\ntwice\"\r\n\r\na,2,x\r\n,3,",
                "[b, c, a]",
                "say \"yes\",\ntwice [0]|x [1]| []"
            },
            {Format.CSV, "a,5\"; disk\nb,\"\"\nb,\"\"\"\"", "[a, b]", "5\"; disk [0]| [1]|\" [1]"},
            {
                Format.TSV,
                "b\tone, \"two\n c \tt\u00e4gl\ud83d\ude00",
                "[b, c]",
                "one, \"two [0]|t\u00e4gl\ud83d\ude00 [1]"
            },
            {
                Format.JSONL,
                "{\"text\": \"a\\n\\u00e4\", \"x\": [{}], \"label\": [\"n\\nm\", 7, \"n\\nm\"]}\n"
                        + "{\"label\": 7, \"text\": \"\"}\n {\"label\": [], \"text\": \"c\"} \n"
                        + "{\"text\": \"d\", \"label\": null}",
                "[n\nm, 7]",
                "a\n\u00e4 [0, 1]| [1]|c []|d []"
            },
        };
    }

    @Test(dataProvider = "files", timeOut = 60_000)
    public void rowsAreWhatTheFileSays(Format format, String text, String classes, String rows)
            throws IOException {
        assertRows(write(text), format, classes, rows);
        assertRows(packed(write(text)), format, classes, rows);
    }

    /** Packs a file, as several parts one after another. */
    static Path packed(Path file) throws IOException {
        byte[] bytes = Files.readAllBytes(file);
        Path packed = file.resolveSibling(file.getFileName() + ".gz");
        try (OutputStream out = Files.newOutputStream(packed)) {
            for (int from = 0; from < bytes.length; from += 1 + bytes.length / 3) {
                GZIPOutputStream part = new GZIPOutputStream(out);
                part.write(bytes, from, Math.min(1 + bytes.length / 3, bytes.length - from));
                part.finish();
            }
        }
        return packed;
    }

    private static void assertRows(Path file, Format format, String classes, String rows)
            throws IOException {
        ClassData data = ClassData.builder(file).optTextFeatures(line -> new int[] {1, 2}).build();
        Assert.assertEquals(data.getFormat(), format);
        Assert.assertEquals(data.getClasses().toString(), classes);
        Assert.assertEquals(String.join("|", rowsOf(data)), rows);
        Assert.assertEquals(data.size(), rows.split("\\|").length);
    }

    /** As spreadsheets write them where numbers have commas. */
    @Test(timeOut = 60_000)
    public void semicolonsSeparateToo() throws IOException {
        for (String row :
                List.of("text;label\r\n\"x; y, z\";b, c\r\n", "\"b, c\";\"x; y, z\"\r\n")) {
            Path file = write(row);
            file = Files.move(file, file.resolveSibling(file.getFileName() + ".csv"));
            assertRows(file, Format.CSV, "[b, c]", "x; y, z [0]");
        }
    }

    @Test(timeOut = 60_000)
    public void batchesHaveTheRows() throws Exception {
        Path file = write("2 5:0.5 1:2\n1,2 9:1\n 1:3\n");
        ClassData data = ClassData.builder(file).build();
        List<String> found = new ArrayList<>();
        for (Batch batch : data.newDataset(2, false, 0).getData(manager, null, 0, 0)) {
            found.add(
                    text(batch.getData().get(0))
                            + text(batch.getData().get(1))
                            + text(batch.getLabels().get(0))
                            + batch.getIndices());
            batch.close();
        }
        Assert.assertEquals(
                found,
                List.of(
                        "(2, 2)[6, 2, 10, 0](2, 2)[0.5, 2.0, 1.0, 0.0](2, 2)[1, -1, 0, 1][0, 1]",
                        "(1, 1)[2](1, 1)[3.0](1, 1)[-1][2]"));
    }

    /** Files that belong together, and what numpy.save writes. */
    @Test(timeOut = 60_000)
    public void labelsMayBeInAnotherFile() throws IOException {
        Path rows = Files.writeString(folder.resolve("trn_X_Xf.txt"), "3 5\n4:1 0:2\n\n2:0.1\n");
        Files.writeString(folder.resolve("trn_X_Y.txt"), "3 4\n3:1.0 1:1\n\n2:0 0:1\n");
        Path filter = Files.writeString(folder.resolve("filter.txt"), "2 0\n0 1\n0 2\n");
        ClassData data = ClassData.builder(rows).build();
        Assert.assertEquals(data.getFormat(), Format.XC_NEW);
        Assert.assertEquals(data.getFeatureCount(), 5);
        Assert.assertEquals(data.getClasses(), List.of("0", "1", "2", "3"));
        Assert.assertEquals(data.getClassCounts(), new long[] {1, 1, 0, 1});
        Assert.assertEquals(
                rowsOf(data), List.of("[4, 0] [1.0, 2.0] [1, 3]", "[] [] []", "[2] [0.1] [0]"));
        ClassData filtered = ClassData.builder(rows).optFilterFile(packed(filter)).build();
        Assert.assertEquals(
                rowsOf(filtered), List.of("[4, 0] [1.0, 2.0] [3]", "[] [] []", "[2] [0.1] []"));
        Assert.assertEquals(filtered.getFilteredClasses(0), new int[] {1, 2});
        Assert.assertEquals(filtered.getFilteredClasses(1), new int[0]);
        Assert.assertEquals(filtered.getFilteredClasses(2), new int[] {0});
    }

    @DataProvider
    public Object[][] arrays() {
        return new Object[][] {
            {"<f2", "<i8", new long[] {12, -1, 7, 7}, "[7, 12]", "[1]|[0]"},
            {"<f4", "<i4", new long[] {3, 12}, "[3, 12]", "[0]|[1]"},
            {"<f8", "|u1", new long[] {200, 200}, "[200]", "[0]|[0]"},
        };
    }

    @Test(dataProvider = "arrays", timeOut = 60_000)
    public void vectorsAreRows(
            String type, String labelType, long[] labels, String classes, String rows)
            throws IOException {
        Path file = writeArray(type, 2, 3, new double[] {1, -0.5, 0, 65504, 6.103515625e-5, 2});
        double[] numbers = Arrays.stream(labels).asDoubleStream().toArray();
        Path labelFile = writeArray(labelType, 2, labels.length / 2, numbers);
        ClassData data = ClassData.builder(file).optLabelFile(labelFile).build();
        Assert.assertEquals(data.getFeatureCount(), 3);
        Assert.assertEquals(data.getClasses().toString(), classes);
        String[] each = rows.split("\\|");
        Assert.assertEquals(
                rowsOf(data),
                List.of("[1.0, -0.5, 0.0] " + each[0], "[65504.0, 6.1035156E-5, 2.0] " + each[1]));
        Path text = write("a, b\r\n\n");
        Assert.assertEquals(
                rowsOf(ClassData.builder(file).optLabelFile(text).optLabelSeparator(',').build()),
                List.of("[1.0, -0.5, 0.0] [0, 1]", "[65504.0, 6.1035156E-5, 2.0] []"));
    }

    @Test(timeOut = 60_000)
    public void tensorsAreRows() throws IOException {
        Path file = folder.resolve("data.safetensors");
        try (FileChannel channel =
                        FileChannel.open(
                                file, StandardOpenOption.CREATE, StandardOpenOption.WRITE);
                SafetensorsWriter writer =
                        SafetensorsWriter.builder()
                                .addTensor("labels", DataType.INT64, new Shape(2))
                                .addTensor("features", DataType.FLOAT32, new Shape(2, 1))
                                .build(channel)) {
            writer.write(
                    ByteBuffer.allocate(24)
                            .order(ByteOrder.LITTLE_ENDIAN)
                            .putLong(5)
                            .putLong(2)
                            .putFloat(0.5f)
                            .putFloat(-2)
                            .flip());
            writer.finish();
        }
        ClassData data = ClassData.builder(file).build();
        Assert.assertEquals(data.getClasses(), List.of("2", "5"));
        Assert.assertEquals(rowsOf(data), List.of("[0.5] [1]", "[-2.0] [0]"));
    }

    private Path writeArray(String type, long rows, int width, double[] numbers)
            throws IOException {
        String shape = width == 1 ? "(" + rows + ",)" : "(" + rows + ", " + width + ")";
        String header =
                "{'descr': '%s', 'fortran_order': False, 'shape': %s, }".formatted(type, shape);
        header += " ".repeat(117 - header.length()) + "\n";
        ByteBuffer bytes = ByteBuffer.allocate(1024).order(ByteOrder.LITTLE_ENDIAN);
        bytes.put((byte) 0x93).put("NUMPY".getBytes(StandardCharsets.US_ASCII));
        bytes.put((byte) 1).put((byte) 0).putShort((short) 118);
        bytes.put(header.getBytes(StandardCharsets.US_ASCII));
        for (double number : numbers) {
            switch (type) {
                case "<f2" -> bytes.putShort(half((float) number));
                case "<f4" -> bytes.putFloat((float) number);
                case "<f8" -> bytes.putDouble(number);
                case "<i8" -> bytes.putLong((long) number);
                case "<i4" -> bytes.putInt((int) number);
                default -> bytes.put((byte) number);
            }
        }
        byte[] all = Arrays.copyOf(bytes.array(), bytes.position());
        return Files.write(Files.createTempFile(folder, "array", ".npy"), all);
    }

    /** Rounds down, as far as the numbers of this test need it. */
    private static short half(float number) {
        int bits = Float.floatToIntBits(number);
        int exponent = Math.max(0, (bits >> 23 & 255) - 112);
        return (short) (bits >>> 16 & 0x8000 | exponent << 10 | bits >> 13 & 0x3ff);
    }

    @Test(timeOut = 60_000)
    public void oneLabelIsOneNumber() throws Exception {
        ClassNames classes = ClassNames.of(List.of("a", "b"));
        Path file = write("__label__b x y\n__label__c x\n__label__a z\n");
        ClassData data =
                ClassData.builder(file)
                        .optClasses(classes)
                        .optTextFeatures(
                                text -> text.length() > 1 ? new int[] {8, 9} : new int[] {7})
                        .build();
        Assert.assertFalse(data.hasManyLabels());
        try (Batch batch = data.newDataset(5, false, 0).getData(manager).iterator().next()) {
            Assert.assertEquals(
                    text(batch.getData().singletonOrThrow())
                            + text(batch.getLabels().singletonOrThrow()),
                    "(3, 2)[8, 9, 7, 0, 7, 0](3)[1, -100, 0]");
        }
    }

    private static String text(NDArray array) {
        return array.getShape() + Arrays.toString(array.toArray());
    }

    private Path write(String text) throws IOException {
        return Files.writeString(Files.createTempFile(folder, "data", ".txt"), text);
    }

    static List<String> rowsOf(ClassData data) throws IOException {
        try (var rows = data.stream()) {
            return rows.map(
                            row ->
                                    (row.text() == null ? "" : row.text() + " ")
                                            + (row.ids() == null
                                                    ? ""
                                                    : Arrays.toString(row.ids()) + " ")
                                            + (row.values() == null
                                                    ? ""
                                                    : Arrays.toString(row.values()) + " ")
                                            + Arrays.toString(row.classes()))
                    .toList();
        }
    }
}

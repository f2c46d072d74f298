package io.djltp.internal.safetensors;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.Set;

/** Files written here are read by DJL's own code, and the other way round. */
public class SafetensorsTest {

    private static final List<DataType> TYPES =
            List.of(
                    DataType.FLOAT32,
                    DataType.FLOAT64,
                    DataType.INT64,
                    DataType.INT32,
                    DataType.INT8,
                    DataType.UINT8,
                    DataType.BOOLEAN);

    private Path path;
    private NDManager manager;

    @BeforeMethod
    public void create() throws IOException {
        path = Files.createTempFile("tensors", ".safetensors");
        manager = NDManager.newBaseManager();
    }

    @AfterMethod(alwaysRun = true)
    public void delete() throws IOException {
        manager.close();
        Files.deleteIfExists(path);
    }

    @Test
    public void testDjlReadsWhatIsWritten() throws IOException {
        NDList arrays = arrays();
        SafetensorsWriter.Builder builder = SafetensorsWriter.builder().optMetadata("format", "pt");
        arrays.forEach(a -> builder.addTensor(a.getName(), a.getDataType(), a.getShape()));
        try (SafetensorsWriter writer = builder.build(Files.newByteChannel(path, options()))) {
            for (NDArray array : arrays) {
                ByteBuffer bytes = array.toByteBuffer();
                int half = bytes.remaining() / 2; // in two pieces
                writer.write(bytes.slice(0, half));
                writer.write(bytes.slice(half, bytes.remaining() - half));
            }
            writer.finish();
        }
        NDList read;
        try (InputStream in = Files.newInputStream(path)) {
            read = NDList.decode(manager, in);
        }
        Assert.assertEquals(read.size(), arrays.size());
        for (NDArray array : arrays) {
            Assert.assertEquals(read.get(array.getName()), array, array.getName());
        }
    }

    @Test
    public void testWhatDjlWritesIsRead() throws IOException {
        NDList arrays = arrays();
        Files.write(path, arrays.encode(NDList.Encoding.SAFETENSORS));
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            Assert.assertEquals(file.getTensors().size(), arrays.size());
            for (NDArray array : arrays) {
                StoredTensor tensor = file.getTensor(array.getName());
                Assert.assertEquals(tensor.dataType(), array.getDataType());
                Assert.assertEquals(tensor.shape(), array.getShape());
                Assert.assertEquals(bytes(file, tensor, 0, tensor.bytes()), bytes(array));
            }
        }
    }

    @Test
    public void testOnlyTheBytesThatAreAskedFor() throws IOException {
        NDArray array = manager.arange(0, 24, 1, DataType.INT32).reshape(4, 6);
        array.setName("w");
        Files.write(path, new NDList(array).encode(NDList.Encoding.SAFETENSORS));
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            StoredTensor tensor = file.getTensor("w");
            ByteBuffer rows = bytes(file, tensor, 6 * 4, 2 * 6 * 4);
            Assert.assertEquals(rows, bytes(array.get("1:3")));
            Assert.assertThrows(IndexOutOfBoundsException.class, () -> bytes(file, tensor, 90, 8));
            Assert.assertThrows(IndexOutOfBoundsException.class, () -> bytes(file, tensor, -1, 8));
        }
    }

    @DataProvider
    public static Object[][] brokenHeaders() {
        String w = "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";
        return new Object[][] {
            {"{" + w, "no JSON of tensors, at w"},
            {"{" + w + "}}", "no JSON of tensors, at w"},
            {"{" + w + "," + w + "}", "begins at byte 0 and not at 8"},
            {w, "no JSON of tensors, at its beginning"},
            {"{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", "w has no dtype, shape or data_offsets"},
            {"{\"w\":7}", "no JSON of tensors, at w"},
            {withShape("3"), "not its 12"},
            {withShape("-2"), "shape must be"},
            {withShape("4611686018427387904"), "no JSON of tensors, at w"}, // 2^64 bytes
            {withOffsets("4,12"), "byte 4"},
            {withOffsets("0,4"), "4 bytes, which are not its 8"},
            {withOffsets("0"), "w has no dtype, shape or data_offsets"},
            {withOffsets("0.9,8.9"), "no JSON of tensors, at w"},
            {withShape("1").replace("8]", "4]"), "file has 8"},
            {withShape("18446744073709551618"), "no JSON of tensors, at w"}, // 2 in 64 bits
            {withShape("2.4"), "no JSON of tensors, at w"},
            {withShape("1e999999999"), "no JSON of tensors, at w"},
            {withShape("[2]"), "no JSON of tensors, at w"},
        };
    }

    private static String withShape(String length) {
        return "{\"w\":{\"dtype\":\"F32\",\"shape\":[" + length + "],\"data_offsets\":[0,8]}}";
    }

    private static String withOffsets(String offsets) {
        return "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" + offsets + "]}}";
    }

    @Test(dataProvider = "brokenHeaders")
    public void testABrokenHeaderIsNamed(String json, String what) throws IOException {
        write(json);
        assertBroken(what);
    }

    /** Writes a header and 8 bytes of tensors. */
    private void write(String json) throws IOException {
        byte[] text = json.getBytes(StandardCharsets.UTF_8);
        ByteBuffer file = ByteBuffer.allocate(8 + text.length + 8).order(ByteOrder.LITTLE_ENDIAN);
        file.putLong(text.length).put(text);
        Files.write(path, file.array());
    }

    /** A type that DJL does not have is no reason not to read the other tensors. */
    @Test
    public void testATensorOfANewTypeIsLeft() throws IOException {
        write(
                "{\"w\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]},"
                        + "\"v\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}}");
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            Assert.assertEquals(file.read("v", manager).getFloat(), 0f);
            String message =
                    Assert.expectThrows(
                                    IllegalArgumentException.class, () -> file.read("w", manager))
                            .getMessage();
            Assert.assertEquals(message, "DJL has no data type for tensor w of type F4");
        }
    }

    @Test
    public void testEveryTruncationIsFound() throws IOException {
        byte[] whole = arrays().encode(NDList.Encoding.SAFETENSORS);
        for (int length = 0; length < whole.length; length++) {
            Files.write(path, Arrays.copyOf(whole, length));
            assertBroken(path.toString());
        }
        Files.write(path, Arrays.copyOf(whole, whole.length + 1));
        assertBroken("for them");
    }

    @Test
    public void testRandomHeadersDoNotEndInAnythingElse() throws IOException {
        byte[] whole = arrays().encode(NDList.Encoding.SAFETENSORS);
        Random random = new Random(7);
        for (int i = 0; i < 2000; i++) {
            byte[] broken = whole.clone();
            for (int j = 0; j <= random.nextInt(4); j++) {
                broken[random.nextInt(300)] = (byte) random.nextInt(256);
            }
            Files.write(path, broken);
            try (SafetensorsFile file = SafetensorsFile.open(path)) {
                for (StoredTensor tensor : file.getTensors().values()) {
                    bytes(file, tensor, 0, tensor.bytes()); // a name or a type has changed
                }
            } catch (IOException e) {
                Assert.assertTrue(e.getMessage().startsWith(path.toString()), e.getMessage());
                Assert.assertFalse(e.getMessage().contains("http"), e.getMessage());
            }
        }
    }

    @Test
    public void testTooManyOrTooFewBytes() throws IOException {
        SafetensorsWriter.Builder builder =
                SafetensorsWriter.builder()
                        .addTensor("a", DataType.FLOAT32, new Shape(2))
                        .addTensor("b", DataType.INT8, new Shape(3));
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        try (SafetensorsWriter writer = builder.build(Channels.newChannel(out))) {
            writer.write(ByteBuffer.allocate(9));
            IOException few = Assert.expectThrows(IOException.class, writer::finish);
            Assert.assertEquals(
                    few.getMessage(), "tensor b (3) was not written to its end: 1 of 3 bytes");
            IOException many =
                    Assert.expectThrows(
                            IOException.class, () -> writer.write(ByteBuffer.allocate(3)));
            Assert.assertEquals(
                    many.getMessage(), "1 bytes more than the declared tensors have, which are 11");
        }
        Assert.assertThrows(
                IllegalArgumentException.class,
                () -> builder.addTensor("a", DataType.FLOAT32, new Shape(1)));
        Assert.assertThrows(
                IllegalArgumentException.class,
                () -> builder.addTensor("c", DataType.COMPLEX64, new Shape(1)));
    }

    private void assertBroken(String what) {
        IOException e =
                Assert.expectThrows(IOException.class, () -> SafetensorsFile.open(path).close());
        Assert.assertTrue(e.getMessage().startsWith(path.toString()), e.getMessage());
        Assert.assertTrue(e.getMessage().contains(what), e.getMessage());
    }

    private NDList arrays() {
        NDList arrays = new NDList();
        for (DataType type : TYPES) {
            NDArray array =
                    manager.arange(0, 15, 1, DataType.INT32).reshape(3, 5).toType(type, true);
            array.setName("a." + type);
            arrays.add(array);
        }
        NDArray scalar = manager.create(3.5f);
        scalar.setName("scalar");
        NDArray empty = manager.create(new Shape(0, 4));
        empty.setName("empty ü");
        arrays.add(scalar);
        arrays.add(empty);
        return arrays;
    }

    private static ByteBuffer bytes(SafetensorsFile file, StoredTensor tensor, long at, long count)
            throws IOException {
        ByteBuffer bytes = ByteBuffer.allocate((int) count);
        file.read(tensor, at, bytes);
        return bytes.flip();
    }

    private static ByteBuffer bytes(NDArray array) {
        return array.toByteBuffer().rewind();
    }

    private static Set<StandardOpenOption> options() {
        return Set.of(StandardOpenOption.WRITE, StandardOpenOption.TRUNCATE_EXISTING);
    }
}

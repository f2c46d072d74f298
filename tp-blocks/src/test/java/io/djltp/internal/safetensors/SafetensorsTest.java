package io.djltp.internal.safetensors;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.cut.Cut;
import io.djltp.cut.ShardRange;
import io.djltp.testing.Refusals;

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

/**
 * Files written here are read by DJL's own code, and the other way round; what a rank reads is what
 * it would cut out of the whole tensor, and no byte more.
 */
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
                Assert.assertEquals(file.read(array.getName(), manager), array);
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
        }
    }

    @DataProvider
    public static Object[][] cuts() {
        Object[][] cuts = new Object[3 * 5][];
        for (int i = 0; i < cuts.length; i++) {
            cuts[i] = new Object[] {i / 5, i % 5 + 1};
        }
        return cuts;
    }

    @Test(dataProvider = "cuts")
    public void testEachRankReadsItsShard(int axis, int ranks) throws IOException {
        Shape shape = new Shape(6, 7, 8);
        long half = shape.get(axis) / 2;
        // two parts, each cut over the ranks, as of stacked gate and up; uneven
        Cut first = Cut.balanced(half, ranks);
        Cut rest = Cut.balanced(shape.get(axis) - half, ranks);
        for (DataType type : List.of(DataType.FLOAT32, DataType.INT64, DataType.INT8)) {
            NDArray array = manager.arange((int) shape.size()).reshape(shape).toType(type, true);
            try (SafetensorsFile file = written(array)) {
                for (int rank = 0; rank < ranks; rank++) {
                    List<ShardRange> ranges =
                            List.of(first.getRange(rank), rest.getRange(rank).movedBy(half));
                    NDList parts = new NDList(array.get(axis(axis, 0, 0)));
                    ranges.forEach(r -> parts.add(array.get(axis(axis, r.start(), r.end()))));
                    long before = file.getBytesRead();
                    NDArray read = file.read("w", axis, ranges, manager);
                    Assert.assertEquals(
                            file.getBytesRead() - before, read.size() * type.getNumOfBytes());
                    Assert.assertEquals(read, NDArrays.concat(parts, axis), ranges.toString());
                }
            }
        }
    }

    private static NDIndex axis(int axis, long start, long end) {
        NDIndex index = new NDIndex();
        for (int i = 0; i < axis; i++) {
            index.addAllDim();
        }
        return index.addSliceDim(start, end);
    }

    /** Writes a tensor w, with another one before it. */
    private SafetensorsFile written(NDArray array) throws IOException {
        NDArray other = manager.create(new float[] {1, 2, 3});
        other.setName("before");
        array.setName("w");
        Files.write(path, new NDList(other, array).encode(NDList.Encoding.SAFETENSORS));
        return SafetensorsFile.open(path);
    }

    @Test
    public void testWhatIsNotThereIsNamed() throws IOException {
        try (SafetensorsFile file = written(manager.ones(new Shape(3, 5)))) {
            List<ShardRange> range = List.of(new ShardRange(3, 3));
            Refusals.throwsArgument(
                    () -> file.read("w", 1, range, manager),
                    "Axis 1 of tensor w (3, 5) has no range 3 to 6");
            Refusals.throwsArgument(
                    () -> file.read("w", 2, range, manager), "Tensor w (3, 5) has no axis 2");
            Refusals.expect(
                    IOException.class,
                    () -> file.read("v", manager),
                    "has no tensor v, but [before, w]");
        }
    }

    /** DJL's engine has no bfloat16: 1.0, -2.5 and 3.140625 are the upper halves of float32. */
    @Test
    public void testBrainFloatsBecomeFloats() throws IOException {
        ByteBuffer bits = ByteBuffer.allocate(6).order(ByteOrder.LITTLE_ENDIAN);
        bits.putShort((short) 0x3f80).putShort((short) 0xc020).putShort((short) 0x4049).flip();
        try (SafetensorsWriter writer =
                SafetensorsWriter.builder()
                        .addTensor("w", DataType.BFLOAT16, new Shape(1, 3))
                        .build(Files.newByteChannel(path, options()))) {
            writer.write(bits);
            writer.finish();
        }
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            NDArray numbers = file.read("w", 1, List.of(new ShardRange(1, 2)), manager);
            Assert.assertEquals(numbers.getDataType(), DataType.FLOAT32);
            Assert.assertEquals(numbers.toFloatArray(), new float[] {-2.5f, 3.140625f});
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
            Refusals.throwsArgument(
                    () -> file.read("w", manager), "DJL has no data type for tensor w of type F4");
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
            Refusals.expect(
                    IOException.class,
                    writer::finish,
                    "tensor b (3) was not written to its end: 2 of 3 bytes are missing");
            writer.write(ByteBuffer.allocate(3));
            Refusals.expect(
                    IOException.class,
                    writer::finish,
                    "12 bytes were written, and the declared tensors have 11");
        }
        Assert.assertThrows(
                IllegalArgumentException.class,
                () -> builder.addTensor("a", DataType.FLOAT32, new Shape(1)));
        Assert.assertThrows(
                IllegalArgumentException.class,
                () -> builder.addTensor("c", DataType.COMPLEX64, new Shape(1)));
    }

    private void assertBroken(String what) {
        Refusals.expect(
                IOException.class,
                () -> SafetensorsFile.open(path).close(),
                path + " is not a whole safetensors file: ",
                what);
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

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

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;

/** What a rank reads is what it would cut out of the whole tensor, and no byte more. */
public class SliceReaderTest {

    @DataProvider
    public static Object[][] cuts() {
        Object[][] cuts = new Object[3 * 5][];
        for (int axis = 0; axis < 3; axis++) {
            for (int ranks = 1; ranks <= 5; ranks++) {
                cuts[axis * 5 + ranks - 1] = new Object[] {axis, ranks};
            }
        }
        return cuts;
    }

    @Test(dataProvider = "cuts")
    public void testEachRankReadsItsShard(int axis, int ranks) throws IOException {
        long[] lengths = {6, 7, 8};
        // two parts, each cut over the ranks, as of stacked gate and up; uneven
        Cut half = Cut.balanced(lengths[axis] / 2, ranks);
        Cut rest = Cut.balanced(lengths[axis] - lengths[axis] / 2, ranks);
        for (DataType type : List.of(DataType.FLOAT32, DataType.INT64, DataType.INT8)) {
            withFile(
                    type,
                    new Shape(lengths),
                    (file, array) -> {
                        for (int rank = 0; rank < ranks; rank++) {
                            List<ShardRange> ranges =
                                    List.of(
                                            half.getRange(rank),
                                            rest.getRange(rank).movedBy(lengths[axis] / 2));
                            check(file, array, axis, ranges);
                        }
                    });
        }
    }

    /** DJL's engine has no bfloat16: 1.0, -2.5 and 3.140625 are the upper halves of float32. */
    @Test
    public void testBrainFloatsBecomeFloats() throws IOException {
        Path path = Files.createTempFile("slices", ".safetensors");
        ByteBuffer bits = ByteBuffer.allocate(6).order(ByteOrder.LITTLE_ENDIAN);
        bits.putShort((short) 0x3f80).putShort((short) 0xc020).putShort((short) 0x4049).flip();
        try (SafetensorsWriter writer =
                SafetensorsWriter.builder()
                        .addTensor("w", DataType.BFLOAT16, new Shape(1, 3))
                        .build(FileChannel.open(path, StandardOpenOption.WRITE))) {
            writer.write(bits);
            writer.finish();
        }
        try (SafetensorsFile file = SafetensorsFile.open(path);
                NDManager manager = NDManager.newBaseManager()) {
            List<ShardRange> last = List.of(new ShardRange(1, 2));
            NDArray numbers = file.read("w", 1, last, manager);
            Assert.assertEquals(numbers.getDataType(), DataType.FLOAT32);
            Assert.assertEquals(numbers.toFloatArray(), new float[] {-2.5f, 3.140625f});
        }
        Files.delete(path);
    }

    @Test
    public void testAWholeTensorAndAScalar() throws IOException {
        withFile(
                DataType.FLOAT64,
                new Shape(3, 5),
                (file, array) -> {
                    NDManager manager = array.getManager();
                    Assert.assertEquals(file.read("w", manager), array);
                });
        withFile(
                DataType.FLOAT32,
                new Shape(),
                (file, array) -> {
                    NDManager manager = array.getManager();
                    Assert.assertEquals(file.read("w", manager), array);
                });
    }

    @Test
    public void testWhatIsNotThereIsNamed() throws IOException {
        withFile(
                DataType.FLOAT32,
                new Shape(3, 5),
                (file, array) -> {
                    SafetensorsFile reader = file;
                    NDManager manager = array.getManager();
                    List<ShardRange> range = List.of(new ShardRange(3, 3));
                    IllegalArgumentException beyond =
                            Assert.expectThrows(
                                    IllegalArgumentException.class,
                                    () -> reader.read("w", 1, range, manager));
                    Assert.assertEquals(
                            beyond.getMessage(), "Axis 1 of tensor w (3, 5) has no range 3 to 6");
                    Assert.assertThrows(
                            IllegalArgumentException.class,
                            () -> reader.read("w", 2, range, manager));
                    IOException missing =
                            Assert.expectThrows(IOException.class, () -> reader.read("v", manager));
                    Assert.assertTrue(
                            missing.getMessage().endsWith("has no tensor v, but [before, w]"),
                            missing.getMessage());
                });
    }

    private static void check(
            SafetensorsFile file, NDArray array, int axis, List<ShardRange> ranges)
            throws IOException {
        NDList parts = new NDList();
        for (ShardRange range : ranges) {
            NDIndex index = new NDIndex();
            for (int i = 0; i < axis; i++) {
                index.addAllDim();
            }
            if (range.length() > 0) {
                parts.add(array.get(index.addSliceDim(range.start(), range.end())));
            }
        }
        long before = file.getBytesRead();
        NDArray read = file.read("w", axis, ranges, array.getManager());
        long bytes = read.size() * read.getDataType().getNumOfBytes();
        Assert.assertEquals(file.getBytesRead() - before, bytes);
        if (parts.isEmpty()) {
            Assert.assertEquals(read.getShape().get(axis), 0);
        } else {
            Assert.assertEquals(read, NDArrays.concat(parts, axis), axis + " " + ranges);
        }
    }

    private interface Check {

        void run(SafetensorsFile file, NDArray array) throws IOException;
    }

    private static void withFile(DataType type, Shape shape, Check check) throws IOException {
        Path path = Files.createTempFile("slices", ".safetensors");
        try (NDManager manager = NDManager.newBaseManager()) {
            NDArray array = manager.arange((int) shape.size()).reshape(shape).toType(type, true);
            NDArray other = manager.create(new float[] {1, 2, 3}); // another tensor before it
            other.setName("before");
            array.setName("w");
            NDList arrays = new NDList(other, array);
            Files.write(path, arrays.encode(NDList.Encoding.SAFETENSORS));
            try (SafetensorsFile file = SafetensorsFile.open(path)) {
                check.run(file, array);
            }
        } finally {
            Files.delete(path);
        }
    }
}

package io.djltp.exchange;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.core.Linear;

import io.djltp.cut.ShardRange;
import io.djltp.internal.parameters.DjlFormat;
import io.djltp.internal.parameters.SlicedInitializer;
import io.djltp.internal.safetensors.SafetensorsWriter;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;

/** Weights of more than 2 GiB, of which a few numbers are in memory and on the disk. */
public class LargeTensorTest {

    private static final Shape SHAPE = new Shape(600_000, 1000); // 2.4 GB

    @Test(timeOut = 60_000)
    public void aRankReadsTheLastRows() throws Exception {
        Path path = Files.createTempFile("large", ".safetensors");
        try (FileChannel channel = FileChannel.open(path, StandardOpenOption.WRITE)) {
            // the header, and a hole in the file up to the last number
            SafetensorsWriter.builder().addTensor("w", DataType.FLOAT32, SHAPE).build(channel);
            long end = channel.position() + SHAPE.size() * Float.BYTES;
            ByteBuffer last = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN);
            channel.write(last.putFloat(7).flip(), end - Float.BYTES);
        }
        try (NDManager manager = NDManager.newBaseManager();
                WeightFiles files = WeightFiles.open(path)) {
            SlicedInitializer source = SmallModels.source(files, "w = w", SHAPE);
            List<ShardRange> rows = List.of(new ShardRange(0, 1), new ShardRange(599_998, 2));
            NDArray shard = source.initialize(manager, SHAPE, DataType.FLOAT32, 0, rows);
            Assert.assertEquals(shard.getShape(), new Shape(3, 1000));
            Assert.assertEquals(shard.get(2).getFloat(999), 7f);
            Assert.assertEquals(files.getBytesRead(), 3 * 1000 * Float.BYTES);
        } finally {
            Files.delete(path);
        }
    }

    /** DJL's format ends at 2 GiB: that is said, with what to do, before anything is written. */
    @Test
    public void djlsFormatIsRefused() {
        try (NDManager manager = NDManager.newBaseManager()) {
            Block block = Linear.builder().setUnits(SHAPE.get(0)).optBias(false).build();
            block.setInitializer(
                    (of, shape, type) -> of.zeros(new Shape(1, 1), type).broadcast(shape),
                    parameter -> true);
            block.initialize(manager, DataType.FLOAT32, new Shape(1, SHAPE.get(1)));
            IOException e = Assert.expectThrows(IOException.class, () -> DjlFormat.check(block));
            Assert.assertEquals(
                    e.getMessage(),
                    "The parameter weight (600000, 1000) has 2,400,000,000 bytes, and DJL's format"
                            + " can hold 2,147,483,547: write it with"
                            + " io.djltp.exchange.WeightExport and NameMapping.own(), and read that"
                            + " with PretrainedWeights");
        }
    }

    /** Writes 2.4 GB. */
    @Test(groups = "sweep", timeOut = 300_000)
    public void aLargeTensorIsWritten() throws Exception {
        Path folder = Files.createTempDirectory("large");
        try (NDManager manager = NDManager.newBaseManager()) {
            Block block = Linear.builder().setUnits(SHAPE.get(0)).optBias(false).build();
            block.setInitializer(
                    (of, shape, type) -> of.arange(1000f).reshape(1, 1000).broadcast(shape),
                    parameter -> true);
            block.initialize(manager, DataType.FLOAT32, new Shape(1, SHAPE.get(1)));
            Path file =
                    WeightExport.builder()
                            .setMapping(NameMapping.torch())
                            .build()
                            .write(block, folder);
            try (WeightFiles files = WeightFiles.open(file)) {
                SlicedInitializer source = SmallModels.source(files, "w = weight", SHAPE);
                List<ShardRange> rows = List.of(new ShardRange(599_999, 1));
                NDArray last = source.initialize(manager, SHAPE, DataType.FLOAT32, 0, rows);
                Assert.assertEquals(last.flatten(), manager.arange(1000f));
            }
            Files.delete(file);
        }
        Files.delete(folder);
    }
}

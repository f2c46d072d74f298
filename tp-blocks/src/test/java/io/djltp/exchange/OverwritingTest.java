package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.core.Linear;
import ai.djl.util.Utils;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.List;

/** What is there already stays, unless it is to be replaced; what cannot be written is refused. */
public class OverwritingTest {

    private Path folder;
    private Model model;

    @BeforeMethod
    public void create() throws IOException {
        folder = Files.createTempDirectory("overwriting");
        model = Model.newInstance("m");
        model.setBlock(Linear.builder().setUnits(3).build());
        model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(2, 4));
    }

    @AfterMethod(alwaysRun = true)
    public void delete() {
        model.close();
        Utils.deleteQuietly(folder);
    }

    private static WeightExport.Builder weights() {
        return WeightExport.builder().setMapping(NameMapping.own());
    }

    /** One file, or files with an index: any of the name counts. */
    @Test
    public void weightsThatAreThereStay() throws IOException {
        Block block = model.getBlock();
        Path file = weights().build().write(block, folder);
        byte[] before = Files.readAllBytes(file);
        setAll(2);
        for (long bytes : new long[] {1, 1000}) {
            WeightExport again = weights().optFileBytes(bytes).build();
            String message =
                    Assert.expectThrows(
                                    FileAlreadyExistsException.class,
                                    () -> again.write(block, folder))
                            .getMessage();
            Assert.assertTrue(message.contains("model.safetensors: there are"), message);
            Assert.assertTrue(message.contains("optOverwrite(true)"), message);
        }
        Assert.assertEquals(Files.readAllBytes(file), before);
        weights().optName("other").build().write(block, folder);
        Assert.assertEquals(Files.readAllBytes(file), before);
        weights().optOverwrite(true).build().write(block, folder);
        Assert.assertNotEquals(Files.readAllBytes(file), before);
    }

    @Test
    public void anOnnxFileThatIsThereStays() throws IOException {
        Path file = folder.resolve("m.onnx");
        OnnxExport.Builder onnx =
                OnnxExport.builder().setInput("x", DataType.FLOAT32, new Shape(-1, 4));
        onnx.build().write(model, file);
        byte[] before = Files.readAllBytes(file);
        setAll(2);
        Assert.assertThrows(
                FileAlreadyExistsException.class, () -> onnx.build().write(model, file));
        Assert.assertEquals(Files.readAllBytes(file), before);
        Files.move(file, folder.resolve("other.onnx.data")); // the weights of another
        Assert.assertThrows(
                FileAlreadyExistsException.class,
                () -> onnx.build().write(model, folder.resolve("other.onnx")));
        Assert.assertFalse(Files.exists(folder.resolve("other.onnx")));
        onnx.optOverwrite(true).build().write(model, folder.resolve("other.onnx"));
        Assert.assertTrue(Files.exists(folder.resolve("other.onnx")));
        Assert.assertFalse(Files.exists(folder.resolve("other.onnx.data"))); // nobody's any more
    }

    @DataProvider
    public Object[][] names() {
        return new Object[][] {{"../x"}, {"a/b"}, {"a\\b"}, {""}, {".."}, {".hidden"}, {"a\nb"}};
    }

    @Test(dataProvider = "names")
    public void aNameIsNoPath(String name) {
        Assert.assertThrows(IllegalArgumentException.class, () -> weights().optName(name));
    }

    /** 65,519 is rounded to 65,504, and 65,520 to infinity. Infinity stays what it is. */
    @Test
    public void whatFloat16CannotHoldIsNamed() throws IOException {
        WeightExport half = weights().optDataType(DataType.FLOAT16).optOverwrite(true).build();
        setAll(65_519);
        half.write(model.getBlock(), folder);
        setAll(Float.POSITIVE_INFINITY);
        Path file = half.write(model.getBlock(), folder);
        byte[] before = Files.readAllBytes(file);
        setAll(-65_520);
        String message =
                Assert.expectThrows(IOException.class, () -> half.write(model.getBlock(), folder))
                        .getMessage();
        Assert.assertTrue(message.contains("tensor weight has numbers"), message);
        Assert.assertTrue(message.contains("65520"), message);
        Assert.assertEquals(Files.readAllBytes(file), before);
        weights()
                .optDataType(DataType.BFLOAT16)
                .optOverwrite(true)
                .build()
                .write(model.getBlock(), folder);
    }

    /** The largest number of bfloat16 is 3.3895e38; that of float32 is 3.4028e38. */
    @Test
    public void whatBFloat16CannotHoldIsNamed() throws IOException {
        WeightExport half = weights().optDataType(DataType.BFLOAT16).optOverwrite(true).build();
        float end = 0x1.ffp127f; // half way to infinity, and rounded there
        setAll(Math.nextDown(end));
        half.write(model.getBlock(), folder);
        setAll(Float.NEGATIVE_INFINITY);
        half.write(model.getBlock(), folder);
        for (float value : new float[] {end, -3.4e38f, Float.MAX_VALUE}) {
            setAll(value);
            String message =
                    Assert.expectThrows(
                                    IOException.class, () -> half.write(model.getBlock(), folder))
                            .getMessage();
            Assert.assertTrue(message.contains("that bfloat16 cannot hold, such as 3."), message);
            Assert.assertTrue(
                    message.endsWith("ends at 3.3895e38. Nothing is written; write float32"),
                    message);
        }
    }

    private void setAll(float value) {
        Parameter weight = model.getBlock().getDirectParameters().get("weight");
        try (NDManager scope = model.getNDManager().newSubManager()) {
            NDArray values = scope.full(weight.getArray().getShape(), value);
            values.copyTo(weight.getArray());
        }
    }

    /** As it is left if the process ends between the last file and the removal of older ones. */
    @Test
    public void ofOldAndNewFilesTheNewerOnesAreRead() throws IOException {
        Path single = weights().build().write(model.getBlock(), folder);
        Path other = Files.createDirectory(folder.resolve("other"));
        setAll(2);
        Path index = weights().optFileBytes(1).build().write(model.getBlock(), other);
        for (Path file : Files.list(other).toList()) {
            Files.move(file, folder.resolve(file.getFileName()));
        }
        Path moved = folder.resolve(index.getFileName());
        FileTime time = Files.getLastModifiedTime(single);
        for (boolean indexIsNewer : new boolean[] {true, false}) {
            long seconds = indexIsNewer ? 2 : -2;
            Files.setLastModifiedTime(moved, FileTime.from(time.toInstant().plusSeconds(seconds)));
            try (WeightFiles files = WeightFiles.open(folder)) {
                Assert.assertEquals(files.toString(), (indexIsNewer ? moved : single).toString());
            }
        }
    }

    /** A path that begins where the process runs has no parent in its text. */
    @Test
    public void anIndexInTheFolderOfTheProcessIsRead() throws IOException {
        Path index =
                weights()
                        .optName("relative")
                        .optFileBytes(1)
                        .build()
                        .write(model.getBlock(), folder);
        List<Path> here = new ArrayList<>();
        try {
            for (Path file : Files.list(folder).toList()) {
                here.add(Files.copy(file, file.getFileName()));
            }
            try (WeightFiles files = WeightFiles.open(index.getFileName())) {
                Assert.assertTrue(files.names().iterator().hasNext());
            }
        } finally {
            for (Path file : here) {
                Files.delete(file);
            }
        }
    }

    /** What the system says of a full disk names no file; and nothing of a failed export stays. */
    @Test
    public void aFailedExportNamesItsFolderAndLeavesNone() {
        Path none = folder.resolve("none");
        setAll(-65_520);
        String message =
                Assert.expectThrows(
                                IOException.class,
                                () ->
                                        weights()
                                                .optDataType(DataType.FLOAT16)
                                                .build()
                                                .write(model.getBlock(), none))
                        .getMessage();
        Assert.assertTrue(message.startsWith("Cannot write to " + none + ": "), message);
        Assert.assertFalse(Files.exists(none));
    }
}

package io.djltp.exchange;

import static io.djltp.exchange.SmallModels.initialized;
import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.relu;
import static io.djltp.testing.Blocks.sequence;

import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.onnx.proto.OnnxMl.ModelProto;

import io.djltp.collective.ForkedJvm;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** A block that ONNX's operators do not compute throws, and the file that is there stays. */
public class OnnxExportTest extends TestFolder {

    @DataProvider
    public static Object[][] networks() {
        DataType floats = DataType.FLOAT32;
        Block columns = ColumnParallelLinear.builder().setUnits(3).optSkipBiasAdd(true).build();
        Block rows = RowParallelLinear.builder().setUnits(3).optSkipBiasAdd(true).build();
        return new Object[][] {
            {columns, floats, "The network is a ColumnParallelLinear with optSkipBias"},
            {rows, floats, "The network is a RowParallelLinear with optSkipBiasAdd"},
            {linear(3), DataType.INT32, "The input x has integers, and a Linear takes float32"},
            {new EmbeddingBag(5, 3), floats, "a EmbeddingBag takes int32 or int64"},
            {
                sequence(linear(3), relu()),
                floats,
                "say what it computes with optBlock(\"LambdaBlock\", ...)"
            },
        };
    }

    @Test(dataProvider = "networks")
    public void aNetworkThatHasNoOperators(Block block, DataType type, String what)
            throws IOException {
        try (Model model = initialized(block, new Shape(2, 4))) {
            OnnxExport export = OnnxExport.builder().setInput("x", type, new Shape(-1, 4)).build();
            Refusals.throwsArgument(() -> export.write(model, folder.resolve("m.onnx")), what);
            try (var files = Files.list(folder)) {
                Assert.assertEquals(files.toList(), List.of());
            }
        }
    }

    @DataProvider
    public static Object[][] outputs() {
        return new Object[][] {
            {linear(3), new Shape(2, 4), new Shape(-1, 4), List.of(0L, 3L)},
            {linear(3), new Shape(2, 5, 4), new Shape(-1, 5, 4), List.of(0L, 5L, 3L)},
            {new EmbeddingBag(5, 3), new Shape(2, 4), new Shape(-1, -1), List.of(0L, 3L)},
        };
    }

    /** A reader asks for the lengths of the output, 0 for any. */
    @Test(dataProvider = "outputs")
    public void theOutputHasAShape(Block block, Shape shape, Shape input, List<Long> expected)
            throws IOException {
        DataType type = block instanceof EmbeddingBag ? DataType.INT32 : DataType.FLOAT32;
        Path file = folder.resolve("m.onnx");
        try (Model model = initialized(block, shape)) {
            OnnxExport.builder().setInput("x", type, input).build().write(model, file);
        }
        var graph = ModelProto.parseFrom(Files.readAllBytes(file)).getGraph();
        var lengths = graph.getOutput(0).getType().getTensorType().getShape().getDimList();
        Assert.assertEquals(lengths.stream().map(each -> each.getDimValue()).toList(), expected);
    }

    /** The dependency is optional; without it the error names it. */
    @Test(timeOut = 60_000)
    public void withoutTheLibraryTheErrorNamesIt() throws Exception {
        Refusals.assertContains(
                new ForkedJvm().without("tribuo", "protobuf").succeed(WithoutLibrary.class),
                "needs org.tribuo:tribuo-util-onnx:4.3.2 .. not on the class path");
    }

    /** Builds an export in a JVM without ONNX's messages. */
    static final class WithoutLibrary {

        private WithoutLibrary() {}

        public static void main(String[] args) {
            OnnxExport.Builder export =
                    OnnxExport.builder()
                            .setInput("x", DataType.FLOAT32, new Shape(-1, 4))
                            .optBlock("relu", (graph, x) -> graph.add("Relu", x));
            try {
                export.build();
            } catch (IllegalStateException e) {
                System.out.println(e.getMessage());
            }
        }
    }

    @Test
    public void weightsOf2GiBDoNotFit() {
        Refusals.throwsArgument(
                () -> OnnxExport.builder().optExternalAbove(1L << 31),
                "An ONNX file has less than 2 GiB, 2147483648 bytes: weights of 2147483648 bytes do"
                        + " not fit into it");
    }

    @Test
    public void aFileThatIsThereStays() throws IOException {
        Path file = folder.resolve("m.onnx");
        Path other = folder.resolve("other.onnx");
        Path weights = folder.resolve("other.onnx.data");
        try (Model model = initialized(linear(3), new Shape(2, 4))) {
            OnnxExport.Builder onnx =
                    OnnxExport.builder().setInput("x", DataType.FLOAT32, new Shape(-1, 4));
            onnx.build().write(model, file);
            byte[] before = Files.readAllBytes(file);
            Assert.assertThrows(
                    FileAlreadyExistsException.class, () -> onnx.build().write(model, file));
            Assert.assertEquals(Files.readAllBytes(file), before);
            Files.move(file, weights); // the weights of another
            Assert.assertThrows(
                    FileAlreadyExistsException.class, () -> onnx.build().write(model, other));
            Assert.assertFalse(Files.exists(other));
            onnx.optOverwrite(true).build().write(model, other);
            Assert.assertTrue(Files.exists(other));
            Assert.assertFalse(Files.exists(weights)); // nobody's any more
        }
    }
}

package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.util.Utils;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.EmbeddingBag;
import io.djltp.nn.RowParallelLinear;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** What ONNX's operators do not compute is refused, and nothing is written. */
public class OnnxRefusalsTest {

    @DataProvider
    public Object[][] networks() {
        Block skipping = ColumnParallelLinear.builder().setUnits(3).optSkipBiasAdd(true).build();
        Block rows = RowParallelLinear.builder().setUnits(3).optSkipBiasAdd(true).build();
        Block linear = Linear.builder().setUnits(3).build();
        return new Object[][] {
            {skipping, DataType.FLOAT32, "The network is a ColumnParallelLinear with optSkipBias"},
            {rows, DataType.FLOAT32, "The network is a RowParallelLinear with optSkipBiasAdd"},
            {linear, DataType.INT32, "The input x has integers, and a Linear takes float32"},
            {new EmbeddingBag(5, 3), DataType.FLOAT32, "a EmbeddingBag takes int32 or int64"},
            {
                new SequentialBlock()
                        .add(Linear.builder().setUnits(3).build())
                        .add(Activation::relu),
                DataType.FLOAT32,
                "say what it computes with optBlock(\"LambdaBlock\", ...)"
            },
        };
    }

    @Test(dataProvider = "networks")
    public void aNetworkThatHasNoOperators(Block block, DataType type, String what)
            throws IOException {
        assertRefused(block, type, OnnxExport.builder(), what);
    }

    private static void assertRefused(
            Block block, DataType type, OnnxExport.Builder builder, String what)
            throws IOException {
        Path folder = Files.createTempDirectory("refused");
        try (Model model = Model.newInstance("m")) {
            model.setBlock(block);
            block.initialize(model.getNDManager(), DataType.FLOAT32, new Shape(2, 4));
            OnnxExport export = builder.setInput("x", type, new Shape(-1, 4)).build();
            String message =
                    Assert.expectThrows(
                                    IllegalArgumentException.class,
                                    () -> export.write(model, folder.resolve("m.onnx")))
                            .getMessage();
            Assert.assertTrue(message.contains(what), message);
            try (var files = Files.list(folder)) {
                Assert.assertEquals(files.toList(), List.of());
            }
        } finally {
            Utils.deleteQuietly(folder);
        }
    }
}

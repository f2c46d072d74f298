package io.djltp.examples.lemma;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;
import ai.djl.util.Utils;

import io.djltp.exchange.OnnxExport;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** What is written is read by ONNX Runtime, whatever the axes and the type. */
public class OnnxShapesTest {

    private Path folder;

    @BeforeClass
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("onnx");
    }

    @AfterClass
    public void removeFolder() {
        Utils.deleteQuietly(folder);
    }

    private static Model model(Block block, Shape input) {
        Model model = Model.newInstance("m");
        model.setBlock(block);
        block.initialize(model.getNDManager(), DataType.FLOAT32, input);
        return model;
    }

    private void compare(Block block, DataType type, Shape input) throws Exception {
        Path file = folder.resolve("compared.onnx");
        try (Model model = model(block, input)) {
            long[] declared = input.getShape().clone();
            declared[0] = input.dimension() == 1 ? declared[0] : -1;
            OnnxExport.builder()
                    .setInput("x", type, new Shape(declared))
                    .optOverwrite(true)
                    .build()
                    .write(model, file);
            NDArray x =
                    type == DataType.FLOAT32
                            ? model.getNDManager().randomNormal(input)
                            : model.getNDManager().randomInteger(0, 7, input, type);
            ParameterStore store = new ParameterStore(model.getNDManager(), false);
            NDArray expected = block.forward(store, new NDList(x), false).singletonOrThrow();
            OnnxFiles.assertComputes(file, "x", x, "output", expected);
        }
    }

    @Test(timeOut = 60_000)
    public void anyNumberOfAxes() throws Exception {
        for (Shape input : new Shape[] {new Shape(5), new Shape(3, 5), new Shape(2, 3, 5)}) {
            compare(Linear.builder().setUnits(4).build(), DataType.FLOAT32, input);
            compare(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(4).optBias(false).build())
                            .add(Linear.builder().setUnits(2).build()),
                    DataType.FLOAT32,
                    input);
        }
    }

    @Test(timeOut = 60_000)
    public void rowsMayBeInt64() throws Exception {
        compare(
                new SequentialBlock()
                        .add(new EmbeddingBag(7, 4))
                        .add(ClassificationHead.builder().setUnits(9).build()),
                DataType.INT64,
                new Shape(3, 6));
    }

    private void refused(String reason, OnnxExport.Builder export) {
        Path file = folder.resolve("refused.onnx");
        Block block =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(4).build())
                        .add(Activation.reluBlock());
        try (Model model = model(block, new Shape(3, 5))) {
            IllegalArgumentException e =
                    Assert.expectThrows(
                            IllegalArgumentException.class,
                            () -> export.build().write(model, file));
            Assert.assertTrue(e.getMessage().contains(reason), e.getMessage());
            Assert.assertFalse(Files.exists(file));
        }
    }

    private static OnnxExport.Builder export(String input, long features, String relu) {
        return OnnxExport.builder()
                .setInput(input, DataType.FLOAT32, new Shape(-1, features))
                .optBlock(
                        "LambdaBlock", (graph, x) -> relu.equals("Relu") ? graph.add(relu, x) : x);
    }

    @Test
    public void aFileThatNobodyReadsIsNotWritten() {
        refused("6 features, and the network takes 5", export("x", 6, "Relu"));
        refused("input cannot be called 'Linear.weight'", export("Linear.weight", 5, "Relu"));
        refused("output cannot be called 'x'", export("x", 5, "Relu").optOutput("x"));
        refused("output cannot be called ''", export("x", 5, "Relu").optOutput(""));
        refused(
                "uses the value nowhere, which nothing",
                export("x", 5, "Relu")
                        .optBlock("LambdaBlock", (graph, x) -> graph.add("Relu", "nowhere")));
        refused(
                "returns no value",
                export("x", 5, "Relu").optBlock("LambdaBlock", (graph, x) -> null));
    }
}

package io.djltp.examples.classes;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;

import io.djltp.classes.ClassModel;
import io.djltp.examples.TpRun;
import io.djltp.exchange.OnnxExport;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/** ONNX Runtime computes of the file what DJL computes of the model. */
public class OnnxRuntimeTest {

    private final Path folder = TestFolder.create();

    @Test(timeOut = 180_000)
    public void classifiersGiveTheSameLogits() throws Exception {
        for (String row : List.of("__label__b ein Haus", "1 1:1 3:0.5")) {
            Path data = Files.write(folder.resolve("rows"), Collections.nCopies(9, row));
            Path out = TestFolder.create();
            TpRun.line("train --data " + data + " --steps 3 --out " + out).assertPrints(0);
            Path file = folder.resolve("classes.onnx");
            String line = "export --model " + out + " --onnx " + file;
            if (row.startsWith("1")) {
                TpRun.line(line + " --overwrite").assertPrints(2, "this one has SPARSE features");
                continue;
            }
            TpRun.line(line).assertPrints(0, "opset 17");
            TpRun.line(line).assertPrints(2, "classes.onnx");
            TpRun.line(line + " --overwrite").assertPrints(0);
            try (ClassModel saved = ClassModel.load(out);
                    NDManager manager = NDManager.newBaseManager()) {
                NDArray ids = manager.create(new int[][] {{3, 5, 7}, {2, 0, 0}});
                assertComputes(file, "ids", ids, "logits", forward(saved.getModel(), ids));
            }
        }
    }

    static NDArray forward(Model model, NDArray input) {
        ParameterStore store = new ParameterStore(input.getManager(), false);
        return model.getBlock().forward(store, new NDList(input), false).singletonOrThrow();
    }

    /** In training, on ranks; the weights in a file of their own. */
    @Test(timeOut = 180_000)
    public void aHeadInTrainingIsWritten() throws Exception {
        Path file = folder.resolve("head.onnx");
        float[][] rows = {{1, -2, 3, 0.5f}, {0, 4, -1, 2}, {3, 3, 1, -2}};
        ParallelConfig ranks = ParallelConfig.tensor(2);
        try (Model model = Model.newInstance("head")) {
            model.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(5).build())
                            .add(ClassificationHead.builder().setUnits(7).build()));
            try (ParallelTrainer trainer =
                    new ParallelTrainer(
                            model,
                            new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss()),
                            ranks)) {
                trainer.initialize(new Shape(3, 4));
                OnnxExport.builder()
                        .setInput("features", DataType.FLOAT32, new Shape(-1, 4))
                        .optExternalAbove(0)
                        .build()
                        .write(model, file);
            }
            Assert.assertTrue(Files.size(folder.resolve("head.onnx.data")) > 3 * 4096);
            try (NDManager manager = NDManager.newBaseManager()) {
                NDArray features = manager.create(rows);
                NDArray expected = forward(model, features);
                assertComputes(file, "features", features, "output", expected);
            }
        }
    }

    @Test
    public void whatIsNotKnownIsNamed() {
        try (Model model = Model.newInstance("m")) {
            model.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(5).build())
                            .add(inputs -> inputs));
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(3, 4));
            Refusals.throwsArgument(
                    () ->
                            OnnxExport.builder()
                                    .setInput("x", DataType.FLOAT32, new Shape(-1, 4))
                                    .build()
                                    .write(model, folder.resolve("none.onnx")),
                    "say what it computes with optBlock");
            Assert.assertFalse(Files.exists(folder.resolve("none.onnx")));
        }
    }

    static void assertComputes(
            Path file, String input, NDArray values, String output, NDArray expected)
            throws OrtException {
        OrtEnvironment environment = OrtEnvironment.getEnvironment();
        try (OrtSession session = environment.createSession(file.toString());
                OnnxTensor tensor = tensor(environment, values);
                OrtSession.Result result = session.run(Map.of(input, tensor))) {
            OnnxTensor actual = (OnnxTensor) result.get(output).orElseThrow();
            Assert.assertEquals(actual.getInfo().getShape(), expected.getShape().getShape());
            FloatBuffer numbers = actual.getFloatBuffer();
            float[] all = expected.toFloatArray();
            double largest = expected.abs().max().getFloat();
            for (int i = 0; i < all.length; i++) {
                double most = 1e-5 * Math.min(largest, 1 + Math.abs(all[i]));
                Assert.assertEquals(numbers.get(i), all[i], most, "number " + i);
            }
        }
    }

    private static OnnxTensor tensor(OrtEnvironment environment, NDArray values)
            throws OrtException {
        long[] shape = values.getShape().getShape();
        if (values.getDataType() == DataType.FLOAT32) {
            FloatBuffer numbers = FloatBuffer.wrap(values.toFloatArray());
            return OnnxTensor.createTensor(environment, numbers, shape);
        }
        return values.getDataType() == DataType.INT32
                ? OnnxTensor.createTensor(environment, IntBuffer.wrap(values.toIntArray()), shape)
                : OnnxTensor.createTensor(
                        environment, LongBuffer.wrap(values.toLongArray()), shape);
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
            assertComputes(file, "x", x, "output", expected);
        }
    }

    /** What is written is read by ONNX Runtime, whatever the axes and the type. */
    @DataProvider
    public static Object[][] inputs() {
        return new Object[][] {
            {DataType.FLOAT32, new Shape(5)},
            {DataType.FLOAT32, new Shape(3, 5)},
            {DataType.FLOAT32, new Shape(2, 3, 5)},
            {DataType.INT64, new Shape(3, 6)},
        };
    }

    @Test(dataProvider = "inputs", timeOut = 180_000)
    public void anyAxesAndTypes(DataType type, Shape input) throws Exception {
        if (type == DataType.INT64) {
            Block head = ClassificationHead.builder().setUnits(9).build();
            compare(new SequentialBlock().add(new EmbeddingBag(7, 4)).add(head), type, input);
        } else {
            Block first = Linear.builder().setUnits(4).optBias(false).build();
            Block second = Linear.builder().setUnits(2).build();
            compare(Linear.builder().setUnits(4).build(), type, input);
            compare(new SequentialBlock().add(first).add(second), type, input);
        }
    }
}

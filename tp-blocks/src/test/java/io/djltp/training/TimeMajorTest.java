package io.djltp.training;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.recurrent.GRU;
import ai.djl.nn.recurrent.LSTM;
import ai.djl.nn.recurrent.RNN;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;

import io.djltp.layout.ParallelMode;
import io.djltp.testing.TrainerKind;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.function.Supplier;

/** A recurrent block whose axis 0 is the time is named where that axis is cut over the ranks. */
public class TimeMajorTest {

    @DataProvider
    public Object[][] blocks() {
        return new Object[][] {
            of(() -> LSTM.builder().setStateSize(4).setNumLayers(1).optBatchFirst(false), true),
            of(() -> LSTM.builder().setStateSize(4).setNumLayers(2).optBatchFirst(true), false),
            of(() -> GRU.builder().setStateSize(4).setNumLayers(2).optBatchFirst(false), true),
            of(() -> GRU.builder().setStateSize(4).setNumLayers(1).optBatchFirst(true), false),
            of(() -> tanh().optBatchFirst(false), true),
            of(() -> tanh().optBatchFirst(true), false),
        };
    }

    private static RNN.Builder tanh() {
        return RNN.builder().setStateSize(4).setNumLayers(1).setActivation(RNN.Activation.TANH);
    }

    private static Object[] of(Supplier<Object> builder, boolean timeMajor) {
        return new Object[] {builder, timeMajor};
    }

    private static Block build(Object builder) {
        if (builder instanceof LSTM.Builder) {
            return ((LSTM.Builder) builder).build();
        }
        return builder instanceof GRU.Builder
                ? ((GRU.Builder) builder).build()
                : ((RNN.Builder) builder).build();
    }

    @Test(dataProvider = "blocks", timeOut = 60_000)
    public void isNamed(Supplier<Object> builder, boolean timeMajor) {
        Block block = build(builder.get());
        String name = "01" + block.getClass().getSimpleName();
        String data = warnings(new TrainerKind(ParallelMode.DATA, 2), block);
        Assert.assertEquals(data.contains(name + ": optBatchFirst(false)"), timeMajor, data);
        Assert.assertEquals(data.contains("takes axis 0 for the time"), timeMajor, data);
        String tensor = warnings(new TrainerKind(ParallelMode.TENSOR, 2), build(builder.get()));
        Assert.assertFalse(tensor.contains("takes axis 0 for the time"), tensor);
    }

    private static String warnings(TrainerKind kind, Block block) {
        PrintStream before = System.err;
        ByteArrayOutputStream logged = new ByteArrayOutputStream();
        System.setErr(new PrintStream(logged, true, StandardCharsets.UTF_8));
        try (Model model = Model.newInstance("net", Device.cpu())) {
            model.setBlock(new SequentialBlock().add(block));
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(Loss.l2Loss())
                            .optDevices(new Device[] {Device.cpu()});
            try (Trainer trainer = kind.open(model, config)) {
                trainer.initialize(new Shape(6, 5, 3));
            }
        } finally {
            System.setErr(before);
        }
        return logged.toString(StandardCharsets.UTF_8);
    }
}

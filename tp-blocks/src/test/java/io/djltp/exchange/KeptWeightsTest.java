package io.djltp.exchange;

import ai.djl.Device;
import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.initializer.ConstantInitializer;
import ai.djl.training.loss.Loss;
import ai.djl.util.Utils;

import io.djltp.layout.ParallelMode;
import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** What is read from files is not made otherwise, and what is kept is not read. */
public class KeptWeightsTest {

    private static final Shape INPUT = new Shape(2, 3);

    private Path folder;
    private Map<String, float[]> written;

    private static Block network(int outputs) {
        return new SequentialBlock()
                .add(ColumnParallelLinear.builder().setUnits(5).build())
                .add(RowParallelLinear.builder().setUnits(outputs).build());
    }

    @BeforeMethod
    public void write() throws IOException {
        folder = Files.createTempDirectory("kept");
        try (NDManager manager = NDManager.newBaseManager()) {
            Block block = network(4);
            block.initialize(manager, DataType.FLOAT32, INPUT);
            WeightExport.builder().setMapping(NameMapping.own()).build().write(block, folder);
            written = WeightExportTest.values(block);
        }
    }

    @AfterMethod(alwaysRun = true)
    public void delete() {
        Utils.deleteQuietly(folder);
    }

    private PretrainedWeights weights(String... kept) throws IOException {
        return PretrainedWeights.builder()
                .setPath(folder)
                .setMapping(NameMapping.own())
                .optSkipParameters(kept)
                .build();
    }

    /** An initializer of the configuration is for what no file has. */
    @Test(timeOut = 60_000)
    public void anInitializerDoesNotReplaceAFile() throws Exception {
        for (int ranks = 1; ranks <= 3; ranks++) {
            try (Model model = Model.newInstance("m");
                    PretrainedWeights weights = weights("RowParallelLinear.{path}")) {
                model.setBlock(network(7));
                weights.bind(model, INPUT);
                DefaultTrainingConfig config =
                        new DefaultTrainingConfig(Loss.l2Loss())
                                .optDevices(new Device[] {Device.cpu()})
                                .optInitializer(new ConstantInitializer(9), each -> true);
                ParallelConfig ofRanks =
                        ParallelConfig.builder()
                                .setMode(ParallelMode.TENSOR)
                                .setRanks(ranks)
                                .build();
                try (ParallelTrainer trainer = new ParallelTrainer(model, config, ofRanks)) {
                    trainer.initialize(INPUT);
                }
                Map<String, float[]> values = WeightExportTest.values(model.getBlock());
                for (String name : new String[] {"weight", "bias"}) {
                    String read = "ColumnParallelLinear." + name;
                    Assert.assertEquals(values.get(read), written.get(read), read);
                    for (float value : values.get("RowParallelLinear." + name)) {
                        Assert.assertEquals(value, 9f);
                    }
                }
            }
        }
    }

    /** Also where the files have a tensor of the same name, of whatever shape. */
    @Test
    public void whatIsKeptIsNotRead() throws Exception {
        for (int outputs : new int[] {4, 7}) {
            try (Model model = Model.newInstance("m");
                    PretrainedWeights weights = weights("RowParallelLinear.{path}")) {
                model.setBlock(network(outputs));
                model.getBlock().setInitializer(new ConstantInitializer(2), Parameter.Type.WEIGHT);
                model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
                weights.load(model, INPUT);
                Map<String, float[]> values = WeightExportTest.values(model.getBlock());
                String read = "ColumnParallelLinear.weight";
                Assert.assertEquals(values.get(read), written.get(read));
                Assert.assertEquals(values.get("RowParallelLinear.weight").length, outputs * 5);
                for (float value : values.get("RowParallelLinear.weight")) {
                    Assert.assertEquals(value, 2f);
                }
            }
        }
    }

    @Test
    public void whatIsKeptMustBeThere() throws Exception {
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights = weights("haed.{path}")) {
            model.setBlock(network(4));
            String message =
                    Assert.expectThrows(
                                    MalformedModelException.class, () -> weights.load(model, INPUT))
                            .getMessage();
            Assert.assertTrue(
                    message.endsWith("no parameter has the path haed.{path}, which is to be kept"),
                    message);
        }
    }

    /** DJL's engine ends the process where it is to make an array of bfloat16. */
    @Test
    public void aModelOfBFloat16IsRefused() throws Exception {
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights = weights()) {
            model.setBlock(network(4));
            model.setDataType(DataType.BFLOAT16);
            Assert.expectThrows(IllegalArgumentException.class, () -> weights.load(model, INPUT));
        }
    }

    /** A file of another model with very many tensors is a message that can be read. */
    @Test
    public void aLongListIsCut() throws Exception {
        try (NDManager manager = NDManager.newBaseManager()) {
            SequentialBlock many = new SequentialBlock();
            for (int i = 0; i < 40; i++) {
                many.add(ColumnParallelLinear.builder().setUnits(3).build());
            }
            many.initialize(manager, DataType.FLOAT32, INPUT);
            WeightExport.builder()
                    .setMapping(NameMapping.own())
                    .optOverwrite(true)
                    .build()
                    .write(many, folder);
        }
        try (Model model = Model.newInstance("m");
                PretrainedWeights weights = weights()) {
            model.setBlock(network(4));
            String message =
                    Assert.expectThrows(
                                    MalformedModelException.class, () -> weights.load(model, INPUT))
                            .getMessage();
            Assert.assertEquals(message.lines().count(), 1 + 50 + 1);
            Assert.assertTrue(message.endsWith("and 34 more"), message); // 4 and 80 in all
        }
    }

    @Test
    public void anIndexOfAnotherStructureIsNoIndex() throws IOException {
        Files.delete(folder.resolve("model.safetensors"));
        for (String map : new String[] {"[1]", "{\"a\": null}", "{\"a\": {}}", "3"}) {
            Files.writeString(
                    folder.resolve("model" + WeightFiles.INDEX), "{\"weight_map\": " + map + "}");
            IOException e = Assert.expectThrows(IOException.class, this::weights);
            Assert.assertTrue(e.getMessage().contains("is no index"), map + ": " + e);
        }
    }
}

package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.nn.core.Prelu;
import ai.djl.nn.norm.BatchNorm;
import ai.djl.nn.norm.LayerNorm;
import ai.djl.training.initializer.Initializer;
import ai.djl.translate.NoopTranslator;
import ai.djl.util.Utils;

import io.djltp.nn.ColumnParallelLinear;
import io.djltp.nn.RowParallelLinear;
import io.djltp.testing.ArrayAssert;
import io.djltp.training.ParallelPredictor;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.TreeSet;

/** Layers of DJL, with PyTorch's names, become layers of ranks, and the other way round. */
public class StockLayersTest {

    private static final Shape INPUT = new Shape(3, 7);
    private static final NameMapping CUT =
            NameMapping.torch()
                    .with(
                            "ColumnParallelLinear.{path} = Linear0.{path}\n"
                                    + "RowParallelLinear.{path} = Linear1.{path}\n");

    private static Block stock() {
        return new SequentialBlock()
                .add(Linear.builder().setUnits(9).build())
                .add(Linear.builder().setUnits(5).build())
                .add(LayerNorm.builder().axis(1).build())
                .add(BatchNorm.builder().build());
    }

    private static Block cut() {
        return new SequentialBlock()
                .add(ColumnParallelLinear.builder().setUnits(9).build())
                .add(RowParallelLinear.builder().setUnits(5).build())
                .add(LayerNorm.builder().axis(1).build())
                .add(BatchNorm.builder().build());
    }

    @Test(timeOut = 60_000)
    public void layersChangeTheirKind() throws Exception {
        Path folder = Files.createTempDirectory("stock");
        try (Model plain = Model.newInstance("plain");
                Model parallel = Model.newInstance("parallel");
                NDManager manager = NDManager.newBaseManager()) {
            plain.setBlock(stock());
            plain.getBlock().initialize(plain.getNDManager(), DataType.FLOAT32, INPUT);
            WeightExport.builder()
                    .setMapping(NameMapping.torch())
                    .build()
                    .write(plain.getBlock(), folder);
            try (WeightFiles files = WeightFiles.open(folder)) {
                TreeSet<String> names = new TreeSet<>();
                files.names().forEach(names::add);
                Assert.assertEquals(
                        names.toString(),
                        "[BatchNorm.bias, BatchNorm.running_mean, BatchNorm.running_var,"
                                + " BatchNorm.weight, LayerNorm.bias, LayerNorm.weight,"
                                + " Linear0.bias, Linear0.weight, Linear1.bias, Linear1.weight]");
            }
            parallel.setBlock(cut());
            NDList x = new NDList(manager.randomNormal(INPUT));
            NDArray expected =
                    plain.newPredictor(new NoopTranslator(null)).predict(x).singletonOrThrow();
            try (PretrainedWeights weights =
                    PretrainedWeights.builder().setPath(folder).setMapping(CUT).build()) {
                weights.bind(parallel, INPUT);
                try (ParallelPredictor<NDList, NDList> predictor =
                        new ParallelPredictor<>(
                                parallel, new NoopTranslator(null), SmallModels.ranks(3))) {
                    NDArray y = predictor.predict(x).singletonOrThrow();
                    ArrayAssert.assertClose(y, expected, 1e-5, "on ranks");
                    // while the ranks have the weights
                    WeightExport.builder()
                            .setMapping(CUT)
                            .optOverwrite(true)
                            .build()
                            .write(parallel.getBlock(), folder);
                }
            }
            try (Model back = Model.newInstance("back");
                    PretrainedWeights weights =
                            PretrainedWeights.builder()
                                    .setPath(folder)
                                    .setMapping(NameMapping.torch())
                                    .build()) {
                back.setBlock(stock());
                weights.load(back, INPUT);
                WeightExportTest.values(plain.getBlock())
                        .forEach(
                                (name, array) ->
                                        ArrayAssert.assertBitEqual(
                                                WeightExportTest.values(back.getBlock()).get(name),
                                                array,
                                                name));
            }
        }
    }

    /** DJL's Prelu has one number, without an axis. */
    @Test(timeOut = 60_000)
    public void aNumberWithoutAxesIsATensor() throws Exception {
        Path folder = Files.createTempDirectory("scalar");
        try (Model model = Model.newInstance("one");
                Model other = Model.newInstance("other")) {
            for (Model each : List.of(model, other)) {
                Block prelu = new Prelu();
                prelu.setInitializer(Initializer.ONES, parameter -> true);
                each.setBlock(
                        new SequentialBlock().add(Linear.builder().setUnits(5).build()).add(prelu));
            }
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, INPUT);
            NDArray alpha = model.getBlock().getParameters().valueAt(2).getArray();
            Assert.assertEquals(alpha.getShape().dimension(), 0);
            alpha.set(new float[] {0.3f});
            WeightExport.builder()
                    .setMapping(NameMapping.own())
                    .build()
                    .write(model.getBlock(), folder);
            try (PretrainedWeights weights =
                    PretrainedWeights.builder()
                            .setPath(folder)
                            .setMapping(NameMapping.own())
                            .build()) {
                weights.load(other, INPUT);
            }
            for (int i = 0; i < 3; i++) {
                Assert.assertEquals(
                        other.getBlock().getParameters().valueAt(i).getArray(),
                        model.getBlock().getParameters().valueAt(i).getArray());
            }
        } finally {
            Utils.deleteQuietly(folder);
        }
    }
}

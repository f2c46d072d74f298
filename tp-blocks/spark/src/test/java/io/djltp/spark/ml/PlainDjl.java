package io.djltp.spark.ml;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.ParameterStore;

import org.apache.spark.sql.Row;
import org.testng.Assert;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** Reads a trained model without Spark. */
final class PlainDjl {

    private PlainDjl() {}

    /** Compares the predictions of a network of 3 features, 8 units and 4 classes. */
    static void check(ParallelClassificationModel model, List<Row> predicted) throws Exception {
        Path folder = Files.createTempDirectory("djl");
        model.saveAsDjl(folder);
        try (Model plain = Model.newInstance("classifier", Device.cpu(), "PyTorch");
                NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            plain.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(8).build())
                            .add(Activation::relu)
                            .add(Linear.builder().setUnits(4).build()));
            plain.load(folder);
            for (Row row : predicted) {
                org.apache.spark.ml.linalg.Vector features = row.getAs("features");
                float[] values = new float[3];
                for (int i = 0; i < 3; i++) {
                    values[i] = (float) features.apply(i);
                }
                NDArray logits =
                        plain.getBlock()
                                .forward(
                                        new ParameterStore(manager, false),
                                        new NDList(manager.create(values, new Shape(1, 3))),
                                        false)
                                .singletonOrThrow();
                Assert.assertEquals(
                        (double) logits.argMax().getLong(), row.<Double>getAs("prediction"));
            }
        }
        Assert.assertEquals(
                Files.readAllLines(folder.resolve("synset.txt")), List.of(model.getClassNames()));
    }
}

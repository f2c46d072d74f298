package io.djltp.spark;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.ArrayDataset;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelMode;
import io.djltp.training.ParallelTrainer;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.stream.Stream;

/** A training of a few steps. */
final class SmallTraining {

    private SmallTraining() {}

    /** Trains, and returns the file of the model. */
    static byte[] train(SparkRanks ranks) throws Exception {
        Engine.getEngine("PyTorch").setRandomSeed(1);
        try (Model model = Model.newInstance("net");
                NDManager manager = NDManager.newBaseManager()) {
            NDArray rows = manager.arange(24 * 5).reshape(24, 5).sin();
            NDArray labels = manager.arange(24).mul(4);
            ArrayDataset data =
                    new ArrayDataset.Builder()
                            .setData(rows)
                            .optLabels(labels)
                            .setSampling(8, true)
                            .build();
            model.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(6).build())
                            .add(
                                    ClassificationHead.builder()
                                            .setUnits(101)
                                            .optBatchShardedInput(true)
                                            .build()));
            try (ParallelTrainer trainer =
                    new ParallelTrainer(
                            model,
                            new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss()),
                            ranks.config().setMode(ParallelMode.MIXED).build())) {
                trainer.initialize(new Shape(8, 5));
                EasyTrain.fit(trainer, 2, data, null);
            }
            Path folder = Files.createTempDirectory("model");
            model.save(folder, "net");
            try (Stream<Path> files = Files.list(folder)) {
                return Files.readAllBytes(files.findFirst().orElseThrow());
            }
        }
    }
}

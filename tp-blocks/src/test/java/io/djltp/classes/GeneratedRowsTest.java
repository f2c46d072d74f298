package io.djltp.classes;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.dataset.Batch;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import io.djltp.classes.ClassData.Format;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.nn.EmbeddingBag;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

public class GeneratedRowsTest {

    @Test(timeOut = 60_000)
    public void filesHaveTheRows() throws IOException {
        GeneratedRows rows = new GeneratedRows(500, 1000, 200, 5, 3);
        for (Format format : new Format[] {Format.XC_OLD, Format.LIBSVM, Format.FASTTEXT}) {
            Path file = TestFolder.create().resolve("generated");

            rows.write(file, format);
            ClassData data = ClassData.builder(file).build();
            Assert.assertEquals(data.getFormat(), format);
            Assert.assertTrue(data.hasManyLabels());
            try (var all = data.stream()) {
                all.forEach(
                        row -> {
                            int[] expected = rows.labelsOf(row.number());
                            Assert.assertEquals(row.classes().length, expected.length);
                            for (int label : expected) {
                                int number = data.getClasses().indexOf("" + label);
                                Assert.assertTrue(contains(row.classes(), number));
                            }
                        });
            }
        }
    }

    private static boolean contains(int[] all, int one) {
        return java.util.Arrays.stream(all).anyMatch(each -> each == one);
    }

    @Test(timeOut = 120_000)
    public void aLinearModelLearnsThem() throws Exception {
        Path file = Files.createTempFile("generated", ".txt");
        try (Model model = Model.newInstance("linear")) {
            new GeneratedRows(3000, 2000, 100, 1, 3).write(file, Format.XC_OLD);
            ClassData data = ClassData.builder(file).optManyLabels(false).build();
            ClassificationHead head =
                    ClassificationHead.builder().setUnits(100).optFusedLoss(false).build();
            model.setBlock(
                    new SequentialBlock()
                            .add(new EmbeddingBag(data.getFeatureCount() + 1L, 32))
                            .add(head));
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                            .optOptimizer(
                                    Optimizer.adagrad()
                                            .optLearningRateTracker(Tracker.fixed(0.3f))
                                            .build());
            try (ParallelTrainer trainer =
                    new ParallelTrainer(model, config, ParallelConfig.tensor(2))) {
                trainer.initialize(new Shape(50, 1), new Shape(50, 1));
                int right = 0;
                for (int pass = 0; pass < 4; pass++) {
                    for (Batch batch :
                            data.newDataset(50, true, 1)
                                    .getData(trainer.getManager(), null, pass, 0)) {
                        EasyTrain.trainBatch(trainer, batch);
                        trainer.step();
                        batch.close();
                    }
                }
                for (Batch batch :
                        data.newDataset(50, false, 1).getData(trainer.getManager(), null, 0, 0)) {
                    try (batch;
                            NDList logits = trainer.evaluate(batch.getData())) {
                        NDArray best = logits.singletonOrThrow().argMax(1);
                        right +=
                                (int) best.eq(batch.getLabels().singletonOrThrow()).sum().getLong();
                    }
                }
                Assert.assertTrue(right > 2700, right + " of 3000");
            }
        } finally {
            Files.delete(file);
        }
    }
}

package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.util.Utils;

import io.djltp.checkpoint.Checkpoint;
import io.djltp.checkpoint.CheckpointListener;
import io.djltp.training.ParallelTrainer;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** What is written of a checkpoint is what is written of the model that it was taken of. */
public class CheckpointExportTest {

    @DataProvider
    public Object[][] models() {
        return new Object[][] {
            {true, SmallModels.LLAMA, "model.embed_tokens.weight"},
            {true, NameMapping.own(), "VocabParallelEmbedding.embedding"},
            {false, SmallModels.LLAMA, "lm_head.weight"},
            {false, NameMapping.own(), "ColumnParallelLinear.weight"}
        };
    }

    @Test(dataProvider = "models", timeOut = 60_000)
    public void bothAreTheSameFile(boolean tied, NameMapping mapping, String name)
            throws IOException {
        Path root = Files.createTempDirectory("checkpoint-export");
        WeightExport export = WeightExport.builder().setMapping(mapping).build();
        try (Model model = Model.newInstance("llama")) {
            model.setBlock(SmallModels.llama(false, tied));
            CheckpointListener checkpoints =
                    CheckpointListener.builder().setFolder(root.resolve("run")).build();
            DefaultTrainingConfig config =
                    new DefaultTrainingConfig(Loss.l2Loss()).addTrainingListeners(checkpoints);
            try (ParallelTrainer trainer =
                    new ParallelTrainer(model, config, SmallModels.ranks(2))) {
                trainer.initialize(SmallModels.INPUT);
                checkpoints.save();
                Assert.assertTrue(checkpoints.await());
                Path ofModel = export.write(model.getBlock(), root.resolve("model"));
                try (Checkpoint checkpoint = Checkpoint.open(root.resolve("run/step-00000000"))) {
                    Path ofCheckpoint = export.write(checkpoint, root.resolve("checkpoint"));
                    Assert.assertEquals(
                            Files.readAllBytes(ofCheckpoint), Files.readAllBytes(ofModel));
                }
                try (WeightFiles files = WeightFiles.open(root.resolve("checkpoint"))) {
                    Assert.assertNotNull(files.get(name), name);
                }
            }
        } finally {
            Utils.deleteQuietly(root);
        }
    }
}

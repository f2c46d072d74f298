package io.djltp.exchange;

import ai.djl.Model;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.loss.Loss;
import ai.djl.util.Utils;

import com.google.gson.JsonObject;

import io.djltp.checkpoint.TrainingState;
import io.djltp.checkpoint.store.Checkpoint;
import io.djltp.checkpoint.store.CheckpointFolder;
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
            DefaultTrainingConfig config = new DefaultTrainingConfig(Loss.l2Loss());
            try (ParallelTrainer trainer =
                            new ParallelTrainer(model, config, SmallModels.ranks(2));
                    CheckpointFolder folder = CheckpointFolder.open(root.resolve("run"));
                    TrainingState state = new TrainingState(trainer)) {
                trainer.initialize(SmallModels.INPUT);
                Assert.assertTrue(state.save(folder, new JsonObject()).await());
                Path ofModel = export.write(model.getBlock(), root.resolve("model"));
                try (Checkpoint checkpoint = folder.openNewest().orElseThrow()) {
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

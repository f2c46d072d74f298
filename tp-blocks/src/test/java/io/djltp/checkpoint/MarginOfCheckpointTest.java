package io.djltp.checkpoint;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Blocks.newHead;
import static io.djltp.testing.Blocks.sequence;
import static io.djltp.testing.TrainerKind.TENSOR_2;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.ParameterStore;

import io.djltp.checkpoint.StoppedRun.Task;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.exchange.WeightExport;
import io.djltp.head.Margin;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.testing.Configs;
import io.djltp.testing.Refusals;
import io.djltp.testing.TestFolder;
import io.djltp.testing.TrainingRun;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** The margin of a head belongs to its weight: in a checkpoint, and in what is exported of it. */
public class MarginOfCheckpointTest {

    private static final Margin MARGIN = Margin.cosFace(16, 0.3f);
    private static final int CLASSES = 7;

    private final Path folder = TestFolder.create();

    private static Task task(Margin margin) {
        return new Task(
                () ->
                        sequence(
                                linear(6),
                                newHead(CLASSES)
                                        .optBatchShardedInput(true)
                                        .optBias(false)
                                        .optMargin(margin)
                                        .build()),
                VocabParallelCrossEntropyLoss::new,
                () -> Configs.sgd(0.1f),
                (manager, step) -> TrainingRun.random(manager, step, 9, 5),
                (manager, step) -> TrainingRun.labels(manager, step, 9, CLASSES));
    }

    @BeforeClass
    public void save() throws IOException {
        StoppedRun.saved(TENSOR_2, task(MARGIN), List.of(2), folder.resolve("with"));
        StoppedRun.saved(TENSOR_2, task(null), List.of(2), folder.resolve("without"));
    }

    @DataProvider
    public Object[][] others() {
        Margin other = Margin.cosFace(16, 0.5f);
        return new Object[][] {
            {"with", null, MARGIN + ", and this one is built with no margin"},
            {"with", other, MARGIN + ", and this one is built with " + other},
            {"without", MARGIN, "no margin, and this one is built with " + MARGIN}
        };
    }

    @Test(dataProvider = "others", timeOut = 60_000)
    public void anotherMarginIsAnotherNetwork(String saved, Margin built, String named) {
        StoppedRun.assertRefused(
                TENSOR_2,
                task(built),
                folder.resolve(saved),
                2,
                named,
                "ClassificationHead_weight");
    }

    @Test(timeOut = 60_000)
    public void anExportHasTheMargin() throws Exception {
        Path out = folder.resolve("out");
        try (CheckpointFolder all = CheckpointFolder.read(folder.resolve("with"));
                Checkpoint checkpoint = all.openStep(2);
                NDManager manager = NDManager.newBaseManager()) {
            WeightExport.builder().setMapping(NameMapping.own()).build().write(checkpoint, out);
            float[] logits = logits(out, MARGIN, manager);
            for (float logit : logits) { // a cosine, scaled
                Assert.assertTrue(Math.abs(logit) <= MARGIN.scale(), "" + logit);
            }
            for (Margin other : new Margin[] {null, Margin.arcFace(16, 0.3f)}) {
                Refusals.expect(
                        MalformedModelException.class,
                        () -> logits(out, other, manager),
                        "trained with the margin 16.0 1.0 0.0 0.3 ",
                        "ClassificationHead.weight is built with "
                                + (other == null ? "no margin" : "16.0 1.0 0.3 0.0"));
            }
            // and once more, from the model that has read it
            try (Model model = read(out, MARGIN)) {
                Path again = folder.resolve("again");
                WeightExport.builder()
                        .setMapping(NameMapping.own())
                        .build()
                        .write(model.getBlock(), again);
                Assert.assertEquals(
                        Files.mismatch(
                                out.resolve("model.safetensors"),
                                again.resolve("model.safetensors")),
                        -1);
            }
        }
    }

    private static Model read(Path weights, Margin margin) throws Exception {
        Model model = Model.newInstance("net");
        model.setBlock(task(margin).network().get());
        try (PretrainedWeights read =
                PretrainedWeights.builder()
                        .setPath(weights)
                        .setMapping(NameMapping.own())
                        .build()) {
            read.load(model, new Shape(9, 5));
        }
        return model;
    }

    private static float[] logits(Path weights, Margin margin, NDManager manager) throws Exception {
        try (Model model = read(weights, margin)) {
            NDArray rows = TrainingRun.random(manager, 1, 9, 5);
            ParameterStore store = new ParameterStore(manager, false);
            return model.getBlock().forward(store, new NDList(rows), false).head().toFloatArray();
        }
    }
}

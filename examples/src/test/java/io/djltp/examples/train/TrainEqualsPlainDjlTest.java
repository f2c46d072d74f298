package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.initializer.NormalInitializer;
import ai.djl.training.loss.Loss;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.classes.TextFeatures;
import io.djltp.examples.OptimizerName;
import io.djltp.examples.TpRun;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * {@code tp train --steps 30 --seed 7} has the losses of the same network made of plain DJL blocks
 * under DJL's own trainer, on 1 to 4 ranks in tensor-parallel mode and on meshes: 120,658 real
 * classes.
 */
public class TrainEqualsPlainDjlTest {
    private static final int STEPS = 30;
    private static final int SEED = 7;
    private static final int DIM = 16;
    private static final int BATCH = 32;

    // fp32 sums in another order; Adam divides by the root of tiny squares
    @Test(timeOut = 600_000)
    public void sameLossSequence() throws Exception {
        check(OptimizerName.SGD, 1, 1e-5, "--mesh 2x3 --backend tcp --head full");
    }

    @Test(groups = "sweep", timeOut = 600_000)
    public void sameLossSequenceWithMomentum() throws Exception {
        check(OptimizerName.MOMENTUM, 0.1f, 1e-5);
    }

    @Test(groups = "sweep", timeOut = 600_000)
    public void sameLossSequenceWithAdam() throws Exception {
        check(OptimizerName.ADAM, 0.01f, 1e-4, "--mesh 2x2 --head full");
    }

    private static void check(
            OptimizerName optimizer, float rate, double tolerance, String... meshes)
            throws Exception {
        double[] plain = trainPlainDjl(optimizer, rate);
        List<String> ways = new ArrayList<>(List.of(meshes));
        for (int ranks = 1; ranks <= 4; ranks++) {
            String head = ranks % 2 == 0 ? "fused" : "full";
            ways.add("--mode tensor --tp " + ranks + " --head " + head);
        }
        for (String way : ways) {
            String line =
                    "train --steps %d --seed %d --optimizer %s --lr %s --dim %d --batch %d %s"
                            .formatted(STEPS, SEED, optimizer, rate, DIM, BATCH, way);
            double[] losses = TpRun.training(line).losses();
            assertSame(losses, plain, tolerance, optimizer + ", " + way);
        }
    }

    static void assertSame(double[] losses, double[] expected, double tolerance, String way) {
        Assert.assertEquals(losses.length, expected.length);
        for (int i = 0; i < losses.length; i++) {
            double most = tolerance * expected[i];
            Assert.assertEquals(losses[i], expected[i], most, way + ", step " + i);
        }
    }

    /** The blocks that {@code tp train} has below its head, and DJL's own head. */
    private static double[] trainPlainDjl(OptimizerName optimizer, float rate) throws Exception {
        Path folder = TestFolder.create();
        HeldOutSplit.of(LemmaCorpus.read(List.of(Language.DE))).write(folder);
        ClassData data =
                ClassData.builder(folder.resolve(HeldOutSplit.TRAIN))
                        .optTextFeatures(new TextFeatures(1 << 16, 2, 5, 1, 2))
                        .build();
        SequentialBlock network = new SequentialBlock();
        double[] losses = new double[STEPS];
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.softmaxCrossEntropyLoss())
                        .optOptimizer(optimizer.create(rate));
        try (ClassModel ours = ClassModel.builder(data).optDim(DIM).build();
                Model model = Model.newInstance("plain")) {
            network.addAll(ours.getModel().getBlock().getChildren().values().subList(0, 2));
            Linear head = Linear.builder().setUnits(data.getClasses().size()).build();
            head.setInitializer(new NormalInitializer(0.01f), Parameter.Type.WEIGHT);
            model.setBlock(network.add(head));
            Engine.getInstance().setRandomSeed(SEED);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(ours.getInputShapes(BATCH));
                var batches =
                        data.newDataset(BATCH, true, SEED).getData(trainer.getManager()).iterator();
                for (int i = 0; i < STEPS; i++) {
                    losses[i] = step(trainer, batches.next());
                }
            }
        }
        return losses;
    }

    private static float step(Trainer trainer, Batch batch) {
        float value;
        try (GradientCollector collector = trainer.newGradientCollector()) {
            var predictions = trainer.forward(batch.getData());
            var loss = trainer.getLoss().evaluate(batch.getLabels(), predictions);
            collector.backward(loss);
            value = loss.getFloat();
        }
        trainer.step();
        batch.close();
        return value;
    }
}

package io.djltp.examples.train;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import ai.djl.training.dataset.Batch;
import ai.djl.training.loss.Loss;

import io.djltp.examples.OptimizerName;
import io.djltp.examples.TpRun;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.examples.lemma.LemmaDataset;
import io.djltp.zoo.CharNGrams;
import io.djltp.zoo.LemmaNetwork;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
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
    @Test(timeOut = 300_000)
    public void sameLossSequence() throws IOException {
        check(OptimizerName.SGD, 1, 1e-5, "--mesh 2x3 --backend tcp --head full");
    }

    @Test(groups = "sweep", timeOut = 300_000)
    public void sameLossSequenceWithMomentum() throws IOException {
        check(OptimizerName.MOMENTUM, 0.1f, 1e-5);
    }

    @Test(groups = "sweep", timeOut = 300_000)
    public void sameLossSequenceWithAdam() throws IOException {
        check(OptimizerName.ADAM, 0.01f, 1e-4, "--mesh 2x2 --head full");
    }

    private static void check(
            OptimizerName optimizer, float rate, double tolerance, String... meshes)
            throws IOException {
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
            double[] losses = TpRun.training(line + " --held-out 1").losses();
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

    private static double[] trainPlainDjl(OptimizerName optimizer, float rate) throws IOException {
        LemmaCorpus corpus = LemmaCorpus.read(List.of(Language.DE));
        HeldOutSplit split =
                HeldOutSplit.of(corpus, TrainCommand.HELD_OUT, TrainCommand.SPLIT_SEED);
        CharNGrams nGrams = new CharNGrams(TrainCommand.tableRows(corpus.classes()));
        LemmaDataset dataset = LemmaDataset.training(split, nGrams, BATCH, SEED, () -> false);
        Linear head = Linear.builder().setUnits(corpus.classes()).build();
        LemmaNetwork.initializeHead(head);
        double[] losses = new double[STEPS];
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.softmaxCrossEntropyLoss())
                        .optOptimizer(optimizer.create(rate));
        try (Model model = Model.newInstance("plain")) {
            model.setBlock(LemmaNetwork.create(nGrams.rows(), DIM, head));
            Engine.getInstance().setRandomSeed(SEED);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(BATCH, nGrams.limit()));
                var batches = dataset.getData(trainer.getManager()).iterator();
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

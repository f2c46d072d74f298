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
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;

import com.google.gson.JsonArray;

import io.djltp.examples.TpRun;
import io.djltp.examples.lemma.HeldOutSplit;
import io.djltp.examples.lemma.Language;
import io.djltp.examples.lemma.LemmaCorpus;
import io.djltp.examples.lemma.LemmaDataset;
import io.djltp.zoo.lemma.CharNGrams;
import io.djltp.zoo.lemma.LemmaNetwork;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
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

    private LemmaCorpus corpus;

    // fp32 sums in another order; Adam divides by the root of tiny squares

    @Test(timeOut = 300_000)
    public void sameLossSequence() throws IOException {
        Optimizer sgd = Optimizer.sgd().setLearningRateTracker(Tracker.fixed(1f)).build();
        check("sgd", sgd, "1", 1e-5, List.of("--mesh 2x3 --backend tcp --head full"));
    }

    @Test(groups = "sweep", timeOut = 300_000)
    public void sameLossSequenceWithMomentum() throws IOException {
        Tracker rate = Tracker.fixed(0.1f);
        Optimizer sgd = Optimizer.sgd().setLearningRateTracker(rate).optMomentum(0.9f).build();
        check("momentum", sgd, "0.1", 1e-5, List.of());
    }

    @Test(groups = "sweep", timeOut = 300_000)
    public void sameLossSequenceWithAdam() throws IOException {
        Optimizer adam = Optimizer.adam().optLearningRateTracker(Tracker.fixed(0.01f)).build();
        check("adam", adam, "0.01", 1e-4, List.of("--mesh 2x2 --head full"));
    }

    private void check(
            String name, Optimizer optimizer, String rate, double tolerance, List<String> meshes)
            throws IOException {
        List<Float> expected = trainPlainDjl(optimizer);
        List<String> ways = new ArrayList<>();
        for (int ranks = 1; ranks <= 4; ranks++) {
            String head = ranks % 2 == 0 ? "fused" : "full";
            ways.add("--mode tensor --tp " + ranks + " --head " + head);
        }
        ways.addAll(meshes);
        for (String way : ways) {
            JsonArray losses = trainParallel(name, rate, way);
            Assert.assertEquals(losses.size(), STEPS);
            for (int step = 0; step < STEPS; step++) {
                double plain = expected.get(step);
                Assert.assertEquals(
                        losses.get(step).getAsDouble(),
                        plain,
                        plain * tolerance,
                        name + ", " + way + ", step " + step);
            }
        }
    }

    private static JsonArray trainParallel(String optimizer, String rate, String way)
            throws IOException {
        Path out = Files.createTempDirectory("tp-train");
        Path file = Files.createTempFile("tp-train", ".json");
        try {
            List<String> arguments = new ArrayList<>(List.of("train"));
            arguments.addAll(List.of(way.split(" ")));
            arguments.addAll(
                    List.of(
                            "--steps",
                            "" + STEPS,
                            "--seed",
                            "" + SEED,
                            "--optimizer",
                            optimizer,
                            "--lr",
                            rate,
                            "--dim",
                            "" + DIM,
                            "--batch",
                            "" + BATCH,
                            "--held-out",
                            "1", // the losses are what is compared
                            "--out",
                            out.toString(),
                            "--json",
                            file.toString()));
            TpRun run = TpRun.of(arguments.toArray(String[]::new));
            run.assertPrints(0);
            return TpRun.json(file).get("loss").getAsJsonArray();
        } finally {
            Files.delete(file);
            for (String name :
                    new String[] {"lemma-0000.params", "lemma.lexicon.tsv", "lemma.properties"}) {
                Files.delete(out.resolve(name));
            }
            Files.delete(out);
        }
    }

    private List<Float> trainPlainDjl(Optimizer optimizer) throws IOException {
        if (corpus == null) {
            corpus = LemmaCorpus.read(List.of(Language.DE));
        }
        HeldOutSplit split =
                HeldOutSplit.of(corpus, TrainCommand.HELD_OUT, TrainCommand.SPLIT_SEED);
        CharNGrams nGrams = new CharNGrams(TrainCommand.tableRows(corpus.classes()));
        LemmaDataset dataset = LemmaDataset.training(split, nGrams, BATCH, SEED, () -> false);
        Linear head = Linear.builder().setUnits(corpus.classes()).build();
        LemmaNetwork.initializeHead(head);
        List<Float> losses = new ArrayList<>();
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.softmaxCrossEntropyLoss()).optOptimizer(optimizer);
        try (Model model = Model.newInstance("plain")) {
            model.setBlock(LemmaNetwork.create(nGrams.rows(), DIM, head));
            Engine.getInstance().setRandomSeed(SEED);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(BATCH, nGrams.limit()));
                for (Batch batch : dataset.getData(trainer.getManager())) {
                    if (losses.size() == STEPS) {
                        batch.close();
                        break;
                    }
                    losses.add(step(trainer, batch));
                    batch.close();
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
        return value;
    }
}

package io.djltp.examples.lemma;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.EasyTrain;
import ai.djl.training.ParameterStore;
import ai.djl.training.Trainer;
import ai.djl.training.loss.Loss;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;
import ai.djl.util.Utils;

import io.djltp.zoo.CharNGrams;
import io.djltp.zoo.LemmaNetwork;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

public class LemmaNetworkTest {

    private static final int ROWS = 512;
    private static final int DIM = 32;

    private Path folder;

    @BeforeClass
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("lemma");
    }

    @AfterClass
    public void removeFolder() {
        Utils.deleteQuietly(folder);
    }

    @Test(timeOut = 60_000)
    public void featuresHaveTheirLengthAndPaddingDoesNotCount() {
        try (NDManager manager = NDManager.newBaseManager()) {
            Block body = body(manager);
            NDArray features = forward(body, manager, new int[] {5, 9, 0, 0, 7, 7, 7, 0}, 4);
            Assert.assertEquals(features.getShape(), new Shape(2, DIM));
            float[] lengths = features.square().sum(new int[] {1}).sqrt().toFloatArray();
            Assert.assertEquals(lengths[0], LemmaNetwork.FEATURE_LENGTH, 1e-3f);
            Assert.assertEquals(lengths[1], LemmaNetwork.FEATURE_LENGTH, 1e-3f);
            NDArray narrow = forward(body, manager, new int[] {5, 9}, 2);
            Assert.assertEquals(
                    features.get(0).toFloatArray(), narrow.get(0).toFloatArray(), 1e-4f);
        }
    }

    @Test(timeOut = 60_000)
    public void resultsBelongToTheInput() {
        try (NDManager manager = NDManager.newBaseManager()) {
            Block body = body(manager);
            try (NDManager scope = manager.newSubManager()) {
                NDArray features = forward(body, scope, new int[] {1, 2, 3, 0}, 4);
                Assert.assertSame(features.getManager(), scope);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void threadsShareOneBlock() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try (NDManager manager = NDManager.newBaseManager()) {
            Block body = body(manager);
            List<Future<float[]>> results = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                int row = 1 + i % 4;
                results.add(
                        threads.submit(
                                () -> {
                                    try (NDManager scope = manager.newSubManager()) {
                                        int[] rows = {row, row + 4, 0};
                                        return forward(body, scope, rows, 3).toFloatArray();
                                    }
                                }));
            }
            for (int i = 4; i < 40; i++) {
                Assert.assertEquals(results.get(i).get(), results.get(i % 4).get());
            }
        } finally {
            threads.shutdownNow();
        }
    }

    @Test(timeOut = 120_000)
    public void plainDjlTrainsSavesLoadsAndPredicts()
            throws IOException, TranslateException, MalformedModelException {
        LemmaCorpus corpus = TestCorpus.verbs(20, 4);
        HeldOutSplit split = HeldOutSplit.of(corpus, 10, 1);
        CharNGrams nGrams = new CharNGrams(ROWS);
        int pair = split.trainingPairs()[1];
        Classifications before;
        try (Model model = model(corpus)) {
            train(model, split, nGrams);
            before = predict(model, corpus.form(pair), nGrams, corpus.lexicon());
            model.save(folder, "lemma");
            corpus.lexicon().save(folder.resolve("lexicon.tsv"));
        }
        try (Model model = model(corpus)) {
            model.load(folder, "lemma");
            Lexicon lexicon = Lexicon.load(folder.resolve("lexicon.tsv"));
            Classifications after = predict(model, corpus.form(pair), nGrams, lexicon);
            Assert.assertEquals(after.getClassNames(), before.getClassNames());
            Assert.assertEquals(after.getProbabilities(), before.getProbabilities());
            Assert.assertEquals(after.best().getClassName(), lexicon.lemma(corpus.classOf(pair)));
            Assert.assertTrue(after.best().getProbability() > 0.5);
        }
    }

    private static void train(Model model, HeldOutSplit split, CharNGrams nGrams)
            throws IOException, TranslateException {
        Engine.getInstance().setRandomSeed(1);
        LemmaDataset training = LemmaDataset.training(split, nGrams, 10, 0, () -> false);
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(Loss.softmaxCrossEntropyLoss())
                        .optOptimizer(
                                Optimizer.sgd()
                                        .setLearningRateTracker(Tracker.fixed(0.05f))
                                        .build());
        try (Trainer trainer = model.newTrainer(config)) {
            trainer.initialize(new Shape(10, nGrams.limit()));
            EasyTrain.fit(trainer, 40, training, null);
        }
    }

    private static Classifications predict(
            Model model, String word, CharNGrams nGrams, Lexicon lexicon)
            throws TranslateException {
        try (LemmaSearch search = new LemmaSearch(model);
                Predictor<String, Classifications> predictor =
                        search.newPredictor(nGrams, lexicon, 3)) {
            return predictor.predict(word);
        }
    }

    private static Model model(LemmaCorpus corpus) {
        Model model = Model.newInstance("lemma");
        Linear head = Linear.builder().setUnits(corpus.classes()).build();
        model.setBlock(LemmaNetwork.create(ROWS, DIM, head));
        return model;
    }

    private static Block body(NDManager manager) {
        Block body = LemmaNetwork.body(ROWS, DIM);
        body.initialize(manager, DataType.FLOAT32, new Shape(2, 4));
        return body;
    }

    private static NDArray forward(Block body, NDManager manager, int[] rows, int width) {
        NDArray indices = manager.create(rows, new Shape(rows.length / width, width));
        ParameterStore store = new ParameterStore(manager, false);
        return body.forward(store, new NDList(indices), false).singletonOrThrow();
    }
}

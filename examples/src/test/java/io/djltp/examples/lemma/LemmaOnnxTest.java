package io.djltp.examples.lemma;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.ParameterStore;
import ai.djl.util.Utils;

import io.djltp.examples.TpRun;
import io.djltp.exchange.OnnxExport;
import io.djltp.layout.ParallelMode;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.training.ParallelTrainer;
import io.djltp.zoo.lemma.CharNGrams;
import io.djltp.zoo.lemma.LemmaNetwork;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** ONNX Runtime computes of the file what DJL computes of the model. */
public class LemmaOnnxTest {

    private static final int DIM = 24;
    private static final String[] WORDS = {
        "Häuser", "ging", "schönsten", "Übergänge", "a", "Straßenbahnhaltestellen", "wäre"
    };

    private Path folder;

    @BeforeClass
    public void makeFolder() throws IOException {
        folder = Files.createTempDirectory("onnx");
    }

    @AfterClass
    public void removeFolder() {
        Utils.deleteQuietly(folder);
    }

    @Test(timeOut = 60_000)
    public void aLemmatiserGivesTheSameLogits() throws Exception {
        Path model = folder.resolve("model");
        Files.createDirectories(model);
        LemmaCorpus corpus = TestCorpus.verbs(300, 2);
        CharNGrams nGrams = new CharNGrams(512, 40);
        try (Model trained = Model.newInstance("lemma")) {
            Linear head = Linear.builder().setUnits(corpus.classes()).build();
            trained.setBlock(LemmaNetwork.create(nGrams.rows(), DIM, head));
            trained.getBlock()
                    .initialize(
                            trained.getNDManager(), DataType.FLOAT32, new Shape(1, nGrams.limit()));
            SavedModel.save(model, trained, corpus.lexicon(), nGrams, DIM);
        }
        Path file = folder.resolve("new/lemma.onnx");
        TpRun run = TpRun.line("export --model " + model + " --onnx " + file);
        run.assertPrints(0, "opset 17");
        try (SavedModel saved = SavedModel.load(model);
                NDManager manager = NDManager.newBaseManager()) {
            int[] rows = new int[WORDS.length * nGrams.limit()];
            for (int i = 0; i < WORDS.length; i++) {
                nGrams.fill(WORDS[i], rows, i * nGrams.limit());
            }
            NDArray ids = manager.create(rows, new Shape(WORDS.length, nGrams.limit()));
            NDArray logits = forward(saved.getModel(), ids);
            OnnxFiles.assertComputes(file, "ngrams", ids, "logits", logits);
        }
    }

    private static NDArray forward(Model model, NDArray input) {
        ParameterStore store = new ParameterStore(input.getManager(), false);
        return model.getBlock().forward(store, new NDList(input), false).singletonOrThrow();
    }

    /** In training, on ranks; the weights in a file of their own. */
    @Test(timeOut = 60_000)
    public void aHeadInTrainingIsWritten() throws Exception {
        Path file = folder.resolve("head.onnx");
        float[][] rows = {{1, -2, 3, 0.5f}, {0, 4, -1, 2}, {3, 3, 1, -2}};
        ParallelConfig ranks =
                ParallelConfig.builder().setMode(ParallelMode.TENSOR).setRanks(2).build();
        try (Model model = Model.newInstance("head")) {
            model.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(5).build())
                            .add(ClassificationHead.builder().setUnits(7).build()));
            try (ParallelTrainer trainer =
                    new ParallelTrainer(
                            model,
                            new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss()),
                            ranks)) {
                trainer.initialize(new Shape(3, 4));
                OnnxExport.builder()
                        .setInput("features", DataType.FLOAT32, new Shape(-1, 4))
                        .optExternalAbove(0)
                        .build()
                        .write(model, file);
            }
            Assert.assertTrue(Files.size(folder.resolve("head.onnx.data")) > 3 * 4096);
            try (NDManager manager = NDManager.newBaseManager()) {
                NDArray features = manager.create(rows);
                NDArray expected = forward(model, features);
                OnnxFiles.assertComputes(file, "features", features, "output", expected);
            }
        }
    }

    @Test
    public void whatIsNotKnownIsNamed() {
        try (Model model = Model.newInstance("m")) {
            model.setBlock(
                    new SequentialBlock()
                            .add(Linear.builder().setUnits(5).build())
                            .add(inputs -> inputs));
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(3, 4));
            IllegalArgumentException e =
                    Assert.expectThrows(
                            IllegalArgumentException.class,
                            () ->
                                    OnnxExport.builder()
                                            .setInput("x", DataType.FLOAT32, new Shape(-1, 4))
                                            .build()
                                            .write(model, folder.resolve("none.onnx")));
            Assert.assertTrue(
                    e.getMessage().contains("say what it computes with optBlock"), e.getMessage());
            Assert.assertFalse(Files.exists(folder.resolve("none.onnx")));
        }
    }
}

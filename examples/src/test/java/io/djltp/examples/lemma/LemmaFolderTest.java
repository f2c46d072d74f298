package io.djltp.examples.lemma;

import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.modality.Input;
import ai.djl.modality.Output;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ZooModel;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.GradientCollector;
import ai.djl.training.ParameterStore;

import io.djltp.examples.TpRun;
import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.testing.Configs;
import io.djltp.testing.TestFolder;
import io.djltp.training.ParallelTrainer;
import io.djltp.zoo.CharNGrams;
import io.djltp.zoo.LemmaNetwork;
import io.djltp.zoo.ModelFolder;
import io.djltp.zoo.RankedNetwork;

import org.testng.Assert;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/** A lemmatiser of one's own is trained, exported, and loaded as the one of the zoo is. */
public class LemmaFolderTest {

    private static final int DIM = 12;
    private static final int STEPS = 60;

    private final LemmaCorpus corpus = TestCorpus.verbs(17, 2);
    private final CharNGrams nGrams = new CharNGrams(256, 20);
    private final String[] words = new String[corpus.size()];
    private final int[] classes = new int[corpus.size()];
    private final Path folder = TestFolder.create();
    private Path saved;

    @BeforeClass
    public void train() throws IOException {
        for (int i = 0; i < words.length; i++) {
            words[i] = corpus.form(i);
            classes[i] = corpus.classOf(i);
        }
        try (Model model = Model.newInstance("lemma")) {
            ClassificationHead head =
                    ClassificationHead.builder()
                            .setUnits(corpus.classes())
                            .optBatchShardedInput(true)
                            .build();
            model.setBlock(LemmaNetwork.create(nGrams.rows(), DIM, head));
            train(model);
            saved = Files.createDirectory(folder.resolve("saved"));
            SavedModel.save(saved, model, corpus.lexicon(), nGrams, DIM);
        }
    }

    private void train(Model model) {
        DefaultTrainingConfig config =
                new DefaultTrainingConfig(new VocabParallelCrossEntropyLoss())
                        .optOptimizer(Configs.adam(0.05f));
        ParallelConfig ranks = ParallelConfig.tensor(2);
        try (ParallelTrainer trainer = new ParallelTrainer(model, config, ranks);
                NDManager manager = NDManager.newBaseManager()) {
            trainer.initialize(new Shape(words.length, nGrams.limit()));
            NDList labels = new NDList(manager.create(classes));
            for (int step = 0; step < STEPS; step++) {
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDList output = trainer.forward(new NDList(rows(manager)), labels);
                    collector.backward(trainer.getLoss().evaluate(labels, output));
                    trainer.step();
                }
            }
        }
    }

    private NDArray rows(NDManager manager) {
        int[] rows = new int[words.length * nGrams.limit()];
        for (int i = 0; i < words.length; i++) {
            nGrams.fill(words[i], rows, i * nGrams.limit());
        }
        return manager.create(rows, new Shape(words.length, nGrams.limit()));
    }

    /** Files of another model that are there stay, unless they are to be replaced. */
    @Test(timeOut = 60_000)
    public void whatIsThereIsReplacedByRequest() throws IOException {
        Path out = Files.createDirectory(folder.resolve("there"));
        Path onnx = Files.writeString(out.resolve("lemma.onnx"), "another");
        Path serving = Files.createDirectory(folder.resolve("served"));
        Path properties = Files.writeString(serving.resolve("serving.properties"), "another");
        String[][] options = {
            {"--onnx", onnx.toString()},
            {"--serving", serving.toString()}
        };
        for (String[] each : options) {
            TpRun run = TpRun.of("export", "--model", saved.toString(), each[0], each[1]);
            run.assertPrints(2, "--overwrite");
        }
        Assert.assertEquals(Files.readString(onnx), "another");
        Assert.assertEquals(Files.readString(properties), "another");
        for (String[] each : options) {
            TpRun run =
                    TpRun.of(
                            "export", "--model", saved.toString(), each[0], each[1], "--overwrite");
            run.assertPrints(0);
        }
        Assert.assertTrue(Files.size(onnx) > 100);
        Assert.assertTrue(Files.readString(properties).contains("translatorFactory"));
    }

    @DataProvider
    public Object[][] degrees() {
        return new Object[][] {{1}, {2}, {3}};
    }

    @Test(dataProvider = "degrees", timeOut = 60_000)
    public void theFolderLoadsAsThatOfTheZoo(int degree) throws Exception {
        Path serving = folder.resolve("serving-" + degree);
        TpRun run = TpRun.line("export --model " + saved + " --serving " + serving);
        run.assertPrints(0, serving.toString());
        float[] expected = probabilities();
        try (ZooModel<String, Classifications> model =
                        load(serving, degree, String.class, Classifications.class);
                Predictor<String, Classifications> predictor = model.newPredictor()) {
            Assert.assertEquals(model.getBlock() instanceof RankedNetwork, degree > 1);
            List<Classifications> answers = predictor.batchPredict(List.of(words));
            for (int i = 0; i < words.length; i++) {
                Classifications.Classification best = answers.get(i).best();
                String lemma = corpus.lexicon().lemma(classes[i]);
                Assert.assertEquals(best.getClassName(), lemma, words[i]);
                float wanted = expected[i * corpus.classes() + classes[i]];
                Assert.assertEquals(best.getProbability(), wanted, 1e-5, words[i]);
            }
        }
        serve(serving);
    }

    /** As DJL Serving does it, with the degree of {@code serving.properties}. */
    private void serve(Path serving) throws Exception {
        Files.writeString(
                serving.resolve(ModelFolder.PROPERTIES),
                Files.readString(serving.resolve(ModelFolder.PROPERTIES))
                        + "option.tensor_parallel_degree=2\n");
        try (ZooModel<Input, Output> model = load(serving, 0, Input.class, Output.class);
                Predictor<Input, Output> predictor = model.newPredictor()) {
            Assert.assertEquals(((RankedNetwork) model.getBlock()).getRanks(), 2);
            Input request = new Input();
            request.add("data", words[3]);
            String answer = predictor.predict(request).getData().getAsString();
            Assert.assertTrue(answer.contains(corpus.lexicon().lemma(classes[3])), answer);
        }
    }

    private static <I, O> ZooModel<I, O> load(
            Path serving, int degree, Class<I> input, Class<O> output) throws Exception {
        Criteria.Builder<I, O> criteria =
                Criteria.builder().setTypes(input, output).optModelPath(serving);
        if (degree > 0) { // a program; DJL chooses its translator before it reads the properties
            criteria.optArgument("tensor_parallel_degree", degree)
                    .optTranslatorFactory(new LemmaNetwork.TranslatorFactory());
        }
        return criteria.build().loadModel();
    }

    /** The softmax of the logits that ordinary DJL blocks compute of the saved model. */
    private float[] probabilities() throws Exception {
        try (SavedModel model = SavedModel.load(saved);
                NDManager manager = NDManager.newBaseManager()) {
            return logits(model, rows(manager)).softmax(1).toFloatArray();
        }
    }

    private static NDArray logits(SavedModel model, NDArray rows) {
        ParameterStore store = new ParameterStore(rows.getManager(), false);
        return model.getModel().getBlock().forward(store, new NDList(rows), false).head();
    }

    /** ONNX Runtime computes of the file what DJL computes of the model. */
    @Test(timeOut = 60_000)
    public void theOnnxFileGivesTheSameLogits() throws Exception {
        Path file = folder.resolve("new/lemma.onnx");
        TpRun.line("export --model " + saved + " --onnx " + file).assertPrints(0, "opset 17");
        try (SavedModel model = SavedModel.load(saved);
                NDManager manager = NDManager.newBaseManager()) {
            NDArray rows = rows(manager);
            LemmaOnnxTest.assertComputes(file, "ngrams", rows, "logits", logits(model, rows));
        }
    }

    @Test
    public void somethingMustBeWritten() {
        TpRun run = TpRun.line("export --model " + saved);
        run.assertPrints(2, "--serving FOLDER");
    }
}

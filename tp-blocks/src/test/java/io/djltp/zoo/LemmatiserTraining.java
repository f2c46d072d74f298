package io.djltp.zoo;

import ai.djl.Model;
import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.training.DefaultTrainingConfig;

import io.djltp.loss.VocabParallelCrossEntropyLoss;
import io.djltp.nn.ClassificationHead;
import io.djltp.rank.ParallelConfig;
import io.djltp.rank.ParallelMode;
import io.djltp.testing.Configs;
import io.djltp.testing.Ranks;
import io.djltp.testing.TrainingRun;
import io.djltp.training.ParallelTrainer;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;

/**
 * Trains the lemmatiser that is in the jar, in half a minute: {@code java
 * io.djltp.zoo.LemmatiserTraining FOLDER}, in the folder of this module.
 */
public final class LemmatiserTraining {

    private static final Logger logger = LoggerFactory.getLogger(LemmatiserTraining.class);

    private static final int ROWS = 4096;
    private static final int DIM = 32;
    private static final int LIMIT = 64;
    private static final int STEPS = 300;

    private LemmatiserTraining() {}

    /** Trains and writes the model folder. */
    public static void main(String[] args) throws IOException {
        Map<String, String> words = words();
        List<String> lemmas = new ArrayList<>(new LinkedHashSet<>(words.values()));
        Path folder = Path.of(args[0]);
        Files.createDirectories(folder);
        Files.write(
                folder.resolve(LemmaNetwork.LABELS), lemmas.stream().map(l -> "en\t" + l).toList());
        Engine.getInstance().setRandomSeed(1);
        try (Model model = Model.newInstance("lemma-en")) {
            model.setBlock(
                    LemmaNetwork.create(
                            ROWS,
                            DIM,
                            ClassificationHead.builder().setUnits(lemmas.size()).build()));
            train(model, words, lemmas);
            Block network = model.getBlock();
            ModelFolder.builder()
                    .setNetwork(network)
                    .setBlockFactory(LemmaNetwork.BlockFactory.class)
                    .optTranslatorFactory(LemmaNetwork.TranslatorFactory.class)
                    .optArgument("rows", "" + ROWS)
                    .optArgument("dim", "" + DIM)
                    .optArgument("limit", "" + LIMIT)
                    .optDataType(DataType.FLOAT16)
                    .build()
                    .save(folder);
        }
    }

    /** Returns the lemmas of the words by form. */
    static Map<String, String> words() throws IOException {
        Map<String, String> words = new LinkedHashMap<>();
        Files.readAllLines(Path.of("src/test/resources/zoo/words-en.tsv")).stream()
                .filter(line -> !line.startsWith("#"))
                .map(line -> line.split("\t"))
                .forEach(each -> words.put(each[0], each[1]));
        return words;
    }

    private static void train(Model model, Map<String, String> words, List<String> lemmas) {
        CharNGrams nGrams = new CharNGrams(ROWS, LIMIT);
        int[] rows =
                words.keySet().stream()
                        .map(nGrams::rowsOf)
                        .flatMapToInt(java.util.Arrays::stream)
                        .toArray();
        int[] classes = words.values().stream().mapToInt(lemmas::indexOf).toArray();
        DefaultTrainingConfig training =
                Configs.of(new VocabParallelCrossEntropyLoss(), Configs.adam(0.02f));
        ParallelConfig ranks = Ranks.config(ParallelMode.TENSOR, 2);
        try (ParallelTrainer trainer = new ParallelTrainer(model, training, ranks);
                NDManager manager = NDManager.newBaseManager()) {
            Shape shape = new Shape(classes.length, LIMIT);
            NDArray data = manager.create(rows, shape);
            NDArray labels = manager.create(classes);
            trainer.initialize(shape);
            for (int step = 1; step <= STEPS; step++) {
                try (NDManager scope = manager.newSubManager()) {
                    data.tempAttach(scope);
                    labels.tempAttach(scope);
                    float loss = TrainingRun.backward(trainer, data, labels);
                    trainer.step();
                    if (step % 50 == 0) {
                        logger.warn(
                                "{} words, {} lemmas, step {}: loss {}",
                                classes.length,
                                lemmas.size(),
                                step,
                                loss);
                    }
                }
            }
        }
    }
}

package io.djltp.zoo;

import ai.djl.engine.Engine;
import ai.djl.ndarray.types.DataType;
import ai.djl.training.EasyTrain;
import ai.djl.training.Trainer;

import io.djltp.classes.ClassData;
import io.djltp.classes.ClassModel;
import io.djltp.classes.TextFeatures;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.WeightExport;
import io.djltp.rank.ParallelConfig;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Trains the lemmatiser that is in the jar, in half a minute: {@code java
 * io.djltp.zoo.LemmatiserTraining FOLDER}, in the folder of this module.
 */
public final class LemmatiserTraining {

    private static final int ROWS = 4096;
    private static final int DIM = 32;
    private static final int EPOCHS = 60;

    private LemmatiserTraining() {}

    /** Trains and writes the model folder. */
    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        Path file = Files.createTempFile("words", ".tsv");
        Files.write(
                file,
                words().entrySet().stream().map(it -> it.getValue() + "\t" + it.getKey()).toList());
        ClassData data =
                ClassData.builder(file).optTextFeatures(new TextFeatures(ROWS, 2, 5, 1, 2)).build();
        Engine.getInstance().setRandomSeed(1);
        try (ClassModel model = ClassModel.builder(data).optDim(DIM).build()) {
            try (Trainer trainer = model.newTrainer(ParallelConfig.tensor(2))) {
                EasyTrain.fit(trainer, EPOCHS, data.newDataset(256, true, 1), null);
            }
            model.save(folder);
            Files.delete(folder.resolve(ModelFolder.WEIGHTS)); // for half of it
            WeightExport.builder()
                    .setMapping(NameMapping.own())
                    .optDataType(DataType.FLOAT16)
                    .build()
                    .write(model.getModel().getBlock(), folder);
        }
        Files.delete(file);
    }

    /** Returns the lemmas of the words by form. */
    static Map<String, String> words() throws Exception {
        Map<String, String> words = new LinkedHashMap<>();
        Files.readAllLines(Path.of("src/test/resources/zoo/words-en.tsv")).stream()
                .filter(line -> !line.startsWith("#"))
                .map(line -> line.split("\t"))
                .forEach(each -> words.put(each[0], each[1]));
        return words;
    }
}

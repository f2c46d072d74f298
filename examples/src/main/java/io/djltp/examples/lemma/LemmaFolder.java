package io.djltp.examples.lemma;

import ai.djl.MalformedModelException;

import io.djltp.nn.ClassificationHead;
import io.djltp.zoo.ModelFolder;
import io.djltp.zoo.lemma.LemmaBlockFactory;
import io.djltp.zoo.lemma.LemmaLabels;
import io.djltp.zoo.lemma.LemmaTranslatorFactory;

import java.io.IOException;
import java.nio.file.Path;

/** A trained lemmatiser as a model folder, like the one that is in the jar of the library. */
final class LemmaFolder {

    private LemmaFolder() {}

    /**
     * Writes a model folder.
     *
     * @param saved the folder of the trained model
     * @param folder the model folder
     * @throws IOException if a file cannot be read or written
     * @throws MalformedModelException if a file of the model is not what it should be
     */
    static void write(Path saved, Path folder) throws IOException, MalformedModelException {
        // with the head of the block factory, which is what gives the weights their names
        try (SavedModel model =
                SavedModel.load(
                        saved, classes -> ClassificationHead.builder().setUnits(classes).build())) {
            model.getLexicon().save(folder.resolve(LemmaLabels.FILE));
            ModelFolder.builder()
                    .setNetwork(model.getModel().getBlock())
                    .setBlockFactory(LemmaBlockFactory.class)
                    .optTranslatorFactory(LemmaTranslatorFactory.class)
                    .optArgument("rows", "" + model.getNGrams().rows())
                    .optArgument("limit", "" + model.getNGrams().limit())
                    .optArgument("dim", "" + model.getDim())
                    .build()
                    .save(folder);
        }
    }
}

package io.djltp.examples.classes;

import ai.djl.MalformedModelException;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.translate.TranslateException;

import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassModel;
import io.djltp.examples.BadInputException;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;

/** A folder of {@code tp train} that answers. */
public final class Classifier implements AutoCloseable {

    private final ClassModel model;
    private final Predictor<Row, Classifications> predictor;

    private Classifier(ClassModel model, int most) {
        this.model = model;
        predictor = model.newPredictor(Row.class, most);
    }

    /**
     * Loads a classifier.
     *
     * @param folder the folder
     * @param most how many classes are wanted of each row; if there are fewer, all are
     * @return the classifier
     * @throws IOException if it cannot be read
     */
    public static Classifier load(Path folder, int most) throws IOException {
        return new Classifier(open(folder), most);
    }

    /** Loads the model of a folder. */
    static ClassModel open(Path folder) throws IOException {
        if (!ClassModel.isIn(folder)) {
            throw new BadInputException(
                    "There is no trained model in %s: ./tp train writes one", folder);
        }
        try {
            return ClassModel.load(folder);
        } catch (MalformedModelException | IllegalArgumentException e) {
            throw new BadInputException("%s: %s".formatted(folder, e.getMessage()), e);
        }
    }

    /**
     * Returns the best classes of rows.
     *
     * @param rows the rows, which have the features of {@link #getFeatures}
     * @return their classes, best first
     * @throws IllegalArgumentException if a row has other features
     */
    public List<Classifications> predict(List<Row> rows) {
        try {
            return predictor.batchPredict(rows);
        } catch (TranslateException e) {
            if (e.getCause() instanceof IllegalArgumentException wrong) {
                throw wrong;
            }
            throw new IllegalStateException(e.getMessage(), e);
        }
    }

    /**
     * Returns what the features of a row are.
     *
     * @return texts, sparse features or dense vectors
     */
    public Features getFeatures() {
        return model.getFeatures();
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public int getClasses() {
        return model.getClasses().size();
    }

    /**
     * Returns whether scores are probabilities.
     *
     * @return false if they are logits
     */
    public boolean isProbability() {
        return model.getObjective() != ClassModel.Objective.SQUARED_HINGE;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        predictor.close();
        model.close();
    }
}

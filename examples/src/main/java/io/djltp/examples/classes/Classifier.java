package io.djltp.examples.classes;

import ai.djl.MalformedModelException;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.translate.TranslateException;

import io.djltp.classes.ClassData.Features;
import io.djltp.classes.ClassData.Row;
import io.djltp.classes.ClassModel;
import io.djltp.examples.BadInputException;
import io.djltp.examples.lemma.LemmaSearch;
import io.djltp.examples.lemma.SavedModel;

import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;

/** A folder of {@code tp train} that answers: a classifier of a file, or the lemmatiser. */
public final class Classifier implements AutoCloseable {

    private interface Answers {

        List<Classifications> of(List<Row> rows) throws TranslateException;
    }

    private final Features features;
    private final boolean shares;
    private final int classes;
    private final Answers answers;
    private final List<AutoCloseable> parts; // in the order in which they are closed

    private Classifier(
            Features features,
            boolean shares,
            int classes,
            Answers answers,
            List<AutoCloseable> parts) {
        this.features = features;
        this.shares = shares;
        this.classes = classes;
        this.answers = answers;
        this.parts = parts;
    }

    /**
     * Returns whether a folder has a classifier.
     *
     * @param folder the folder
     * @return whether {@link #load} loads it
     */
    public static boolean isIn(Path folder) {
        return SavedModel.isIn(folder) || ClassModel.isIn(folder);
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
        try {
            return ClassModel.isIn(folder) ? ofFile(folder, most) : lemmatiser(folder, most);
        } catch (MalformedModelException | IllegalArgumentException e) {
            throw new BadInputException("%s: %s".formatted(folder, e.getMessage()), e);
        }
    }

    private static Classifier ofFile(Path folder, int most)
            throws IOException, MalformedModelException {
        ClassModel model = ClassModel.load(folder);
        try {
            Predictor<Row, Classifications> predictor = model.newPredictor(Row.class, most);
            return new Classifier(
                    model.getFeatures(),
                    model.getObjective() != ClassModel.Objective.SQUARED_HINGE,
                    model.getClasses().size(),
                    predictor::batchPredict,
                    List.of(predictor, model));
        } catch (RuntimeException | Error e) {
            model.close();
            throw e;
        }
    }

    private static Classifier lemmatiser(Path folder, int most)
            throws IOException, MalformedModelException {
        SavedModel saved = SavedModel.load(folder);
        LemmaSearch search = new LemmaSearch(saved.getModel());
        Predictor<String, Classifications> predictor =
                search.newPredictor(saved.getNGrams(), saved.getLexicon(), most);
        return new Classifier(
                Features.TEXT,
                true,
                saved.getLexicon().size(),
                rows ->
                        predictor.batchPredict(
                                rows.stream()
                                        .map(row -> Objects.requireNonNull(row.text()))
                                        .toList()),
                List.of(predictor, search, saved));
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
            return answers.of(rows);
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
        return features;
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public int getClasses() {
        return classes;
    }

    /**
     * Returns whether scores are probabilities.
     *
     * @return false if they are logits
     */
    public boolean isProbability() {
        return shares;
    }

    /** {@inheritDoc} */
    @Override
    public void close() throws IOException {
        for (AutoCloseable each : parts) {
            try {
                each.close();
            } catch (Exception e) {
                throw new IOException(e);
            }
        }
    }
}

package io.djltp.examples.lemma;

import ai.djl.MalformedModelException;
import ai.djl.Model;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.core.Linear;

import io.djltp.examples.BadInputException;
import io.djltp.examples.Tp;
import io.djltp.exchange.NameMapping;
import io.djltp.exchange.PretrainedWeights;
import io.djltp.exchange.WeightExport;
import io.djltp.internal.files.SideFolder;
import io.djltp.zoo.CharNGrams;
import io.djltp.zoo.LemmaNetwork;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.function.IntFunction;

/**
 * A trained lemmatiser in a folder: the parameters as safetensors, the lexicon, and the sizes of
 * the network. The model in memory is of ordinary DJL blocks.
 */
public final class SavedModel implements AutoCloseable {

    /** The name of the model, and the beginning of the names of its files. */
    public static final String NAME = "lemma";

    private static final String LEXICON = NAME + ".lexicon.tsv";
    private static final String SIZES = NAME + ".properties";

    private static final String WEIGHTS = NAME + ".safetensors";

    /** The head is a linear layer of another class while it is trained. */
    private static final NameMapping NAMES =
            NameMapping.parse(
                    """
                    EmbeddingBag.embedding = embedding.weight
                    *.weight               = head.weight
                    *.bias                 = head.bias
                    """);

    private final Model model;
    private final Lexicon lexicon;
    private final CharNGrams nGrams;
    private final int dim;

    private SavedModel(Model model, Lexicon lexicon, CharNGrams nGrams, int dim) {
        this.model = model;
        this.lexicon = lexicon;
        this.nGrams = nGrams;
        this.dim = dim;
    }

    /**
     * Writes a trained model. The files of a model that was there before are replaced when all new
     * ones are complete.
     *
     * @param folder the folder
     * @param model the trained model
     * @param lexicon what its classes mean
     * @param nGrams how its words become rows of the embedding table
     * @param dim the number of features
     * @throws IOException if the folder cannot be written
     */
    public static void save(Path folder, Model model, Lexicon lexicon, CharNGrams nGrams, int dim)
            throws IOException {
        try (SideFolder side = SideFolder.in(folder)) {
            Path part = side.getPath();
            WeightExport.builder()
                    .setMapping(NAMES)
                    .optName(NAME)
                    .optFileBytes(Long.MAX_VALUE)
                    .build()
                    .write(model.getBlock(), part);
            lexicon.save(part.resolve(LEXICON));
            Properties sizes = new Properties();
            sizes.setProperty("rows", Integer.toString(nGrams.rows()));
            sizes.setProperty("limit", Integer.toString(nGrams.limit()));
            sizes.setProperty("dim", Integer.toString(dim));
            try (BufferedWriter writer = Files.newBufferedWriter(part.resolve(SIZES))) {
                sizes.store(writer, null);
            }
            side.replace(SIZES); // which are what says that a model is there
        }
    }

    /**
     * Returns whether a folder has a lemmatiser.
     *
     * @param folder the folder
     * @return whether {@link #save} wrote to it
     */
    public static boolean isIn(Path folder) {
        return Files.exists(folder.resolve(SIZES));
    }

    /**
     * Loads a model into ordinary DJL blocks.
     *
     * @param folder the folder
     * @return the model
     * @throws IOException if a file cannot be read
     * @throws MalformedModelException if a file is not what it should be
     */
    public static SavedModel load(Path folder) throws IOException, MalformedModelException {
        return load(folder, classes -> Linear.builder().setUnits(classes).build());
    }

    /** Loads a model with another head, which is given the number of lemmas. */
    static SavedModel load(Path folder, IntFunction<Block> head)
            throws IOException, MalformedModelException {
        if (!isIn(folder)) {
            throw new BadInputException(
                    "There is no trained model in " + folder + ": run " + Tp.NAME + " train first");
        }
        Properties sizes = new Properties();
        try (BufferedReader reader = Files.newBufferedReader(folder.resolve(SIZES))) {
            sizes.load(reader);
        }
        Lexicon lexicon = Lexicon.load(folder.resolve(LEXICON));
        CharNGrams nGrams =
                new CharNGrams(
                        Integer.parseInt(sizes.getProperty("rows")),
                        Integer.parseInt(sizes.getProperty("limit")));
        Model model = Model.newInstance(NAME);
        int dim = Integer.parseInt(sizes.getProperty("dim"));
        model.setBlock(LemmaNetwork.create(nGrams.rows(), dim, head.apply(lexicon.size())));
        try (PretrainedWeights weights =
                PretrainedWeights.builder()
                        .setPath(folder.resolve(WEIGHTS))
                        .setMapping(NAMES)
                        .build()) {
            weights.load(model, new Shape(1, nGrams.limit()));
        }
        return new SavedModel(model, lexicon, nGrams, dim);
    }

    /**
     * Returns the model.
     *
     * @return the model
     */
    public Model getModel() {
        return model;
    }

    /**
     * Returns what the classes mean.
     *
     * @return the lexicon
     */
    public Lexicon getLexicon() {
        return lexicon;
    }

    /**
     * Returns how words become rows of the embedding table.
     *
     * @return the n-grams
     */
    public CharNGrams getNGrams() {
        return nGrams;
    }

    /** Returns the number of features of a word. */
    int getDim() {
        return dim;
    }

    /** {@inheritDoc} */
    @Override
    public void close() {
        model.close();
    }
}

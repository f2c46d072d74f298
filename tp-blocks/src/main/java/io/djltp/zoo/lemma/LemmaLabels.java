package io.djltp.zoo.lemma;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * The lemma of each class, in a file of a model folder: one class a line, the code of the language,
 * a tab, the lemma.
 */
public final class LemmaLabels {

    /** The name of the file. */
    public static final String FILE = "lexicon.tsv";

    private LemmaLabels() {}

    /**
     * Reads the lemmas.
     *
     * @param folder the folder of the model
     * @return the lemmas, in the order of their classes
     * @throws IOException if the file is missing or is something else
     */
    public static List<String> read(Path folder) throws IOException {
        Path file = folder.resolve(FILE);
        if (!Files.isRegularFile(file)) {
            throw new FileNotFoundException(
                    "There is no "
                            + FILE
                            + " in "
                            + folder
                            + ", which names the lemma of each class: copy the lexicon of the"
                            + " trained model there");
        }
        List<String> lemmas = new ArrayList<>();
        for (String line : Files.readAllLines(file)) {
            int tab = line.indexOf('\t');
            if (tab < 0) {
                throw new IOException(
                        file
                                + ", line "
                                + (lemmas.size() + 1)
                                + ": expected a language, a tab and a lemma");
            }
            lemmas.add(line.substring(tab + 1));
        }
        return lemmas;
    }
}

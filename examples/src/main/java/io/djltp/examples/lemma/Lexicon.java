package io.djltp.examples.lemma;

import io.djltp.internal.Errors;
import io.djltp.internal.files.SideFolder;

import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * What each class means: the lemma and its language. The classes of one language are neighbours.
 *
 * <p>On disk a lexicon is a text file in UTF-8 with one class per line, in the order of the
 * classes: the code of the language, a tab, the lemma.
 */
public final class Lexicon {

    private final List<Language> languages; // of each class
    private final List<String> lemmas;
    private final boolean mixed; // more than one language

    Lexicon(List<Language> languages, List<String> lemmas) {
        this.languages = languages;
        this.lemmas = lemmas;
        mixed = languages.stream().distinct().count() > 1;
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public int size() {
        return lemmas.size();
    }

    /**
     * Returns the lemma of a class.
     *
     * @param classId the class
     * @return the lemma
     */
    public String lemma(int classId) {
        return lemmas.get(classId);
    }

    /**
     * Returns the language of a class.
     *
     * @param classId the class
     * @return the language
     */
    public Language language(int classId) {
        return languages.get(classId);
    }

    /**
     * Returns the lemma for people to read, with the code of the language behind it where there is
     * more than one language.
     *
     * @param classId the class
     * @return a text such as {@code "gehen"} or {@code "gehen [de]"}
     */
    public String label(int classId) {
        String lemma = lemma(classId);
        return mixed ? lemma + " [" + language(classId).code() + ']' : lemma;
    }

    /**
     * Writes this lexicon to a file. The file appears complete or not at all.
     *
     * @param file the file
     * @throws IOException if it cannot be written
     */
    public void save(Path file) throws IOException {
        Path target = file.toAbsolutePath();
        Path parent = target.getParent();
        if (parent == null) {
            throw new FileSystemException(file.toString(), null, "is no file");
        }
        Files.createDirectories(parent);
        try (SideFolder side = SideFolder.in(parent)) {
            Path part = side.resolve(target.getFileName().toString());
            Stream<String> lines =
                    IntStream.range(0, size()).mapToObj(i -> language(i).code() + '\t' + lemma(i));
            Files.write(part, (Iterable<String>) lines::iterator);
            side.replace();
        }
    }

    /**
     * Reads a lexicon from a file.
     *
     * @param file a file that {@link #save(Path)} wrote
     * @return the lexicon
     * @throws IOException if the file cannot be read or is not a lexicon
     */
    public static Lexicon load(Path file) throws IOException {
        List<Language> languages = new ArrayList<>();
        List<String> lemmas = new ArrayList<>();
        for (String line : Files.readAllLines(file)) {
            int tab = line.indexOf('\t');
            try {
                Errors.check(tab >= 0, "expected a language, a tab and a lemma");
                languages.add(Language.ofCode(line.substring(0, tab)));
            } catch (IllegalArgumentException e) {
                int number = lemmas.size() + 1;
                throw new IOException(file + ", line " + number + ": " + e.getMessage(), e);
            }
            lemmas.add(line.substring(tab + 1));
        }
        return new Lexicon(languages, lemmas);
    }
}

package io.djltp.examples.lemma;

import io.djltp.internal.files.SideFolder;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * What each class means: the lemma and its language. The classes of one language are neighbours.
 *
 * <p>On disk a lexicon is a text file in UTF-8 with one class per line, in the order of the
 * classes: the code of the language, a tab, the lemma.
 */
public final class Lexicon {

    private final List<Language> languages;

    /** The first class of each language and, at the end, the number of classes. */
    private final int[] bounds;

    private final List<String> lemmas;

    Lexicon(List<Language> languages, List<? extends Collection<String>> lemmas) {
        this.languages = List.copyOf(languages);
        bounds = new int[lemmas.size() + 1];
        for (int i = 0; i < lemmas.size(); i++) {
            bounds[i + 1] = Math.addExact(bounds[i], lemmas.get(i).size());
        }
        this.lemmas = lemmas.stream().flatMap(Collection::stream).toList();
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
     * Returns the languages in the order of their classes.
     *
     * @return the languages
     */
    public List<Language> languages() {
        return languages;
    }

    /**
     * Returns the number of classes of a language.
     *
     * @param language the language
     * @return the number of its classes, 0 if it is not in this lexicon
     */
    public int size(Language language) {
        int i = languages.indexOf(language);
        return i < 0 ? 0 : bounds[i + 1] - bounds[i];
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
        int i = 0;
        while (classId >= bounds[i + 1]) {
            i++;
        }
        return languages.get(i);
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
        return languages.size() == 1 ? lemma : lemma + " [" + language(classId).code() + ']';
    }

    /**
     * Writes this lexicon to a file. The file appears complete or not at all.
     *
     * @param file the file
     * @throws IOException if it cannot be written
     */
    public void save(Path file) throws IOException {
        Path target = file.toAbsolutePath();
        Files.createDirectories(target.getParent());
        try (SideFolder side = SideFolder.in(target.getParent())) {
            Path part = side.resolve(target.getFileName().toString());
            try (BufferedWriter writer = Files.newBufferedWriter(part, StandardCharsets.UTF_8)) {
                for (int i = 0; i < size(); i++) {
                    writer.write(language(i).code());
                    writer.write('\t');
                    writer.write(lemma(i));
                    writer.write('\n');
                }
            }
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
        List<Set<String>> lemmas = new ArrayList<>();
        try (BufferedReader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8)) {
            int number = 0;
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                number++;
                try {
                    add(line, languages, lemmas);
                } catch (IllegalArgumentException e) {
                    throw new IOException(file + ", line " + number + ": " + e.getMessage(), e);
                }
            }
        }
        return new Lexicon(languages, lemmas);
    }

    private static void add(String line, List<Language> languages, List<Set<String>> lemmas) {
        int tab = line.indexOf('\t');
        if (tab < 0) {
            throw new IllegalArgumentException("expected a language, a tab and a lemma");
        }
        Language language = Language.ofCode(line.substring(0, tab));
        int last = languages.size() - 1;
        if (last < 0 || languages.get(last) != language) {
            if (languages.contains(language)) {
                throw new IllegalArgumentException(
                        "the classes of " + language.displayName() + " must be neighbours");
            }
            languages.add(language);
            lemmas.add(new LinkedHashSet<>());
            last++;
        }
        if (!lemmas.get(last).add(line.substring(tab + 1))) {
            throw new IllegalArgumentException("this lemma was there before");
        }
    }
}

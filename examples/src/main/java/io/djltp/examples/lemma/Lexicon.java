package io.djltp.examples.lemma;

import io.djltp.internal.files.SideFolder;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

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

    private final Utf8Pool pool;
    private final int[] offsets;

    Lexicon(List<Language> languages, List<LemmaTable> tables) {
        this.languages = List.copyOf(languages);
        bounds = new int[tables.size() + 1];
        for (int i = 0; i < tables.size(); i++) {
            bounds[i + 1] = Math.addExact(bounds[i], tables.get(i).count());
        }
        int bytes = tables.stream().mapToInt(table -> table.pool().size()).sum();
        pool = new Utf8Pool(bytes);
        offsets = new int[bounds[tables.size()]];
        for (int i = 0; i < tables.size(); i++) {
            LemmaTable table = tables.get(i);
            int shift = pool.append(table.pool());
            for (int n = 0; n < table.count(); n++) {
                offsets[bounds[i] + n] = table.offset(n) + shift;
            }
        }
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public int size() {
        return offsets.length;
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
        return pool.get(offsets[classId]);
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

    /** Returns whether the string at an offset of a pool is the lemma of a class. */
    boolean isLemma(int classId, Utf8Pool strings, int offset) {
        return pool.equal(offsets[classId], strings, offset);
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
        List<LemmaTable> tables = new ArrayList<>();
        try (BufferedReader reader = Files.newBufferedReader(file, StandardCharsets.UTF_8)) {
            int number = 0;
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                number++;
                try {
                    add(line, languages, tables);
                } catch (IllegalArgumentException e) {
                    throw new IOException(file + ", line " + number + ": " + e.getMessage(), e);
                }
            }
        }
        return new Lexicon(languages, tables);
    }

    private static void add(String line, List<Language> languages, List<LemmaTable> tables) {
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
            tables.add(new LemmaTable());
            last++;
        }
        LemmaTable table = tables.get(last);
        int count = table.count();
        byte[] lemma = line.substring(tab + 1).getBytes(StandardCharsets.UTF_8);
        if (table.intern(lemma, lemma.length) < count) {
            throw new IllegalArgumentException("this lemma was there before");
        }
    }

    /** The lemmas of one language, numbered in the order of their first appearance. */
    static final class LemmaTable {

        private final Utf8Pool pool = new Utf8Pool(1 << 16);
        private int[] offsets = new int[1 << 12];
        private int[] slots = new int[1 << 13];
        private int count;

        /** Returns the number of a lemma, a new one if it has not been seen before. */
        int intern(byte[] lemma, int length) {
            int offset = pool.append(lemma, length);
            int slot = slotOf(offset);
            if (slots[slot] != 0) {
                pool.truncate(offset);
                return slots[slot] - 1;
            }
            if (count == offsets.length) {
                offsets = Arrays.copyOf(offsets, count << 1);
            }
            offsets[count] = offset;
            slots[slot] = ++count;
            if (2 * count > slots.length) {
                grow();
            }
            return count - 1;
        }

        int count() {
            return count;
        }

        int offset(int number) {
            return offsets[number];
        }

        Utf8Pool pool() {
            return pool;
        }

        /**
         * Returns the slot that holds the string at an offset, or the free slot where it belongs.
         */
        private int slotOf(int offset) {
            int mask = slots.length - 1;
            int slot = (int) pool.hash(offset, 0) & mask;
            while (slots[slot] != 0 && !pool.equal(offset, offsets[slots[slot] - 1])) {
                slot = slot + 1 & mask;
            }
            return slot;
        }

        private void grow() {
            slots = new int[slots.length << 1];
            for (int i = 0; i < count; i++) {
                slots[slotOf(offsets[i])] = i + 1;
            }
        }
    }
}

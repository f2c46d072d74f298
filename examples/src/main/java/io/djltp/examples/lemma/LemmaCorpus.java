package io.djltp.examples.lemma;

import morfologik.stemming.Dictionary;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;

/**
 * All distinct pairs of an inflected form and its lemma in the dictionaries of some languages. A
 * class is a lemma of a language; a form with several lemmas has several pairs, which are
 * neighbours. Letter case is kept.
 *
 * <p>Thirteen million pairs take about 400 MB: the forms lie in one array of bytes, and a pair is
 * two ints.
 */
public final class LemmaCorpus {

    private final Lexicon lexicon;
    private final Utf8Pool forms;
    private final int[] offsets;
    private final int[] classes;

    /** The first pair of each language and, at the end, the number of pairs. */
    private final int[] bounds;

    private LemmaCorpus(List<Part> parts) {
        lexicon =
                new Lexicon(
                        parts.stream().map(part -> part.language).collect(Collectors.toList()),
                        parts.stream().map(part -> part.lemmas).collect(Collectors.toList()));
        bounds = new int[parts.size() + 1];
        long bytes = 0;
        for (int i = 0; i < parts.size(); i++) {
            bounds[i + 1] = Math.addExact(bounds[i], parts.get(i).count);
            bytes += parts.get(i).forms.size();
        }
        forms = new Utf8Pool(Math.toIntExact(bytes));
        offsets = new int[bounds[parts.size()]];
        classes = new int[bounds[parts.size()]];
        int firstClass = 0;
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            int shift = forms.append(part.forms);
            for (int n = 0; n < part.count; n++) {
                offsets[bounds[i] + n] = part.offsets[n] + shift;
                classes[bounds[i] + n] = part.classes[n] + firstClass;
            }
            firstClass += part.lemmas.count();
        }
    }

    /**
     * Reads the dictionaries of some languages, each in a thread of its own.
     *
     * @param languages the languages; their order is the order of the classes
     * @return the pairs
     * @throws IOException if a dictionary is missing or cannot be read
     */
    public static LemmaCorpus read(List<Language> languages) throws IOException {
        try {
            List<Part> parts =
                    languages.parallelStream().map(Part::read).collect(Collectors.toList());
            return new LemmaCorpus(parts);
        } catch (UncheckedIOException e) {
            throw e.getCause();
        }
    }

    /**
     * Creates a builder for pairs that come from elsewhere.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Returns the number of pairs.
     *
     * @return the number of pairs
     */
    public int size() {
        return offsets.length;
    }

    /**
     * Returns the number of pairs of a language.
     *
     * @param language the language
     * @return the number of its pairs, 0 if it is not in this corpus
     */
    public int size(Language language) {
        int i = lexicon.languages().indexOf(language);
        return i < 0 ? 0 : bounds[i + 1] - bounds[i];
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public int classes() {
        return lexicon.size();
    }

    /**
     * Returns what the classes mean.
     *
     * @return the lexicon
     */
    public Lexicon lexicon() {
        return lexicon;
    }

    /**
     * Returns the form of a pair.
     *
     * @param pair the pair
     * @return the form
     */
    public String form(int pair) {
        return forms.get(offsets[pair]);
    }

    /**
     * Returns the class of a pair.
     *
     * @param pair the pair
     * @return the class
     */
    public int classOf(int pair) {
        return classes[pair];
    }

    /** Returns whether two pairs have the same form. */
    boolean sameForm(int a, int b) {
        return offsets[a] == offsets[b] || forms.equal(offsets[a], offsets[b]);
    }

    /** Returns whether the form of a pair is its lemma. */
    boolean isLemma(int pair) {
        return lexicon.isLemma(classes[pair], forms, offsets[pair]);
    }

    /** Returns 64 bits that depend on the form of a pair and the seed alone. */
    long formHash(int pair, long seed) {
        return forms.hash(offsets[pair], seed);
    }

    /** The Builder to construct a {@link LemmaCorpus} from pairs. */
    public static final class Builder {

        private final List<Part> parts = new ArrayList<>();

        Builder() {}

        /**
         * Adds a pair. The pairs of a form must come one after another, and so must those of a
         * language. A pair that is there already is left out.
         *
         * @param language the language
         * @param form the inflected form
         * @param lemma the lemma
         * @return this builder
         */
        public Builder add(Language language, String form, String lemma) {
            if (parts.isEmpty() || parts.get(parts.size() - 1).language != language) {
                if (parts.stream().anyMatch(part -> part.language == language)) {
                    throw new IllegalArgumentException(
                            "the pairs of " + language.displayName() + " must come together");
                }
                parts.add(new Part(language));
            }
            Part part = parts.get(parts.size() - 1);
            byte[] inflected = form.getBytes(StandardCharsets.UTF_8);
            part.form(inflected, inflected.length);
            byte[] right = lemma.getBytes(StandardCharsets.UTF_8);
            part.lemma(right, right.length);
            return this;
        }

        /**
         * Builds the corpus.
         *
         * @return the corpus
         */
        public LemmaCorpus build() {
            return new LemmaCorpus(parts);
        }
    }

    /** The pairs of one language while they are read. */
    private static final class Part implements DictionaryWalk.Visitor {

        private final Language language;
        private final LemmaTable lemmas = new LemmaTable();
        private final Utf8Pool forms = new Utf8Pool(1 << 16);
        private int[] offsets = new int[1 << 12];
        private int[] classes = new int[1 << 12];
        private int count;

        /** Where the form lies that came last, and its first pair. */
        private int formOffset = -1;

        private int formStart;

        Part(Language language) {
            this.language = language;
        }

        static Part read(Language language) {
            URL url = Part.class.getClassLoader().getResource(language.resource());
            try {
                if (url == null) {
                    throw new IOException(
                            "the dictionary for "
                                    + language.displayName()
                                    + " is not on the class path: "
                                    + language.resource());
                }
                Part part = new Part(language);
                new DictionaryWalk(Dictionary.read(url), part).run();
                return part;
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        /** All entries of a form are neighbours in a dictionary. */
        @Override
        public void form(byte[] text, int length) {
            int offset = forms.append(text, length);
            if (formOffset >= 0 && forms.equal(offset, formOffset)) {
                forms.truncate(offset);
            } else {
                formOffset = offset;
                formStart = count;
            }
        }

        /** Adds a pair unless it is there. */
        @Override
        public void lemma(byte[] text, int length) {
            int lemmaClass = lemmas.intern(text, length);
            for (int i = formStart; i < count; i++) {
                if (classes[i] == lemmaClass) {
                    return;
                }
            }
            if (count == offsets.length) {
                offsets = Arrays.copyOf(offsets, count + (count >> 1));
                classes = Arrays.copyOf(classes, count + (count >> 1));
            }
            offsets[count] = formOffset;
            classes[count] = lemmaClass;
            count++;
        }
    }
}

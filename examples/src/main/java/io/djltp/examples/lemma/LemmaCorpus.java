package io.djltp.examples.lemma;

import morfologik.fsa.FSA;
import morfologik.stemming.Dictionary;
import morfologik.stemming.ISequenceEncoder;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiConsumer;
import java.util.stream.Collectors;

/**
 * All distinct pairs of an inflected form and its lemma in the dictionaries of some languages. A
 * class is a lemma of a language; a form with several lemmas has several pairs, which are
 * neighbours. Letter case is kept.
 *
 * <p>Thirteen million pairs take about 400 MB: the forms of a language lie in one array of bytes,
 * and a pair is two ints.
 */
public final class LemmaCorpus {

    /** The most n-grams that a word has. */
    public static final int MOST_N_GRAMS = 96;

    private final List<Part> parts;
    private final List<String> lemmas = new ArrayList<>(); // by class

    /** The first pair of each language and, at the end, the number of pairs. */
    private final int[] bounds;

    /** The first class of each language. */
    private final int[] firstClasses;

    private LemmaCorpus(List<Part> parts) {
        this.parts = parts;
        bounds = new int[parts.size() + 1];
        firstClasses = new int[parts.size() + 1];
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            bounds[i + 1] = Math.addExact(bounds[i], part.count);
            lemmas.addAll(part.lemmas.keySet());
            firstClasses[i + 1] = lemmas.size();
            part.trim();
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
     * Returns how many rows an embedding table has for the forms of a number of lemmas.
     *
     * @param lemmas the number of lemmas
     * @return the number of rows
     */
    public static int tableRows(int lemmas) {
        return lemmas > 500_000 ? 1 << 17 : 1 << 16;
    }

    /**
     * Returns the number of pairs.
     *
     * @return the number of pairs
     */
    public int size() {
        return bounds[parts.size()];
    }

    /**
     * Returns the number of classes.
     *
     * @return the number of classes
     */
    public int classes() {
        return lemmas.size();
    }

    /**
     * Returns the lemma of a class.
     *
     * @param number the class
     * @return the lemma
     */
    public String lemma(int number) {
        return lemmas.get(number);
    }

    /**
     * Returns the lemma for people to read, with the code of the language behind it where there is
     * more than one language.
     *
     * @param number the class
     * @return a text such as {@code "gehen"} or {@code "gehen [de]"}
     */
    public String label(int number) {
        int i = 0;
        while (number >= firstClasses[i + 1]) {
            i++;
        }
        return parts.size() == 1
                ? lemma(number)
                : lemma(number) + " [" + parts.get(i).language.code() + ']';
    }

    /**
     * Returns the form of a pair.
     *
     * @param pair the pair
     * @return the form
     */
    public String form(int pair) {
        int i = partOf(pair);
        Part part = parts.get(i);
        return part.form(part.offsets[pair - bounds[i]]);
    }

    /**
     * Returns the class of a pair.
     *
     * @param pair the pair
     * @return the class
     */
    public int classOf(int pair) {
        int i = partOf(pair);
        return firstClasses[i] + parts.get(i).classes[pair - bounds[i]];
    }

    private int partOf(int pair) {
        int i = 0;
        while (pair >= bounds[i + 1]) {
            i++;
        }
        return i;
    }

    /** Returns whether two pairs have the same form. */
    boolean sameForm(int a, int b) {
        return form(a).equals(form(b));
    }

    /** Returns whether the form of a pair is its lemma. */
    boolean isLemma(int pair) {
        return lemma(classOf(pair)).equals(form(pair));
    }

    /** Returns 64 bits that depend on the form of a pair and the seed alone. */
    long formHash(int pair, long seed) {
        int i = partOf(pair);
        Part part = parts.get(i);
        return part.hash(part.offsets[pair - bounds[i]], seed);
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
            parts.get(parts.size() - 1).add(form, lemma);
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

    /** The pairs of one language. */
    private static final class Part {
        private static final int PREFIX = 2; // bytes of a form's length, before it
        private static final int MOST = Integer.MAX_VALUE - 8; // bytes of an array

        private final Language language;
        private Map<String, Integer> lemmas = new LinkedHashMap<>(); // and their numbers

        /** The forms as UTF-8, one after another: ten million of them cost no object at all. */
        private byte[] forms = new byte[1 << 16];

        private int used; // of the bytes
        private int[] offsets = new int[1 << 12]; // of the form of each pair
        private int[] classes = new int[1 << 12];
        private int count;
        private @Nullable String last; // form, and its first pair
        private int lastStart;

        Part(Language language) {
            this.language = language;
        }

        static Part read(Language language) {
            URL url = Part.class.getClassLoader().getResource(language.resource());
            try {
                if (url == null) {
                    throw new IOException(
                            "the dictionary for %s is not on the class path: %s"
                                    .formatted(language.displayName(), language.resource()));
                }
                Part part = new Part(language);
                new DictionaryWalk(Dictionary.read(url), part::add).run();
                return part;
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }

        /** Adds a pair unless it is there. All pairs of a form are neighbours. */
        void add(String form, String lemma) {
            if (!form.equals(last)) {
                last = form;
                lastStart = count;
            }
            int number = lemmas.computeIfAbsent(lemma, key -> lemmas.size());
            for (int i = lastStart; i < count; i++) {
                if (classes[i] == number) {
                    return;
                }
            }
            if (count == offsets.length) {
                offsets = Arrays.copyOf(offsets, count + (count >> 1));
                classes = Arrays.copyOf(classes, count + (count >> 1));
            }
            offsets[count] = count > lastStart ? offsets[lastStart] : store(form);
            classes[count++] = number;
        }

        /** Adds the bytes of a form, and returns where they are. */
        private int store(String form) {
            byte[] text = form.getBytes(StandardCharsets.UTF_8);
            long needed = (long) used + PREFIX + text.length;
            if (text.length > 0xffff || needed > MOST) {
                throw new IllegalStateException(
                        "a word has more than 64 KiB, or all words more than 2 GiB");
            }
            if (needed > forms.length) {
                long grown = Math.max(needed, forms.length + (forms.length >> 1));
                forms = Arrays.copyOf(forms, (int) Math.min(grown, MOST));
            }
            int offset = used;
            forms[offset] = (byte) (text.length >> 8);
            forms[offset + 1] = (byte) text.length;
            System.arraycopy(text, 0, forms, offset + PREFIX, text.length);
            used = (int) needed;
            return offset;
        }

        private int length(int offset) {
            return (forms[offset] & 0xff) << 8 | forms[offset + 1] & 0xff;
        }

        String form(int offset) {
            return new String(forms, offset + PREFIX, length(offset), StandardCharsets.UTF_8);
        }

        /** Returns 64 well mixed bits that depend on a form and the seed alone. */
        long hash(int offset, long seed) {
            long hash = seed ^ 0xcbf29ce484222325L;
            int start = offset + PREFIX;
            for (int i = start; i < start + length(offset); i++) {
                hash = (hash ^ forms[i]) * 0x100000001b3L;
            }
            hash = (hash ^ hash >>> 33) * 0xff51afd7ed558ccdL;
            hash = (hash ^ hash >>> 33) * 0xc4ceb9fe1a85ec53L;
            return hash ^ hash >>> 33;
        }

        /** Drops what is needed only while pairs are added. */
        void trim() {
            lemmas = Map.of(); // the corpus has them
            forms = Arrays.copyOf(forms, used);
            offsets = Arrays.copyOf(offsets, count);
            classes = Arrays.copyOf(classes, count);
        }
    }

    /**
     * All pairs of form and lemma of a dictionary, in its order.
     *
     * <p>An entry of a dictionary is a path through an automaton: a form, a separator, how the
     * lemma differs from the form, a separator, grammatical tags. A form and its lemma have dozens
     * of tags in some languages. All of them lie behind one arc, and the walk turns back there.
     */
    static final class DictionaryWalk {
        private static final int LONGEST = 1 << 16; // bytes of a word

        private final FSA automaton;
        private final byte separator;
        private final ISequenceEncoder encoder;
        private final int numbers; // the first bytes of a change, which may look like a separator
        private final Charset charset;
        private final BiConsumer<String, String> pairs;
        private final ByteBuffer form = ByteBuffer.allocate(LONGEST);
        private final ByteBuffer change = ByteBuffer.allocate(LONGEST);
        private ByteBuffer lemma = ByteBuffer.allocate(LONGEST);

        /**
         * Prepares a walk.
         *
         * @param dictionary the dictionary
         * @param pairs gets the pairs
         */
        @SuppressWarnings("deprecation") // the library's own walk asks for prefixBytes too
        DictionaryWalk(Dictionary dictionary, BiConsumer<String, String> pairs) {
            automaton = dictionary.fsa;
            separator = dictionary.metadata.getSeparator();
            encoder = dictionary.metadata.getSequenceEncoderType().get();
            numbers = encoder.prefixBytes();
            charset = Charset.forName(dictionary.metadata.getEncoding());
            this.pairs = pairs;
        }

        /**
         * Walks.
         *
         * @throws IOException if an entry has no lemma
         */
        void run() throws IOException {
            walkForm(automaton.getRootNode(), 0);
        }

        /** Goes on behind the first bytes of a form. */
        private void walkForm(int node, int length) throws IOException {
            for (int arc = automaton.getFirstArc(node); arc != 0; arc = automaton.getNextArc(arc)) {
                byte letter = automaton.getArcLabel(arc);
                if (automaton.isArcFinal(arc)) {
                    throw new IOException("a form in the dictionary has no lemma");
                }
                if (letter == separator) {
                    form.clear().limit(length);
                    walkChange(automaton.getEndNode(arc), text(form), 0);
                } else {
                    form.array()[length] = letter;
                    walkForm(automaton.getEndNode(arc), length + 1);
                }
            }
        }

        /** Goes on behind a form and the first bytes of what makes a lemma of it. */
        private void walkChange(int node, String word, int length) {
            for (int arc = automaton.getFirstArc(node); arc != 0; arc = automaton.getNextArc(arc)) {
                byte letter = automaton.getArcLabel(arc);
                if (letter == separator && length >= numbers) {
                    give(word, length); // what follows are tags
                    continue;
                }
                change.array()[length] = letter;
                if (automaton.isArcFinal(arc)) {
                    give(word, length + 1); // without tags
                }
                if (!automaton.isArcTerminal(arc)) {
                    walkChange(automaton.getEndNode(arc), word, length + 1);
                }
            }
        }

        private void give(String word, int length) {
            lemma = encoder.decode(lemma, form.rewind(), change.clear().limit(length));
            pairs.accept(word, text(lemma));
        }

        private String text(ByteBuffer bytes) {
            return new String(bytes.array(), 0, bytes.remaining(), charset);
        }
    }
}

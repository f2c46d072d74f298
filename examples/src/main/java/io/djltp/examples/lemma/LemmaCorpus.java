package io.djltp.examples.lemma;

import morfologik.fsa.FSA;
import morfologik.stemming.Dictionary;
import morfologik.stemming.ISequenceEncoder;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.charset.Charset;
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
 * <p>Thirteen million pairs take about 400 MB: the forms of a language lie in one array of bytes,
 * and a pair is two ints.
 */
public final class LemmaCorpus {

    private final List<Part> parts;
    private final Lexicon lexicon;

    /** The first pair of each language and, at the end, the number of pairs. */
    private final int[] bounds;

    /** The first class of each language. */
    private final int[] firstClasses;

    private LemmaCorpus(List<Part> parts) {
        this.parts = parts;
        lexicon =
                new Lexicon(
                        parts.stream().map(part -> part.language).toList(),
                        parts.stream().map(part -> part.lemmas.toList()).toList());
        bounds = new int[parts.size() + 1];
        firstClasses = new int[parts.size() + 1];
        for (int i = 0; i < parts.size(); i++) {
            bounds[i + 1] = Math.addExact(bounds[i], parts.get(i).count);
            firstClasses[i + 1] = firstClasses[i] + parts.get(i).lemmas.count;
        }
        parts.forEach(Part::trim);
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
        return bounds[parts.size()];
    }

    /**
     * Returns the number of pairs of a language.
     *
     * @param language the language
     * @return the number of its pairs, 0 if it is not in this corpus
     */
    public int size(Language language) {
        int i = lexicon.languages().indexOf(language);
        return i < 0 ? 0 : parts.get(i).count;
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
        int i = partOf(pair);
        Part part = parts.get(i);
        return part.forms.get(part.offsets[pair - bounds[i]]);
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
        return lexicon.lemma(classOf(pair)).equals(form(pair));
    }

    /** Returns 64 bits that depend on the form of a pair and the seed alone. */
    long formHash(int pair, long seed) {
        int i = partOf(pair);
        Part part = parts.get(i);
        return part.forms.hash(part.offsets[pair - bounds[i]], seed);
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

    /** The pairs of one language. */
    private static final class Part implements DictionaryWalk.Visitor {

        private final Language language;
        private LemmaTable lemmas = new LemmaTable();
        private final Utf8Pool forms = new Utf8Pool();
        private int[] offsets = new int[1 << 12]; // of the form of each pair
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
                            "the dictionary for %s is not on the class path: %s"
                                    .formatted(language.displayName(), language.resource()));
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
            if (formOffset < 0 || !forms.isAt(formOffset, text, 0, length)) {
                formOffset = forms.add(text, length);
                formStart = count;
            }
        }

        /** Adds a pair unless it is there. */
        @Override
        public void lemma(byte[] text, int length) {
            int lemma = lemmas.intern(text, length);
            for (int i = formStart; i < count; i++) {
                if (classes[i] == lemma) {
                    return;
                }
            }
            if (count == offsets.length) {
                offsets = Arrays.copyOf(offsets, count + (count >> 1));
                classes = Arrays.copyOf(classes, count + (count >> 1));
            }
            offsets[count] = formOffset;
            classes[count] = lemma;
            count++;
        }

        /** Drops what is needed only while pairs are added. */
        void trim() {
            lemmas = null; // the lexicon has them
            forms.bytes = Arrays.copyOf(forms.bytes, forms.size);
            offsets = Arrays.copyOf(offsets, count);
            classes = Arrays.copyOf(classes, count);
        }
    }

    /** The lemmas of one language, numbered in the order of their first appearance. */
    private static final class LemmaTable {

        private final Utf8Pool pool = new Utf8Pool();
        private int[] offsets = new int[1 << 12];
        private int[] slots = new int[1 << 13]; // numbers from 1, by the hashes of the lemmas
        private int count;

        /** Returns the number of a lemma, a new one if it has not been seen before. */
        int intern(byte[] lemma, int length) {
            int slot = slotOf(lemma, 0, length);
            if (slots[slot] != 0) {
                return slots[slot] - 1;
            }
            if (count == offsets.length) {
                offsets = Arrays.copyOf(offsets, count << 1);
            }
            offsets[count] = pool.add(lemma, length);
            slots[slot] = ++count;
            if (2 * count > slots.length) {
                slots = new int[slots.length << 1];
                for (int i = 0; i < count; i++) {
                    int start = offsets[i] + Utf8Pool.PREFIX;
                    slots[slotOf(pool.bytes, start, pool.length(offsets[i]))] = i + 1;
                }
            }
            return count - 1;
        }

        /** Returns the slot that holds a lemma, or the free slot where it belongs. */
        private int slotOf(byte[] text, int start, int length) {
            int mask = slots.length - 1;
            int slot = (int) Utf8Pool.hash(text, start, length, 0) & mask;
            while (slots[slot] != 0 && !pool.isAt(offsets[slots[slot] - 1], text, start, length)) {
                slot = slot + 1 & mask;
            }
            return slot;
        }

        List<String> toList() {
            return Arrays.stream(offsets, 0, count).mapToObj(pool::get).toList();
        }
    }

    /**
     * Many strings as UTF-8 in one growing array, each behind its length in two bytes. A string is
     * named by its offset, so ten million of them cost no object at all.
     */
    private static final class Utf8Pool {

        static final int PREFIX = 2;
        private static final int MOST = Integer.MAX_VALUE - 8; // bytes of an array

        private byte[] bytes = new byte[1 << 16];
        private int size;

        /** Adds a string in UTF-8, the first bytes of an array, and returns its offset. */
        int add(byte[] text, int length) {
            long needed = (long) size + PREFIX + length;
            if (length > 0xffff || needed > MOST) {
                throw new IllegalStateException(
                        "a word has more than 64 KiB, or all words more than 2 GiB");
            }
            if (needed > bytes.length) {
                long grown = Math.max(needed, bytes.length + (bytes.length >> 1));
                bytes = Arrays.copyOf(bytes, (int) Math.min(grown, MOST));
            }
            int offset = size;
            bytes[offset] = (byte) (length >> 8);
            bytes[offset + 1] = (byte) length;
            System.arraycopy(text, 0, bytes, offset + PREFIX, length);
            size = (int) needed;
            return offset;
        }

        int length(int offset) {
            return (bytes[offset] & 0xff) << 8 | bytes[offset + 1] & 0xff;
        }

        String get(int offset) {
            return new String(bytes, offset + PREFIX, length(offset), StandardCharsets.UTF_8);
        }

        boolean isAt(int offset, byte[] text, int start, int length) {
            int from = offset + PREFIX;
            int to = from + length(offset);
            return Arrays.equals(bytes, from, to, text, start, start + length);
        }

        long hash(int offset, long seed) {
            return hash(bytes, offset + PREFIX, length(offset), seed);
        }

        /** Returns 64 well mixed bits that depend on the string and the seed alone. */
        static long hash(byte[] text, int start, int length, long seed) {
            long hash = seed ^ 0xcbf29ce484222325L;
            for (int i = start; i < start + length; i++) {
                hash = (hash ^ text[i]) * 0x100000001b3L;
            }
            hash = (hash ^ hash >>> 33) * 0xff51afd7ed558ccdL;
            hash = (hash ^ hash >>> 33) * 0xc4ceb9fe1a85ec53L;
            return hash ^ hash >>> 33;
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
        private final boolean inUtf8;
        private final Visitor visitor;
        private final byte[] form = new byte[LONGEST];
        private final byte[] change = new byte[LONGEST];

        /**
         * Views of the two, for the encoder: two new ones for each pair are a third of the walk.
         */
        private final ByteBuffer formView = ByteBuffer.wrap(form);

        private final ByteBuffer changeView = ByteBuffer.wrap(change);
        private ByteBuffer lemma = ByteBuffer.allocate(LONGEST);

        /**
         * Prepares a walk.
         *
         * @param dictionary the dictionary
         * @param visitor gets the pairs
         */
        @SuppressWarnings("deprecation") // the library's own walk asks for prefixBytes too
        DictionaryWalk(Dictionary dictionary, Visitor visitor) {
            automaton = dictionary.fsa;
            separator = dictionary.metadata.getSeparator();
            encoder = dictionary.metadata.getSequenceEncoderType().get();
            numbers = encoder.prefixBytes();
            charset = Charset.forName(dictionary.metadata.getEncoding());
            inUtf8 = charset.equals(StandardCharsets.UTF_8);
            this.visitor = visitor;
        }

        /**
         * Gets what is in a dictionary: UTF-8 at the start of an array, overwritten after the call.
         */
        interface Visitor {

            /** Called with each form. */
            void form(byte[] text, int length);

            /** Called with each lemma of the form before, once or more. */
            void lemma(byte[] text, int length);
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
                    giveForm(length);
                    walkChange(automaton.getEndNode(arc), length, 0);
                } else {
                    form[length] = letter;
                    walkForm(automaton.getEndNode(arc), length + 1);
                }
            }
        }

        /** Goes on behind a form and the first bytes of what makes a lemma of it. */
        private void walkChange(int node, int formLength, int length) {
            for (int arc = automaton.getFirstArc(node); arc != 0; arc = automaton.getNextArc(arc)) {
                byte letter = automaton.getArcLabel(arc);
                if (letter == separator && length >= numbers) {
                    giveLemma(formLength, length); // what follows are tags
                    continue;
                }
                change[length] = letter;
                if (automaton.isArcFinal(arc)) {
                    giveLemma(formLength, length + 1); // without tags
                }
                if (!automaton.isArcTerminal(arc)) {
                    walkChange(automaton.getEndNode(arc), formLength, length + 1);
                }
            }
        }

        private void giveForm(int length) {
            if (inUtf8) {
                visitor.form(form, length);
            } else {
                ByteBuffer text = toUtf8(formView.clear().limit(length));
                visitor.form(text.array(), text.remaining());
            }
        }

        private void giveLemma(int formLength, int length) {
            lemma =
                    encoder.decode(
                            lemma,
                            formView.clear().limit(formLength),
                            changeView.clear().limit(length));
            ByteBuffer text = inUtf8 ? lemma : toUtf8(lemma);
            visitor.lemma(text.array(), text.remaining());
        }

        /** Returns a text of the dictionary's encoding in UTF-8, from the start of an array. */
        private ByteBuffer toUtf8(ByteBuffer text) {
            return StandardCharsets.UTF_8.encode(charset.decode(text));
        }
    }
}

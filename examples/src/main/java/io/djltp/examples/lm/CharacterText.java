package io.djltp.examples.lm;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.IntStream;

import javax.xml.stream.XMLInputFactory;
import javax.xml.stream.XMLStreamConstants;
import javax.xml.stream.XMLStreamException;
import javax.xml.stream.XMLStreamReader;

/**
 * A text as numbers, one for each character. Its vocabulary are the characters that are not rare;
 * sentences with others are left out. Every twentieth sentence is held out.
 */
public final class CharacterText {

    private static final int RARE = 20; // times in the text
    private static final int HELD_OUT = 20; // one sentence of so many
    private static final char END = '\n'; // of a sentence

    private final String vocabulary;
    private final short[] training;
    private final short[] heldOut;

    private CharacterText(List<String> sentences) {
        vocabulary = vocabulary(sentences);
        List<String> known =
                sentences.stream()
                        .filter(each -> each.chars().allMatch(c -> vocabulary.indexOf(c) >= 0))
                        .toList();
        List<String> seen = new ArrayList<>();
        List<String> unseen = new ArrayList<>();
        for (int i = 0; i < known.size(); i++) {
            (i % HELD_OUT == HELD_OUT - 1 ? unseen : seen).add(known.get(i));
        }
        training = encode(String.join("" + END, seen));
        heldOut = encode(String.join("" + END, unseen));
    }

    /**
     * Reads the text.
     *
     * @return the text
     * @throws IOException if it cannot be read
     */
    public static CharacterText read() throws IOException {
        return new CharacterText(ExampleSentences.read());
    }

    private static String vocabulary(List<String> sentences) {
        int[] times = new int[Character.MAX_VALUE + 1];
        sentences.forEach(sentence -> sentence.chars().forEach(c -> times[c]++));
        StringBuilder vocabulary = new StringBuilder().append(END);
        IntStream.range(0, times.length)
                .filter(c -> times[c] >= RARE)
                .forEach(c -> vocabulary.append((char) c));
        return vocabulary.toString();
    }

    /** Returns the numbers of characters of the vocabulary. */
    short[] encode(String text) {
        short[] encoded = new short[text.length()];
        for (int i = 0; i < encoded.length; i++) {
            encoded[i] = (short) vocabulary.indexOf(text.charAt(i));
        }
        return encoded;
    }

    /** Returns the character of a number. */
    char decode(int id) {
        return vocabulary.charAt(id);
    }

    /** Returns the number that ends a sentence. */
    int end() {
        return vocabulary.indexOf(END);
    }

    /**
     * Returns the number of different characters.
     *
     * @return the size of the vocabulary
     */
    public int vocabulary() {
        return vocabulary.length();
    }

    /** Returns the text to train on. */
    short[] training() {
        return training;
    }

    /** Returns the sentences that are never trained on. */
    short[] heldOut() {
        return heldOut;
    }

    /**
     * Real English: the example sentences of LanguageTool's grammar rules that are right. (Those
     * that show an error say how they are corrected, and are left out.)
     */
    static final class ExampleSentences {

        private static final String FILE = "/org/languagetool/rules/en/grammar.xml";

        private ExampleSentences() {}

        /**
         * Reads the sentences.
         *
         * @return each sentence once, in the order of the file
         * @throws IOException if the file cannot be read
         */
        static List<String> read() throws IOException {
            XMLInputFactory factory = XMLInputFactory.newDefaultFactory();
            factory.setProperty(XMLInputFactory.IS_SUPPORTING_EXTERNAL_ENTITIES, false);
            // the rules are made of some thousand entities, more than newer JDKs expand by
            // themselves
            for (String limit :
                    List.of(
                            "entityExpansionLimit",
                            "totalEntitySizeLimit",
                            "maxGeneralEntitySizeLimit")) {
                factory.setProperty("jdk.xml." + limit, "0");
            }
            Set<String> sentences = new LinkedHashSet<>();
            try (InputStream file = ExampleSentences.class.getResourceAsStream(FILE)) {
                if (file == null) {
                    throw new IOException("org.languagetool:language-en is not on the class path");
                }
                XMLStreamReader reader = factory.createXMLStreamReader(file);
                while (reader.hasNext()) {
                    if (reader.next() == XMLStreamConstants.START_ELEMENT
                            && reader.getLocalName().equals("example")
                            && reader.getAttributeCount() == 0) {
                        sentences.add(text(reader).strip().replaceAll("\\s+", " "));
                    }
                }
            } catch (XMLStreamException e) {
                throw new IOException(FILE + " is not the XML that was expected", e);
            }
            return List.copyOf(sentences);
        }

        /** Returns the text up to the end of the element, that of elements in it too. */
        private static String text(XMLStreamReader reader) throws XMLStreamException {
            StringBuilder text = new StringBuilder();
            for (int depth = 1; depth > 0; ) {
                int event = reader.next();
                if (event == XMLStreamConstants.START_ELEMENT) {
                    depth++; // a marker of what the rule is about
                } else if (event == XMLStreamConstants.END_ELEMENT) {
                    depth--;
                } else if (reader.hasText() && event != XMLStreamConstants.COMMENT) {
                    text.append(reader.getText());
                }
            }
            return text.toString();
        }
    }

    /** Cuts a text into windows: of each the characters, and as labels those that follow them. */
    static final class Windows {

        private final short[] text;
        private final int context;

        Windows(short[] text, int context) {
            this.text = text;
            this.context = context;
        }

        /** Characters and labels, each [batch, context], of type int64. */
        record Batch(NDList data, NDList labels) {}

        /** Returns where windows begin that do not overlap, at most so many, all over the text. */
        int[] spread(int most) {
            int all = (text.length - 1) / context;
            int count = Math.min(most, all);
            return IntStream.range(0, count)
                    .map(i -> (int) ((long) i * all / count) * context)
                    .toArray();
        }

        /** Returns the number of places where a window may begin. */
        int places() {
            return text.length - context;
        }

        /** Makes a batch of the windows that begin at some places. */
        Batch batch(NDManager manager, int... starts) {
            long[] data = new long[starts.length * context];
            long[] labels = new long[data.length];
            for (int row = 0; row < starts.length; row++) {
                for (int i = 0; i < context; i++) {
                    data[row * context + i] = text[starts[row] + i];
                    labels[row * context + i] = text[starts[row] + i + 1];
                }
            }
            Shape shape = new Shape(starts.length, context);
            NDArray ids = manager.create(data, shape);
            return new Batch(new NDList(ids), new NDList(manager.create(labels, shape)));
        }
    }
}

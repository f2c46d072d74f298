package io.djltp.examples.lm;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

import com.google.gson.JsonObject;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;

import javax.xml.stream.XMLInputFactory;
import javax.xml.stream.XMLStreamConstants;
import javax.xml.stream.XMLStreamException;
import javax.xml.stream.XMLStreamReader;

/**
 * A text as token ids: sentences, each with the token of an end before it. Every twentieth sentence
 * is held out.
 */
public final class TokenText implements AutoCloseable {

    private static final int HELD_OUT = 20; // one sentence of so many

    private final JsonObject json;
    private final HuggingFaceTokenizer tokenizer;
    private final int[] training;
    private final int[] heldOut;
    private final int heldOutCharacters;

    private TokenText(List<String> sentences, int vocabulary) throws IOException {
        List<String> seen = new ArrayList<>();
        List<String> unseen = new ArrayList<>();
        for (int i = 0; i < sentences.size(); i++) {
            (i % HELD_OUT == HELD_OUT - 1 ? unseen : seen).add(sentences.get(i));
        }
        json = BytePairs.train(seen, vocabulary);
        tokenizer = tokenizer(json);
        training = encode(seen);
        heldOut = encode(unseen);
        heldOutCharacters = unseen.stream().mapToInt(each -> each.length() + 1).sum();
    }

    /**
     * Reads the text, and makes a tokenizer of its sentences that are not held out.
     *
     * @param vocabulary the number of tokens
     * @return the text
     * @throws IOException if it cannot be read
     */
    public static TokenText read(int vocabulary) throws IOException {
        return new TokenText(ExampleSentences.read(), vocabulary);
    }

    private static HuggingFaceTokenizer tokenizer(JsonObject json) throws IOException {
        byte[] text = json.toString().getBytes(StandardCharsets.UTF_8);
        return HuggingFaceTokenizer.newInstance(
                new ByteArrayInputStream(text), Map.of("truncation", "false", "padding", "false"));
    }

    private int[] encode(List<String> sentences) {
        return sentences.stream()
                .flatMapToInt(each -> Arrays.stream(encode(each)).mapToInt(id -> (int) id))
                .toArray();
    }

    /** Returns the tokens of a text, behind that of an end. */
    long[] encode(String text) {
        return tokenizer.encode(text, true, false).getIds();
    }

    /** Returns the text of tokens, with a new line for an end. */
    String decode(long... ids) {
        return tokenizer.decode(ids, false).replace(BytePairs.END, "\n");
    }

    /** Returns the token of an end. */
    int end() {
        return 0;
    }

    /**
     * Returns the number of tokens that the tokenizer has.
     *
     * @return the size of the vocabulary
     */
    public int vocabulary() {
        return json.getAsJsonObject("model").getAsJsonObject("vocab").size();
    }

    /** Returns the tokenizer, as {@code tokenizer.json} has it. */
    JsonObject json() {
        return json;
    }

    /** Returns the text to train on. */
    int[] training() {
        return training;
    }

    /** Returns the sentences that are never trained on. */
    int[] heldOut() {
        return heldOut;
    }

    /** Returns how many characters a token has, in the sentences that are held out. */
    double charactersPerToken() {
        return (double) heldOutCharacters / heldOut.length;
    }

    /** Frees the tokenizer. */
    @Override
    public void close() {
        tokenizer.close();
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

    /** Cuts a text into windows: of each the tokens, and as labels those that follow them. */
    static final class Windows {

        private final int[] text;
        private final int context;

        Windows(int[] text, int context) {
            this.text = text;
            this.context = context;
        }

        /** Tokens and labels, each [batch, context], of type int64. */
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

package io.djltp.examples.lm;

import java.io.IOException;
import java.io.InputStream;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

import javax.xml.stream.XMLInputFactory;
import javax.xml.stream.XMLStreamConstants;
import javax.xml.stream.XMLStreamException;
import javax.xml.stream.XMLStreamReader;

/**
 * Real English: the example sentences of LanguageTool's grammar rules that are right. (Those that
 * show an error say how they are corrected, and are left out.)
 */
final class ExampleSentences {

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
        // the rules are made of some thousand entities, more than newer JDKs expand by themselves
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

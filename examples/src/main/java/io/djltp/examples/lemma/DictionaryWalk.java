package io.djltp.examples.lemma;

import morfologik.fsa.FSA;
import morfologik.stemming.Dictionary;
import morfologik.stemming.ISequenceEncoder;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;

/**
 * All pairs of form and lemma of a dictionary, in its order.
 *
 * <p>An entry of a dictionary is a path through an automaton: a form, a separator, how the lemma
 * differs from the form, a separator, grammatical tags. A form and its lemma have dozens of tags in
 * some languages. All of them lie behind one arc, and the walk turns back there.
 */
final class DictionaryWalk {

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

    /** Views of the two, for the encoder: two new ones for each pair are a third of the walk. */
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

    /** Gets what is in a dictionary: UTF-8 at the start of an array, overwritten after the call. */
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

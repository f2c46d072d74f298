package io.djltp.examples.lm;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * A text as numbers, one for each character. Its vocabulary are the characters that are not rare;
 * sentences with others are left out. Every twentieth sentence is held out.
 */
public final class CharacterText {

    private static final int RARE = 20; // times in the text
    private static final int HELD_OUT = 20; // one sentence of so many
    private static final char END = '\n'; // of a sentence

    private final String vocabulary;
    private final short[] ids = new short[Character.MAX_VALUE + 1]; // -1 for those it has not
    private final short[] training;
    private final short[] heldOut;

    private CharacterText(List<String> sentences) {
        vocabulary = vocabulary(sentences);
        Arrays.fill(ids, (short) -1);
        for (int i = 0; i < vocabulary.length(); i++) {
            ids[vocabulary.charAt(i)] = (short) i;
        }
        List<String> known = sentences.stream().filter(this::isKnown).toList();
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
        for (String sentence : sentences) {
            for (int i = 0; i < sentence.length(); i++) {
                times[sentence.charAt(i)]++;
            }
        }
        StringBuilder vocabulary = new StringBuilder().append(END);
        for (int i = 0; i < times.length; i++) {
            if (times[i] >= RARE) {
                vocabulary.append((char) i);
            }
        }
        return vocabulary.toString();
    }

    private boolean isKnown(String sentence) {
        for (int i = 0; i < sentence.length(); i++) {
            if (ids[sentence.charAt(i)] < 0) {
                return false;
            }
        }
        return true;
    }

    /** Returns the numbers of characters of the vocabulary. */
    short[] encode(String text) {
        short[] encoded = new short[text.length()];
        for (int i = 0; i < encoded.length; i++) {
            encoded[i] = ids[text.charAt(i)];
        }
        return encoded;
    }

    /** Returns the character of a number. */
    char decode(int id) {
        return vocabulary.charAt(id);
    }

    /** Returns the number that ends a sentence. */
    int end() {
        return ids[END];
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
}

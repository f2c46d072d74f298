package io.djltp.examples.lm;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;

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
                        .filter(s -> s.chars().allMatch(c -> vocabulary.indexOf(c) >= 0))
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
        return END
                + sentences.stream()
                        .flatMap(sentence -> sentence.chars().mapToObj(c -> (char) c))
                        .collect(Collectors.groupingBy(c -> c, Collectors.counting()))
                        .entrySet()
                        .stream()
                        .filter(entry -> entry.getValue() >= RARE)
                        .map(entry -> "" + entry.getKey())
                        .sorted()
                        .collect(Collectors.joining());
    }

    /** Returns the numbers of characters of the vocabulary. */
    short[] encode(String text) {
        short[] ids = new short[text.length()];
        for (int i = 0; i < ids.length; i++) {
            ids[i] = (short) vocabulary.indexOf(text.charAt(i));
        }
        return ids;
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
}

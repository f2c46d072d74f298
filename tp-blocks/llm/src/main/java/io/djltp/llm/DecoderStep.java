package io.djltp.llm;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;

/**
 * Rows of a step, each a token of a text at a position. Rows of one text follow one another, and so
 * do their positions.
 */
final class DecoderStep {

    private int count;
    private int[] texts;
    private int[] positions;
    private int[] ids;
    private int[] lengths; // of the row's text, on which scaled positions may depend
    private int asked;
    private int[] askedRows;
    private Sampling[] samplings;

    /**
     * How the token after a row is chosen.
     *
     * @param options the options
     * @param sample how many texts of the same prompt come before
     * @param number how many tokens were generated before
     * @param context the ids of the text so far, if they matter
     * @param logits whether the logits are wanted, too
     */
    record Sampling(
            GenerationOptions options, int sample, int number, int[] context, boolean logits) {}

    /**
     * The token after a row.
     *
     * @param id its id
     * @param logits the logits of all tokens, if they are wanted; of a rank its own
     */
    record Choice(int id, float @Nullable [] logits) {}

    DecoderStep(int capacity) {
        texts = new int[capacity];
        positions = new int[capacity];
        ids = new int[capacity];
        lengths = new int[capacity];
        askedRows = new int[4];
        samplings = new Sampling[4];
    }

    void add(int text, int position, int id, int length) {
        texts[count] = text;
        positions[count] = position;
        lengths[count] = length;
        ids[count++] = id;
    }

    /** Asks for the token after the last row. */
    void ask(Sampling sampling) {
        if (asked == askedRows.length) {
            askedRows = Arrays.copyOf(askedRows, 2 * asked);
            samplings = Arrays.copyOf(samplings, 2 * asked);
        }
        askedRows[asked] = count - 1;
        samplings[asked++] = sampling;
    }

    boolean isFull() {
        return count == ids.length;
    }

    int count() {
        return count;
    }

    int text(int row) {
        return texts[row];
    }

    int position(int row) {
        return positions[row];
    }

    int id(int row) {
        return ids[row];
    }

    int length(int row) {
        return lengths[row];
    }

    int asked() {
        return asked;
    }

    int askedRow(int index) {
        return askedRows[index];
    }

    Sampling sampling(int index) {
        return samplings[index];
    }
}

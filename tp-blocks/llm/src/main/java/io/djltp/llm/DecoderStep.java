package io.djltp.llm;

import io.djltp.llm.GeneratedToken.LogProbability;

import org.jspecify.annotations.Nullable;

import java.nio.IntBuffer;
import java.util.Arrays;
import java.util.List;

/**
 * Rows of a step, each a token of a text at a position. Rows of one text follow one another, and so
 * do their positions.
 */
final class DecoderStep {

    private static final int ASKED_INTS = 12;

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
     * @param logProbabilities its own, then those of the likeliest tokens, if they are wanted
     * @param logits the logits of all tokens, if they are wanted; of a rank its own
     */
    record Choice(int id, List<LogProbability> logProbabilities, float @Nullable [] logits) {}

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

    /** Returns the step as numbers, for {@link #of}. */
    int[] toInts() {
        int size = 2 + 4 * count;
        for (int i = 0; i < asked; i++) {
            size += ASKED_INTS + samplings[i].context.length;
        }
        IntBuffer ints = IntBuffer.allocate(size).put(count).put(asked);
        for (int[] each : new int[][] {texts, positions, ids, lengths}) {
            ints.put(each, 0, count);
        }
        for (int i = 0; i < asked; i++) {
            Sampling each = samplings[i];
            GenerationOptions options = each.options;
            ints.put(askedRows[i]).put(each.sample).put(each.number);
            ints.put((int) (options.getSeed() >> 32)).put((int) options.getSeed());
            ints.put(Float.floatToIntBits(options.getTemperature())).put(options.getTopK());
            ints.put(Float.floatToIntBits(options.getTopP()));
            ints.put(Float.floatToIntBits(options.getMinP()));
            ints.put(Float.floatToIntBits(options.getRepetitionPenalty()));
            ints.put(options.getLogProbabilities());
            ints.put(each.context.length).put(each.context);
        }
        return ints.array();
    }

    /** Returns the step of such numbers. */
    static DecoderStep of(int[] numbers) {
        IntBuffer ints = IntBuffer.wrap(numbers);
        DecoderStep step = new DecoderStep(ints.get());
        step.count = step.texts.length;
        int asked = ints.get();
        for (int[] each : new int[][] {step.texts, step.positions, step.ids, step.lengths}) {
            ints.get(each);
        }
        for (int i = 0; i < asked; i++) {
            int row = ints.get();
            int sample = ints.get();
            int number = ints.get();
            long seed = (long) ints.get() << 32 | ints.get() & 0xFFFFFFFFL;
            GenerationOptions options =
                    GenerationOptions.builder()
                            .optSeed(seed)
                            .optTemperature(Float.intBitsToFloat(ints.get()))
                            .optTopK(ints.get())
                            .optTopP(Float.intBitsToFloat(ints.get()))
                            .optMinP(Float.intBitsToFloat(ints.get()))
                            .optRepetitionPenalty(Float.intBitsToFloat(ints.get()))
                            .optLogProbabilities(ints.get())
                            .build();
            int[] context = new int[ints.get()];
            ints.get(context);
            step.ask(new Sampling(options, sample, number, context, false));
            step.askedRows[i] = row;
        }
        return step;
    }
}

package io.djltp.llm;

import io.djltp.llm.GeneratedToken.LogProbability;

import org.jspecify.annotations.Nullable;

import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Rows of a step, each a token of a text at a position, and what is copied before. Rows of one text
 * follow one another, and so do their positions.
 */
final class DecoderStep {

    private final int capacity;
    private final List<Copy> copies = new ArrayList<>();
    private final List<Row> rows = new ArrayList<>();
    private final List<Integer> askedRows = new ArrayList<>();
    private final List<Sampling> samplings = new ArrayList<>();

    /** The keys and values of the first tokens of a text, which another one begins with. */
    record Copy(int from, int to, int tokens) {}

    /** A token, and the length of its text, on which scaled positions may depend. */
    record Row(int text, int position, int id, int length) {}

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
        this.capacity = capacity;
    }

    void copy(int from, int to, int tokens) {
        copies.add(new Copy(from, to, tokens));
    }

    void add(int text, int position, int id, int length) {
        rows.add(new Row(text, position, id, length));
    }

    /** Asks for the token after the last row. */
    void ask(Sampling sampling) {
        askedRows.add(rows.size() - 1);
        samplings.add(sampling);
    }

    boolean isFull() {
        return rows.size() == capacity;
    }

    int count() {
        return rows.size();
    }

    Row row(int number) {
        return rows.get(number);
    }

    List<Copy> copies() {
        return copies;
    }

    int asked() {
        return samplings.size();
    }

    int askedRow(int index) {
        return askedRows.get(index);
    }

    Sampling sampling(int index) {
        return samplings.get(index);
    }

    /** Returns the step as numbers, for {@link #of}. */
    int[] toInts() {
        IntStream.Builder ints = IntStream.builder();
        ints.add(copies.size()).add(rows.size()).add(samplings.size());
        copies.forEach(each -> ints.add(each.from).add(each.to).add(each.tokens));
        rows.forEach(each -> ints.add(each.text).add(each.position).add(each.id).add(each.length));
        for (int i = 0; i < samplings.size(); i++) {
            Sampling each = samplings.get(i);
            GenerationOptions options = each.options;
            ints.add(askedRows.get(i)).add(each.sample).add(each.number);
            ints.add((int) (options.getSeed() >> 32)).add((int) options.getSeed());
            ints.add(Float.floatToIntBits(options.getTemperature())).add(options.getTopK());
            ints.add(Float.floatToIntBits(options.getTopP()));
            ints.add(Float.floatToIntBits(options.getMinP()));
            ints.add(Float.floatToIntBits(options.getRepetitionPenalty()));
            ints.add(options.getLogProbabilities()).add(each.context.length);
            IntStream.of(each.context).forEach(ints);
        }
        return ints.build().toArray();
    }

    /** Returns the step of such numbers. */
    static DecoderStep of(int[] numbers) {
        IntBuffer ints = IntBuffer.wrap(numbers);
        int copied = ints.get();
        DecoderStep step = new DecoderStep(ints.get());
        int asked = ints.get();
        for (int i = 0; i < copied; i++) {
            step.copy(ints.get(), ints.get(), ints.get());
        }
        while (!step.isFull()) {
            step.add(ints.get(), ints.get(), ints.get(), ints.get());
        }
        for (int i = 0; i < asked; i++) {
            step.askedRows.add(ints.get());
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
            step.samplings.add(new Sampling(options, sample, number, context, false));
        }
        return step;
    }
}

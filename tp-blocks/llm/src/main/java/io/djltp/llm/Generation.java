package io.djltp.llm;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;

import io.djltp.llm.GeneratedToken.FinishReason;
import io.djltp.nn.attention.RotaryEmbedding;

import org.jspecify.annotations.Nullable;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

/**
 * Tokens of one prompt or several, as they are generated: {@link #next} computes a step when none
 * is left of the step before. Texts of a batch take turns; a prompt for which there is no room
 * begins when another text has ended.
 *
 * <p>Not for several threads. It ends when its generator begins another one.
 */
public final class Generation implements Iterator<GeneratedToken> {

    private final Generator generator;
    private final Decoder decoder;
    private final GenerationOptions options;
    private final List<Text> texts = new ArrayList<>();
    private final Deque<Text> waiting = new ArrayDeque<>();
    private final List<Text> running = new ArrayList<>();
    private final Deque<GeneratedToken> ready = new ArrayDeque<>();
    private long prefillNanos;
    private long decodeNanos;
    private int prefillTokens;
    private int decodeTokens;

    /** A text: the ids of its prompt, and those that follow. */
    private static final class Text {

        private final int prompt;
        private final int start; // of what is generated
        private final TextStream stream;
        private int[] ids;
        private int count;
        private Generator.@Nullable Slot slot;
        private @Nullable FinishReason reason;

        Text(int prompt, int[] ids, TextStream stream) {
            this.prompt = prompt;
            this.ids = ids.clone();
            this.stream = stream;
            count = ids.length;
            start = count;
        }

        void add(int id) {
            if (count == ids.length) {
                ids = Arrays.copyOf(ids, count + Math.max(16, count / 2));
            }
            ids[count++] = id;
        }
    }

    Generation(
            Generator generator,
            Decoder decoder,
            @Nullable HuggingFaceTokenizer tokenizer,
            List<int[]> prompts,
            GenerationOptions options) {
        this.generator = generator;
        this.decoder = decoder;
        this.options = options;
        for (int[] prompt : prompts) {
            TextStream stream = new TextStream(tokenizer, options.getStopStrings());
            texts.add(new Text(texts.size(), prompt, stream));
        }
        waiting.addAll(texts);
    }

    /**
     * Returns whether a token follows.
     *
     * @return whether a text has not ended
     */
    @Override
    public boolean hasNext() {
        return !ready.isEmpty() || !running.isEmpty() || !waiting.isEmpty();
    }

    /**
     * Returns the next token of any text.
     *
     * @return the token, of a text that had not ended
     * @throws NoSuchElementException if all have ended
     * @throws IllegalStateException if the generator was closed, or has begun another generation
     * @throws io.djltp.rank.RankFailedException if a rank fails
     */
    @Override
    public GeneratedToken next() {
        while (ready.isEmpty()) {
            if (!hasNext()) {
                throw new NoSuchElementException("All texts have ended");
            }
            generator.check(this);
            step();
        }
        return ready.remove();
    }

    /**
     * Generates all tokens that are left.
     *
     * @return the texts, in the order of their prompts
     */
    public List<String> finish() {
        while (hasNext()) {
            next();
        }
        return texts.stream().map(text -> text.stream.getText()).toList();
    }

    private void step() {
        for (Generator.Slot slot; !waiting.isEmpty(); ) {
            Text text = waiting.peek();
            slot = generator.takeSlot(text.ids, text.count);
            if (slot == null) {
                break;
            }
            text.slot = slot;
            running.add(waiting.remove());
        }
        DecoderStep step = new DecoderStep(decoder.size().rows());
        List<Text> asked = new ArrayList<>();
        boolean prefill = false;
        for (boolean first : new boolean[] {true, false}) { // single tokens, then prompts
            for (Text text : running) {
                Generator.Slot slot = slotOf(text);
                RotaryEmbedding rotary = decoder.config().getRotary();
                boolean again = rotary != null && rotary.isScaledBy(text.count);
                if (again && slot.partOf != text.count) { // angles of all positions are others
                    slot.count = 0;
                    slot.partOf = text.count;
                }
                int missing = text.count - slot.count;
                if (missing == 0 || (missing == 1) != first || step.isFull()) {
                    continue;
                }
                prefill |= !first;
                while (slot.count < text.count && !step.isFull()) {
                    int at = slot.count;
                    step.add(slot.number, at, text.ids[at], text.count);
                    slot.add(text.ids[at]);
                }
                if (slot.count == text.count) {
                    int[] context =
                            options.getRepetitionPenalty() == 1
                                    ? new int[0]
                                    : Arrays.copyOf(text.ids, text.count);
                    int number = text.count - text.start;
                    step.ask(new DecoderStep.Sampling(options, number, context));
                    asked.add(text);
                }
            }
        }
        long begin = System.nanoTime();
        int[] tokens = generator.choose(step);
        long nanos = System.nanoTime() - begin;
        if (prefill) {
            prefillNanos += nanos;
            prefillTokens += step.count();
        } else {
            decodeNanos += nanos;
            decodeTokens += step.count();
        }
        for (int i = 0; i < tokens.length; i++) {
            accept(asked.get(i), tokens[i]);
        }
    }

    private static Generator.Slot slotOf(Text text) {
        Generator.Slot slot = text.slot;
        if (slot == null) {
            throw new IllegalStateException("A text has no place in the cache");
        }
        return slot;
    }

    private void accept(Text text, int id) {
        String piece = "";
        FinishReason reason = null;
        if (options.getStopTokens().contains(id)) {
            reason = FinishReason.STOP;
        } else {
            text.add(id);
            piece = text.stream.add(id);
            if (text.stream.isStopped()) {
                reason = FinishReason.STOP;
            } else if (text.count - text.start >= options.getMaxTokens()
                    || text.count >= decoder.size().length()) {
                reason = FinishReason.LENGTH;
            }
        }
        if (reason != null) {
            piece += text.stream.finish();
            text.reason = reason;
            running.remove(text);
            generator.giveBack(slotOf(text));
            text.slot = null;
        }
        ready.add(new GeneratedToken(text.prompt, id, piece, reason));
    }

    /** Gives back the places in the cache: another generation has begun. */
    void end() {
        running.forEach(text -> generator.giveBack(slotOf(text)));
    }

    /**
     * Returns how many prompts there are.
     *
     * @return the number of texts
     */
    public int size() {
        return texts.size();
    }

    /**
     * Returns the ids of a prompt.
     *
     * @param prompt the number of the prompt
     * @return the ids
     */
    public int[] getPromptIds(int prompt) {
        Text text = texts.get(prompt);
        return Arrays.copyOf(text.ids, text.start);
    }

    /**
     * Returns the tokens that were generated so far for a prompt, without a stop token.
     *
     * @param prompt the number of the prompt
     * @return the ids
     */
    public int[] getIds(int prompt) {
        Text text = texts.get(prompt);
        return Arrays.copyOfRange(text.ids, text.start, text.count);
    }

    /**
     * Returns the text that was generated so far for a prompt.
     *
     * @param prompt the number of the prompt
     * @return the text
     */
    public String getText(int prompt) {
        return texts.get(prompt).stream.getText();
    }

    /**
     * Returns why a text has ended.
     *
     * @param prompt the number of the prompt
     * @return the reason, or {@code null} if it has not ended
     */
    public @Nullable FinishReason getFinishReason(int prompt) {
        return texts.get(prompt).reason;
    }

    /**
     * Returns the time of the steps in which there were tokens of prompts.
     *
     * @return the seconds
     */
    public double getPrefillSeconds() {
        return prefillNanos / 1e9;
    }

    /**
     * Returns how many tokens were computed in {@link #getPrefillSeconds}.
     *
     * @return the number of tokens
     */
    public int getPrefillTokens() {
        return prefillTokens;
    }

    /**
     * Returns the time of all other steps.
     *
     * @return the seconds
     */
    public double getDecodeSeconds() {
        return decodeNanos / 1e9;
    }

    /**
     * Returns how many tokens were computed in {@link #getDecodeSeconds}.
     *
     * @return the number of tokens
     */
    public int getDecodeTokens() {
        return decodeTokens;
    }
}

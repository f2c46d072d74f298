package io.djltp.llm;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;

import io.djltp.llm.GeneratedToken.FinishReason;
import io.djltp.llm.GenerationLoop.Text;

import org.jspecify.annotations.Nullable;

import java.nio.IntBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.concurrent.CancellationException;
import java.util.concurrent.locks.Condition;

/**
 * Tokens of one prompt or several, as they are generated. If no token is left of the steps before,
 * {@link #next} computes a step for the texts of all generations of the generator. A text that
 * finds no room in the batch waits until another one ends.
 *
 * <p>A generation belongs to one thread; only {@link #close} may be called by any. Close a
 * generation that is not read to its end: until then its texts keep their places, and other threads
 * compute them to their ends.
 */
public final class Generation implements Iterator<GeneratedToken>, AutoCloseable {

    final GenerationOptions options;
    final boolean logits; // are asked for, instead of tokens
    final Condition arrived;
    final Deque<GeneratedToken> ready = new ArrayDeque<>();
    boolean cancelled;
    float @Nullable [] lastLogits;

    private final GenerationLoop loop;
    private final List<Text> texts = new ArrayList<>();
    private int ended;
    private int rows; // of this generation in a step
    private boolean prefill; // whether some of them are of prompts
    private long prefillNanos;
    private long decodeNanos;
    private int prefillTokens;
    private int decodeTokens;
    private int reusedTokens;

    Generation(
            GenerationLoop loop,
            @Nullable HuggingFaceTokenizer tokenizer,
            List<int[]> prompts,
            GenerationOptions options,
            boolean logits) {
        this.loop = loop;
        this.options = options;
        this.logits = logits;
        arrived = loop.newCondition();
        Map<IntBuffer, Integer> samples = new HashMap<>();
        for (int[] prompt : prompts) {
            TextStream stream = new TextStream(tokenizer, options.getStopStrings());
            int sample = samples.merge(IntBuffer.wrap(prompt), 1, Integer::sum) - 1;
            texts.add(new Text(this, texts.size(), prompt, sample, stream));
        }
        loop.add(texts);
    }

    /**
     * Returns whether a token follows.
     *
     * @return whether a text has not ended, and the generation is not closed
     */
    @Override
    public boolean hasNext() {
        return loop.locked(() -> !ready.isEmpty() || !cancelled && ended < texts.size());
    }

    /**
     * Returns the next token of any text, as soon as there is one.
     *
     * @return the token, of a text that had not ended
     * @throws NoSuchElementException if all have ended
     * @throws CancellationException if the generation is closed
     * @throws IllegalStateException if the generator is closed, or the thread is interrupted; it
     *     stays interrupted, and the generation goes on
     * @throws io.djltp.rank.RankFailedException if a rank fails
     */
    @Override
    public GeneratedToken next() {
        return loop.next(this);
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

    /**
     * Ends the generation, and gives its places to others. A thread that waits in {@link #next}
     * gets a {@link CancellationException}. Any thread may call it.
     */
    @Override
    public void close() {
        loop.cancel(this);
    }

    boolean hasEnded() {
        return ended == texts.size();
    }

    /** Adds a token, which the thread waits for. */
    void add(Text text, DecoderStep.Choice choice, String piece) {
        ready.add(
                new GeneratedToken(
                        text.prompt, choice.id(), piece, text.reason, choice.logProbabilities()));
        ended += text.reason == null ? 0 : 1;
        lastLogits = choice.logits();
        arrived.signal();
    }

    /** Notes tokens of a text that are part of a step. */
    void addRows(int count, boolean ofPrompt) {
        rows += count;
        prefill |= ofPrompt;
    }

    /** Notes tokens of a prompt that no step computes. */
    void addReused(int count) {
        reusedTokens += count;
    }

    /** Notes the time of a step. */
    void addTime(long nanos) {
        if (rows > 0 && prefill) {
            prefillNanos += nanos;
            prefillTokens += rows;
        } else if (rows > 0) {
            decodeNanos += nanos;
            decodeTokens += rows;
        }
        rows = 0;
        prefill = false;
    }

    /** {@return how many prompts there are} */
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
        return loop.locked(() -> Arrays.copyOf(text.ids, text.start));
    }

    /**
     * Returns the tokens that were generated so far for a prompt, without a stop token.
     *
     * @param prompt the number of the prompt
     * @return the ids
     */
    public int[] getIds(int prompt) {
        Text text = texts.get(prompt);
        return loop.locked(() -> Arrays.copyOfRange(text.ids, text.start, text.count));
    }

    /**
     * Returns the text that was generated so far for a prompt.
     *
     * @param prompt the number of the prompt
     * @return the text
     */
    public String getText(int prompt) {
        Text text = texts.get(prompt);
        return loop.locked(text.stream::getText);
    }

    /**
     * Returns why a text has ended.
     *
     * @param prompt the number of the prompt
     * @return the reason, or {@code null} if it has not ended
     */
    public @Nullable FinishReason getFinishReason(int prompt) {
        Text text = texts.get(prompt);
        return loop.locked(() -> text.reason);
    }

    /**
     * {@return the seconds of the steps in which there were tokens of its prompts, with those of
     * other generations}
     */
    public double getPrefillSeconds() {
        return loop.locked(() -> prefillNanos) / 1e9;
    }

    /** {@return how many of its tokens were computed in {@link #getPrefillSeconds}} */
    public int getPrefillTokens() {
        return loop.locked(() -> prefillTokens);
    }

    /**
     * {@return how many tokens of its prompts were not computed, because earlier texts or texts
     * that ran at the same time begin with them}
     */
    public int getReusedTokens() {
        return loop.locked(() -> reusedTokens);
    }

    /** {@return the seconds of its other steps} */
    public double getDecodeSeconds() {
        return loop.locked(() -> decodeNanos) / 1e9;
    }

    /** {@return how many of its tokens were computed in {@link #getDecodeSeconds}} */
    public int getDecodeTokens() {
        return loop.locked(() -> decodeTokens);
    }
}

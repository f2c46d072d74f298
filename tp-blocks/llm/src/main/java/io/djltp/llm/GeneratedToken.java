package io.djltp.llm;

import org.jspecify.annotations.Nullable;

import java.util.List;

/**
 * A token that was generated.
 *
 * @param prompt the number of its prompt in the list that was given, from 0
 * @param id its id
 * @param text the text that is certain since the token before: whole characters, of this token or
 *     of those before it; empty while a character is not complete, or while the text may be the
 *     beginning of a stop string
 * @param finishReason why it is the last one of its text, or {@code null} if it is not
 * @param logProbabilities its own logarithmic probability, then those of the likeliest tokens, the
 *     likeliest first; empty unless {@link GenerationOptions.Builder#optLogProbabilities} asks for
 *     them
 */
public record GeneratedToken(
        int prompt,
        int id,
        String text,
        @Nullable FinishReason finishReason,
        List<LogProbability> logProbabilities) {

    /**
     * How likely the model takes a token to be, before penalty, temperature and what else the
     * options change.
     *
     * @param id the id of the token
     * @param value the natural logarithm of its probability
     */
    public record LogProbability(int id, double value) {}

    /** Why a text has ended. */
    public enum FinishReason {

        /** A stop token, which is no part of the text, or a stop string, which is not either. */
        STOP,

        /** The most tokens that were asked for, or that the generator has room for. */
        LENGTH
    }
}

package io.djltp.llm;

import ai.djl.MalformedModelException;

import io.djltp.internal.Errors;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/**
 * How tokens are chosen, and when a text ends.
 *
 * <p>Choices are made in this order: the repetition penalty, the temperature, the best k, the
 * likeliest tokens with a share p of the probability, and those that are not much less likely than
 * the best one. Which token is drawn follows from the seed, the number of tokens generated before
 * and, of equal prompts of a generation, which one it is: it depends neither on the number of ranks
 * nor on other prompts of a batch.
 */
public final class GenerationOptions {

    private final Builder values; // which nobody changes any more

    private GenerationOptions(Builder values) {
        this.values = values;
    }

    /** Reads {@code generation_config.json}, or without one the end of a text of the model. */
    static GenerationOptions read(Path folder, ModelConfig config)
            throws IOException, MalformedModelException {
        Path file = folder.resolve("generation_config.json");
        ConfigFields fields =
                Files.exists(file) ? ConfigFields.read(file) : ConfigFields.parse("{}");
        String end = "eos_token_id";
        List<Integer> ids = fields.ids(end, config.getVocabularySize());
        if (ids.isEmpty()) {
            ids = ConfigFields.read(folder).ids(end, config.getVocabularySize());
        }
        fields.checkGeneration();
        Builder builder = builder().optStopTokens(ids);
        try {
            builder.optStopStrings(fields.strings("stop_strings"));
            builder.optRepetitionPenalty((float) fields.number("repetition_penalty", 1));
            if (fields.has("max_new_tokens")) {
                builder.optMaxTokens(fields.count("max_new_tokens", 1));
            }
            if (fields.flag("do_sample", false)) { // with the defaults of transformers
                builder.optTemperature((float) fields.number("temperature", 1));
                builder.optTopK((int) fields.number("top_k", 50));
                builder.optTopP((float) fields.number("top_p", 1));
                builder.optMinP((float) fields.number("min_p", 0));
            }
        } catch (IllegalArgumentException e) {
            throw new MalformedModelException(file + ": " + e.getMessage(), e);
        }
        return builder.build();
    }

    /** {@return how many tokens are generated at most} */
    public int getMaxTokens() {
        return values.maxTokens;
    }

    /** {@return the temperature, by which logits are divided, or 0 for the likeliest token} */
    public float getTemperature() {
        return values.temperature;
    }

    /** {@return among how many of the best tokens one is drawn, or 0 for all} */
    public int getTopK() {
        return values.topK;
    }

    /** {@return which share of the probability the tokens have among which one is drawn} */
    public float getTopP() {
        return values.topP;
    }

    /** {@return which share of the largest probability a token must have} */
    public float getMinP() {
        return values.minP;
    }

    /**
     * {@return by what the logits of tokens are divided, or multiplied if negative, that the prompt
     * or the text has already, 1 for none}
     */
    public float getRepetitionPenalty() {
        return values.repetitionPenalty;
    }

    /** {@return the seed, which the drawn tokens follow from} */
    public long getSeed() {
        return values.seed;
    }

    /**
     * {@return of how many of the likeliest tokens the probabilities are returned with each token,
     * or -1 if that of the token itself is not returned either}
     */
    public int getLogProbabilities() {
        return values.logProbabilities;
    }

    /** {@return the ids of the tokens that end a text, and are no part of it} */
    public List<Integer> getStopTokens() {
        return values.stopTokens;
    }

    /** {@return the strings that end a text, and are no part of it} */
    public List<String> getStopStrings() {
        return values.stopStrings;
    }

    boolean isGreedy() {
        return values.temperature == 0;
    }

    /** {@return a new builder whose options are those of this object} */
    public Builder toBuilder() {
        return new Builder(values);
    }

    /** {@return a new builder of options: the likeliest token, at most 128 of them} */
    public static Builder builder() {
        return new Builder();
    }

    /** The builder to construct {@link GenerationOptions}. */
    public static final class Builder {

        private int maxTokens = 128;
        private float temperature;
        private int topK;
        private float topP = 1;
        private float minP;
        private float repetitionPenalty = 1;
        private long seed;
        private int logProbabilities = -1;
        private List<Integer> stopTokens = List.of();
        private List<String> stopStrings = List.of();

        private Builder() {}

        private Builder(Builder other) {
            maxTokens = other.maxTokens;
            temperature = other.temperature;
            topK = other.topK;
            topP = other.topP;
            minP = other.minP;
            repetitionPenalty = other.repetitionPenalty;
            seed = other.seed;
            logProbabilities = other.logProbabilities;
            stopTokens = other.stopTokens;
            stopStrings = other.stopStrings;
        }

        /**
         * Sets how many tokens are generated at most. Default: 128.
         *
         * @param maxTokens 1 or more
         * @return this builder
         */
        public Builder optMaxTokens(int maxTokens) {
            Errors.check(
                    maxTokens > 0, "The number of tokens must be 1 or more, not %s", maxTokens);
            this.maxTokens = maxTokens;
            return this;
        }

        /**
         * Sets by what logits are divided. Default: 0, which chooses the likeliest token.
         *
         * @param temperature 0 or more
         * @return this builder
         */
        public Builder optTemperature(float temperature) {
            Errors.check(
                    temperature >= 0 && temperature <= Float.MAX_VALUE,
                    "The temperature must be 0 or more, not %s",
                    temperature);
            this.temperature = temperature;
            return this;
        }

        /**
         * Sets among how many of the best tokens one is drawn. Default: all.
         *
         * @param topK the number, or 0 for all
         * @return this builder
         */
        public Builder optTopK(int topK) {
            Errors.check(topK >= 0, "The number of best tokens must be 0 or more, not %s", topK);
            this.topK = topK;
            return this;
        }

        /**
         * Draws among the likeliest tokens that have a share of the probability together. Default:
         * 1, all.
         *
         * @param topP the share, above 0 and at most 1
         * @return this builder
         */
        public Builder optTopP(float topP) {
            Errors.check(
                    topP > 0 && topP <= 1,
                    "The share of the probability (top-p) must be above 0 and at most 1, not %s",
                    topP);
            this.topP = topP;
            return this;
        }

        /**
         * Draws among tokens that have a share of the largest probability each. Default: 0, all.
         *
         * @param minP the share, from 0 to 1
         * @return this builder
         */
        public Builder optMinP(float minP) {
            Errors.check(
                    minP >= 0 && minP <= 1,
                    "The share of the largest probability (min-p) must be from 0 to 1, not %s",
                    minP);
            this.minP = minP;
            return this;
        }

        /**
         * Makes tokens less likely that the prompt or the text has already: their logits are
         * divided by the penalty or, if negative, multiplied. Default: 1, none.
         *
         * @param penalty above 0
         * @return this builder
         */
        public Builder optRepetitionPenalty(float penalty) {
            Errors.check(
                    penalty > 0 && penalty <= Float.MAX_VALUE,
                    "The repetition penalty must be above 0, not %s",
                    penalty);
            repetitionPenalty = penalty;
            return this;
        }

        /**
         * Sets what the drawn tokens follow from. Default: 0.
         *
         * @param seed any number
         * @return this builder
         */
        public Builder optSeed(long seed) {
            this.seed = seed;
            return this;
        }

        /**
         * Returns with each token its logarithmic probability, and those of the likeliest tokens:
         * {@link GeneratedToken#logProbabilities}. Default: -1, none.
         *
         * @param likeliest of how many of the likeliest tokens, 0 or more, or -1 for nothing
         * @return this builder
         */
        public Builder optLogProbabilities(int likeliest) {
            Errors.check(
                    likeliest >= -1,
                    "The number of log-probabilities must be -1 or more, not %s",
                    likeliest);
            logProbabilities = likeliest;
            return this;
        }

        /**
         * Sets the tokens that end a text. Default: none; those of a model are in the options of
         * {@link Generator#getDefaults}.
         *
         * @param ids the ids
         * @return this builder
         */
        public Builder optStopTokens(List<Integer> ids) {
            stopTokens = List.copyOf(ids);
            return this;
        }

        /**
         * Sets what ends a text. Default: none.
         *
         * @param strings the strings, none of them empty
         * @return this builder
         */
        public Builder optStopStrings(List<String> strings) {
            Errors.check(
                    strings.stream().noneMatch(String::isEmpty),
                    "A stop string must have a character or more");
            stopStrings = List.copyOf(strings);
            return this;
        }

        /** {@return the options} */
        public GenerationOptions build() {
            return new GenerationOptions(new Builder(this));
        }
    }
}

package io.djltp.llm;

import ai.djl.MalformedModelException;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

/**
 * How a model is meant to generate: the {@code generation_config.json} of a Hugging Face folder, or
 * without one the ids that {@code config.json} names.
 */
public final class GenerationConfig {

    private final List<Integer> beginIds;
    private final List<Integer> endIds;
    private final List<Integer> paddingIds;
    private final boolean sampled;
    private final float temperature;
    private final int topK;
    private final float topP;
    private final float minP;
    private final float repetitionPenalty;

    private GenerationConfig(ConfigFields fields, ConfigFields model, int vocabulary)
            throws MalformedModelException {
        beginIds = ids("bos_token_id", fields, model, vocabulary);
        endIds = ids("eos_token_id", fields, model, vocabulary);
        paddingIds = ids("pad_token_id", fields, model, vocabulary);
        sampled = fields.flag("do_sample", false);
        temperature = (float) fields.number("temperature", 1);
        topK = (int) fields.number("top_k", 50);
        topP = (float) fields.number("top_p", 1);
        minP = (float) fields.number("min_p", 0);
        repetitionPenalty = (float) fields.positive("repetition_penalty", 1);
        fields.checkRange("temperature", temperature, 0, Float.MAX_VALUE);
        fields.checkRange("top_k", topK, 0, Integer.MAX_VALUE);
        fields.checkRange("top_p", topP, 0, 1);
        fields.checkRange("min_p", minP, 0, 1);
        fields.checkGeneration();
    }

    private static List<Integer> ids(
            String name, ConfigFields fields, ConfigFields model, int vocabulary)
            throws MalformedModelException {
        List<Integer> own = fields.ids(name, vocabulary);
        return own.isEmpty() ? model.ids(name, vocabulary) : own;
    }

    static GenerationConfig read(Path folder, ModelConfig config)
            throws IOException, MalformedModelException {
        ConfigFields model = ConfigFields.read(folder);
        Path file = folder.resolve("generation_config.json");
        ConfigFields fields = Files.exists(file) ? ConfigFields.read(file) : ConfigFields.none();
        return new GenerationConfig(fields, model, config.getVocabularySize());
    }

    /**
     * Returns the ids that a text begins with.
     *
     * @return the {@code bos_token_id}, or none
     */
    public List<Integer> getBeginIds() {
        return beginIds;
    }

    /**
     * Returns the ids after which a text has its end.
     *
     * @return one {@code eos_token_id} or more, or none
     */
    public List<Integer> getEndIds() {
        return endIds;
    }

    /**
     * Returns the ids that fill up texts of a batch.
     *
     * @return the {@code pad_token_id}, or none
     */
    public List<Integer> getPaddingIds() {
        return paddingIds;
    }

    /**
     * Returns whether tokens are drawn, and not the likeliest ones.
     *
     * @return whether they are drawn; by default not
     */
    public boolean isSampled() {
        return sampled;
    }

    /**
     * Returns by what logits are divided.
     *
     * @return the temperature; by default 1
     */
    public float getTemperature() {
        return temperature;
    }

    /**
     * Returns among how many of the likeliest tokens is drawn.
     *
     * @return the number, or 0 for all; by default 50, as transformers has it
     */
    public int getTopK() {
        return topK;
    }

    /**
     * Returns which share of the probability the likeliest tokens have among which is drawn.
     *
     * @return the share; by default 1
     */
    public float getTopP() {
        return topP;
    }

    /**
     * Returns which share of the largest probability a token must have.
     *
     * @return the share; by default 0
     */
    public float getMinP() {
        return minP;
    }

    /**
     * Returns how much less likely tokens become that the text has already.
     *
     * @return the penalty; by default 1, for none
     */
    public float getRepetitionPenalty() {
        return repetitionPenalty;
    }
}

package io.djltp.examples.generate;

import com.google.gson.annotations.SerializedName;

import org.jspecify.annotations.Nullable;

import java.util.List;

/** What {@code --json} writes. */
final class GeneratedText {

    int[] ids; // of the prompt
    int[] tokens; // that follow
    @Nullable String text; // of the tokens; null without a tokenizer

    @SerializedName("finish_reason")
    @Nullable String finishReason;

    int ranks;
    String weights;
    String kernel;

    @SerializedName("bytes_per_rank")
    List<Long> bytes;

    @SerializedName("seconds_prefill")
    double prefill;

    @SerializedName("seconds_decode")
    double decode;

    float @Nullable [] logits; // after the prompt

    GeneratedText(
            int[] ids, int[] tokens, int ranks, String weights, String kernel, List<Long> bytes) {
        this.ids = ids;
        this.tokens = tokens;
        this.ranks = ranks;
        this.weights = weights;
        this.kernel = kernel;
        this.bytes = bytes;
    }
}

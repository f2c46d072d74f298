package io.djltp.examples.embed;

import com.google.gson.annotations.SerializedName;

/**
 * A text and its embedding, as {@code --json} writes them: a list of these. What holds for all of
 * them is in the first alone, and {@code null} in the others.
 */
final class EmbeddedText {

    String text;
    float[] vector;

    Integer ranks;

    @SerializedName("collectives_per_layer")
    Integer collectivesPerLayer;

    /** The time of all vectors of the list, without loading the model. */
    Double seconds;

    @SerializedName("onnx_seconds")
    Double onnxSeconds; // with --compare

    @SerializedName("largest_difference")
    Double largestDifference; // with --compare

    EmbeddedText(String text, float[] vector) {
        this.text = text;
        this.vector = vector;
    }
}

package io.djltp.examples.embed;

import com.google.gson.annotations.SerializedName;

import org.jspecify.annotations.Nullable;

import java.io.PrintStream;
import java.util.List;
import java.util.Locale;

/**
 * A text and its embedding of length 1, as {@code --json} writes them: a list of these. What holds
 * for all of them is in the first alone, and {@code null} in the others.
 */
final class EmbeddedText {

    private static final int LARGEST_TABLE = 10;

    String text;
    float[] vector = {};

    @Nullable Integer ranks;

    @SerializedName("collectives_per_layer")
    @Nullable Integer collectivesPerLayer;

    /** The time of all vectors of the list, without loading the model. */
    @Nullable Double seconds;

    EmbeddedText(String text) {
        this.text = text;
    }

    /** Returns the cosine with another text. */
    double cosine(EmbeddedText other) {
        return product(other) / Math.sqrt(product(this) * other.product(other));
    }

    private double product(EmbeddedText other) {
        double sum = 0;
        for (int i = 0; i < vector.length; i++) {
            sum += (double) vector[i] * other.vector[i];
        }
        return sum;
    }

    /** Prints the cosines of all pairs, or of many texts each with the one that is closest. */
    static void printCosines(List<EmbeddedText> texts, PrintStream out) {
        boolean table = texts.size() <= LARGEST_TABLE;
        if (texts.size() < 2) {
            return;
        }
        out.printf(
                table
                        ? "%nCosine similarity:%n    "
                        : "%nThe closest text, and its cosine similarity:%n");
        for (int k = 0; table && k < texts.size(); k++) {
            out.printf("%7d%s", k + 1, k + 1 < texts.size() ? "" : System.lineSeparator());
        }
        for (int i = 0; i < texts.size(); i++) {
            out.printf("%3d ", i + 1);
            int best = i == 0 ? 1 : 0;
            for (int k = 0; k < texts.size(); k++) {
                double cosine = texts.get(i).cosine(texts.get(k));
                if (table) {
                    out.printf(Locale.ROOT, "%7.3f", cosine);
                } else if (k != i && cosine > texts.get(i).cosine(texts.get(best))) {
                    best = k;
                }
            }
            if (!table) {
                double cosine = texts.get(i).cosine(texts.get(best));
                out.printf(Locale.ROOT, "%5d%7.3f", best + 1, cosine);
            }
            out.println();
        }
    }
}

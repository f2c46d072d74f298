package io.djltp.examples.embed;

import java.io.PrintStream;
import java.util.List;
import java.util.Locale;

/** The cosines between embeddings of length 1. */
final class Similarities {

    private static final int LARGEST_TABLE = 10;

    private final List<EmbeddedText> texts;

    Similarities(List<EmbeddedText> texts) {
        this.texts = texts;
    }

    /**
     * Returns the cosine of two texts.
     *
     * @param one the number of a text
     * @param other that of another one
     * @return the cosine
     */
    double cosine(int one, int other) {
        float[] first = texts.get(one).vector;
        float[] second = texts.get(other).vector;
        double sum = 0;
        for (int i = 0; i < first.length; i++) {
            sum += (double) first[i] * second[i];
        }
        return sum;
    }

    /**
     * Prints the cosines of all pairs, or of many texts each with the one that is closest.
     *
     * @param out where to
     */
    void print(PrintStream out) {
        if (texts.size() < 2) {
            return;
        }
        if (texts.size() <= LARGEST_TABLE) {
            printTable(out);
        } else {
            printClosest(out);
        }
    }

    private void printTable(PrintStream out) {
        out.printf("%nCosine similarity:%n    ");
        for (int k = 0; k < texts.size(); k++) {
            out.printf("%7d", k + 1);
        }
        out.println();
        for (int i = 0; i < texts.size(); i++) {
            out.printf("%3d ", i + 1);
            for (int k = 0; k < texts.size(); k++) {
                out.printf(Locale.ROOT, "%7.3f", cosine(i, k));
            }
            out.println();
        }
    }

    private void printClosest(PrintStream out) {
        out.printf("%nThe closest text, and its cosine similarity:%n");
        for (int i = 0; i < texts.size(); i++) {
            int best = i == 0 ? 1 : 0;
            for (int k = 0; k < texts.size(); k++) {
                if (k != i && cosine(i, k) > cosine(i, best)) {
                    best = k;
                }
            }
            out.printf(Locale.ROOT, "%3d %5d%7.3f%n", i + 1, best + 1, cosine(i, best));
        }
    }
}

package io.djltp.examples.spark;

import io.djltp.zoo.CharNGrams;

import org.apache.spark.sql.api.java.UDF1;
import org.jspecify.annotations.Nullable;

/** The n-grams of a word, as rows of the embedding table: computed on the executors. */
final class NGrams implements UDF1<String, int[]> {

    private static final long serialVersionUID = 1L;

    private static final int LIMIT = 24; // of a word

    private final int rows;
    private transient @Nullable CharNGrams nGrams;

    NGrams(int rows) {
        this.rows = rows;
    }

    /** {@inheritDoc} */
    @Override
    public int[] call(String word) {
        if (nGrams == null) {
            nGrams = new CharNGrams(rows, LIMIT);
        }
        return nGrams.rowsOf(word);
    }
}

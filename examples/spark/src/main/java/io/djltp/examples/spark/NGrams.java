package io.djltp.examples.spark;

import io.djltp.classes.TextFeatures;

import org.apache.spark.sql.api.java.UDF1;

import java.util.Arrays;

/** The n-grams of a word, as rows of the embedding table: computed on the executors. */
final class NGrams implements UDF1<String, int[]> {

    private static final long serialVersionUID = 1L;

    private static final int LIMIT = 24; // of a word

    private final int rows;

    NGrams(int rows) {
        this.rows = rows;
    }

    /** {@inheritDoc} */
    @Override
    public int[] call(String word) {
        return Arrays.copyOf(new TextFeatures(rows, 2, 5, 1, 2).ids(word), LIMIT);
    }
}

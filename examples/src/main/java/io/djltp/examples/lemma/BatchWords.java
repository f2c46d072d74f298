package io.djltp.examples.lemma;

import java.util.ArrayList;
import java.util.List;

/**
 * What a batch of words is made of, before it is arrays.
 *
 * @param rows the rows in the embedding table, of one word after another
 * @param labels the class of each word
 * @param indices which words these are
 */
record BatchWords(int[] rows, long[] labels, List<Integer> indices) {

    /** Returns room for some words of some rows each. */
    static BatchWords of(int size, int limit) {
        return new BatchWords(new int[size * limit], new long[size], new ArrayList<>(size));
    }
}

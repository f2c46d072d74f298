package io.djltp.classes;

import io.djltp.internal.Errors;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.function.Function;

/**
 * Turns a text into rows of an embedding table by hashing: one row for each word, for each
 * character n-gram of a word, and for each word n-gram. There is no vocabulary to keep; parts with
 * the same hash share a row.
 *
 * <p>The words, the n-grams and their hashes are those of <a
 * href="https://fasttext.cc">fastText</a> with {@code -bucket} {@code rows} - 1: white space splits
 * the text into words, and {@code <} and {@code >} mark the ends of a word, so that "sing" with
 * {@code minChars} = {@code maxChars} = 3 has the n-grams {@code <si}, {@code sin}, {@code ing} and
 * {@code ng>}. The row of a word is that of {@code <sing>}, where fastText has a vocabulary. Upper
 * and lower case are different.
 *
 * <p>If the texts are words whose forms differ at the end, {@code beginnings} says what is alike:
 * "singen" and "singt" have the beginnings {@code <sin} and {@code <sing}. Words of 3 characters or
 * more then have no other row of their own than that of the longest beginning, {@code <singt}.
 *
 * @param rows the number of rows of the embedding table, with row 0, which belongs to no part
 * @param minChars the number of characters of the shortest character n-grams
 * @param maxChars the number of characters of the longest, or 0 for no character n-grams
 * @param wordNGrams the number of words of the longest word n-grams; 1 for words only
 * @param beginnings how often each beginning of a word counts, from {@value #LEAST_BEGINNING}
 *     characters up to the whole word; 0 for no beginnings
 */
public record TextFeatures(int rows, int minChars, int maxChars, int wordNGrams, int beginnings)
        implements Function<CharSequence, int[]> {

    private static final int OFFSET = 0x811c9dc5; // of FNV-1a, 32 bits
    private static final int PRIME = 0x01000193;
    private static final long WORD_FACTOR = 116049371; // of fastText's word n-grams
    private static final int LEAST_BEGINNING = 3; // characters

    /**
     * Creates features without beginnings.
     *
     * @param rows the number of rows of the table, 2 or more
     * @param minChars the shortest character n-grams, 1 to {@code maxChars}, or 0
     * @param maxChars the longest, or 0
     * @param wordNGrams the longest word n-grams, 1 or more
     * @throws IllegalArgumentException if a number is out of its range
     */
    public TextFeatures(int rows, int minChars, int maxChars, int wordNGrams) {
        this(rows, minChars, maxChars, wordNGrams, 0);
    }

    /**
     * Creates the features.
     *
     * @param rows the number of rows of the table, 2 or more
     * @param minChars the shortest character n-grams, 1 to {@code maxChars}, or 0
     * @param maxChars the longest, or 0
     * @param wordNGrams the longest word n-grams, 1 or more
     * @param beginnings how often each beginning counts, 0 or more
     * @throws IllegalArgumentException if a number is out of its range
     */
    public TextFeatures {
        Errors.check(rows >= 2, "Text features need 2 or more rows of a table, not %s", rows);
        Errors.check(
                maxChars == 0 ? minChars == 0 : minChars >= 1 && minChars <= maxChars,
                "Character n-grams need 1 <= minChars <= maxChars, or 0 and 0 for none, not %s and"
                        + " %s",
                minChars,
                maxChars);
        Errors.check(wordNGrams >= 1, "Word n-grams have 1 or more words, not %s", wordNGrams);
        Errors.check(beginnings >= 0, "Beginnings count 0 times or more, not %s", beginnings);
    }

    /**
     * Returns the rows of a text: of each word with its character n-grams and beginnings, then of
     * the word n-grams. A part that occurs several times has its row as often.
     *
     * @param text the text, of any length
     * @return the rows, each from 1 to {@link #rows()} - 1; none for a text without words
     */
    public int[] ids(CharSequence text) {
        byte[] bytes = (" " + text + " ").getBytes(StandardCharsets.UTF_8);
        Numbers ids = new Numbers();
        Numbers words = new Numbers(); // their hashes
        int end;
        for (int begin = 1; begin < bytes.length; begin = end + 1) {
            end = begin;
            while (!isSpace(bytes[end])) {
                end++;
            }
            if (end > begin) {
                words.add(hash(OFFSET, bytes, begin, end));
                bytes[begin - 1] = '<';
                bytes[end] = '>';
                addWord(bytes, begin - 1, end + 1, ids);
            }
        }
        for (int first = 0; first < words.count; first++) {
            long hash = words.values[first];
            int last = (int) Math.min((long) first + wordNGrams, words.count) - 1;
            for (int i = first + 1; i <= last; i++) {
                hash = hash * WORD_FACTOR + words.values[i];
                ids.add(1 + (int) Long.remainderUnsigned(hash, rows - 1));
            }
        }
        return Arrays.copyOf(ids.values, ids.count);
    }

    /** Returns {@link #ids}, as {@link ClassData.Builder#optTextFeatures} asks for them. */
    @Override
    public int[] apply(CharSequence text) {
        return ids(text);
    }

    /** Adds the rows of a word and of its character n-grams. The word has its marks. */
    private void addWord(byte[] bytes, int begin, int end, Numbers ids) {
        int least = begin; // where the first beginning ends
        for (int i = 0; i <= LEAST_BEGINNING; i++) { // with the mark
            least = next(bytes, least, end);
        }
        boolean begins = beginnings > 0 && least < end;
        if (!begins) {
            ids.add(row(hash(OFFSET, bytes, begin, end)));
        }
        for (int start = begin; start < end; start = next(bytes, start, end)) {
            int hash = OFFSET;
            int at = start;
            boolean first = begins && start == begin;
            for (int n = 1; (n <= maxChars || first) && at < end; n++) {
                int after = next(bytes, at, end);
                hash = hash(hash, bytes, at, after);
                at = after;
                boolean isMark = n == 1 && (start == begin || at == end);
                boolean isWord = start == begin && at == end; // which has its row
                if (n >= minChars && n <= maxChars && !isMark && !isWord) {
                    ids.add(row(hash));
                }
                for (int i = 0; first && at >= least && at < end && i < beginnings; i++) {
                    ids.add(row(hash));
                }
            }
        }
    }

    /** Returns where the character after this one begins. */
    private static int next(byte[] bytes, int at, int end) {
        int next = at + 1;
        while (next < end && (bytes[next] & 0xC0) == 0x80) { // goes on with a character of UTF-8
            next++;
        }
        return next;
    }

    private static boolean isSpace(byte value) {
        return value == ' ' || value >= '\t' && value <= '\r' || value == 0;
    }

    /** Goes on with the hash of what is before. */
    private static int hash(int before, byte[] bytes, int begin, int end) {
        int hash = before;
        for (int i = begin; i < end; i++) {
            hash = (hash ^ bytes[i]) * PRIME; // fastText too extends the sign of a byte
        }
        return hash;
    }

    private int row(int hash) {
        return 1 + Integer.remainderUnsigned(hash, rows - 1);
    }

    /** Numbers that grow. */
    private static final class Numbers {

        private int[] values = new int[16];
        private int count;

        void add(int value) {
            if (count == values.length) {
                values = Arrays.copyOf(values, 2 * count);
            }
            values[count++] = value;
        }
    }
}

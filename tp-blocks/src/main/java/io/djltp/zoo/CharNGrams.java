package io.djltp.zoo;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Turns a word into rows of an embedding table: one row for each of its beginnings, up to the whole
 * word, and one for each of its character n-grams, with a mark at both ends of the word, so that
 * "ging" has the beginnings {@code gin} and {@code ging} and the n-grams {@code <g}, {@code gin},
 * {@code ng>} and so on. Beginnings count twice: the forms of a lemma mostly differ at the end.
 *
 * <p>Rows are found by hashing, so there is no vocabulary to keep, and different parts may share a
 * row. Row 0 belongs to no part: it fills short words up.
 *
 * <p>Longer texts work too, with a limit for their length, see {@link #limitFor}. If a text has
 * more than twice as many rows as the limit, less than half of it counts; the first such text is
 * logged as a warning.
 *
 * @param rows the number of rows of the embedding table, with row 0
 * @param limit how many rows each word has, with those that are only filled up
 */
public record CharNGrams(int rows, int limit) {

    private static final char BEGIN = '\u0002';
    private static final char END = '\u0003';
    private static final int PRIME = 0x01000193;
    private static final int N_GRAM = 0x811c9dc5;
    private static final int BEGINNING = 0x2545f491;
    private static final int LEAST_BEGINNING = 3;
    private static final int BEGINNING_COUNT = 2;

    private static final int MIN_LENGTH = 2; // of an n-gram, with its marks
    private static final int MAX_LENGTH = 5;
    private static final int LIMIT = 96;

    private static final Logger logger = LoggerFactory.getLogger(CharNGrams.class);
    private static final AtomicBoolean WARNED = new AtomicBoolean();

    /**
     * Creates n-grams of words of 96 rows at most: all those of a word of 17 letters.
     *
     * @param rows the number of rows of the embedding table, at least 2
     */
    public CharNGrams(int rows) {
        this(rows, LIMIT);
    }

    /**
     * Returns the limit with which no row of a text is left out.
     *
     * @param length the number of characters of the longest text
     * @return how many rows a text of this length has; 6 {@code length} - 6 from 3 characters on
     */
    public static int limitFor(int length) {
        int count = BEGINNING_COUNT * Math.max(1, length - LEAST_BEGINNING + 1);
        for (int n = MIN_LENGTH; n <= MAX_LENGTH; n++) {
            count += Math.max(0, length + 2 - n + 1);
        }
        return count;
    }

    /**
     * Returns the rows of a word.
     *
     * @param word the word
     * @return as many rows as {@link #limit()} says, those from 1 on before the zeros
     */
    public int[] rowsOf(CharSequence word) {
        int[] out = new int[limit];
        fill(word, out, 0);
        return out;
    }

    /**
     * Writes the rows of a word into an array: the beginnings, from three letters on, then the
     * n-grams, the longest first. What exceeds the limit is left out; what is missing is filled up
     * with zeros.
     *
     * @param word the word
     * @param out the array
     * @param from where to begin
     * @return how many rows are not zero
     */
    public int fill(CharSequence word, int[] out, int from) {
        int end = from + limit;
        int at = fillBeginnings(word, out, from, end);
        int marked = word.length() + 2;
        for (int n = MAX_LENGTH; n >= MIN_LENGTH; n--) {
            for (int start = 0; start + n <= marked && at < end; start++) {
                int hash = N_GRAM + n;
                for (int i = start; i < start + n; i++) {
                    hash = (hash ^ charAt(word, i)) * PRIME;
                }
                out[at++] = row(hash);
            }
        }
        Arrays.fill(out, at, end, 0);
        if (at == end && limitFor(word.length()) > 2 * limit && !WARNED.getAndSet(true)) {
            logger.warn(
                    "A text of {} characters has {} n-grams, and only the first {} count: the limit"
                            + " for texts of n characters is CharNGrams.limitFor(n)",
                    word.length(),
                    limitFor(word.length()),
                    limit);
        }
        return at - from;
    }

    /** Writes the rows of the beginnings, of which a short word has one, and returns their end. */
    private int fillBeginnings(CharSequence word, int[] out, int from, int end) {
        int at = from;
        int hash = BEGINNING;
        int least = Math.min(LEAST_BEGINNING, word.length());
        for (int length = 0; length <= word.length(); length++) {
            if (length >= least) {
                for (int i = 0; i < BEGINNING_COUNT && at < end; i++) {
                    out[at++] = row(hash);
                }
            }
            if (length < word.length()) {
                hash = (hash ^ word.charAt(length)) * PRIME;
            }
        }
        return at;
    }

    /** Lets the next text that is cut be logged, for a test. */
    static void resetWarning() {
        WARNED.set(false);
    }

    /** Returns a character of the word with its marks. */
    private static char charAt(CharSequence word, int i) {
        if (i == 0) {
            return BEGIN;
        }
        return i > word.length() ? END : word.charAt(i - 1);
    }

    private int row(int hash) {
        int mixed = (hash ^ hash >>> 16) * 0x85ebca6b;
        mixed = (mixed ^ mixed >>> 13) * 0xc2b2ae35;
        return 1 + Integer.remainderUnsigned(mixed ^ mixed >>> 16, rows - 1);
    }
}

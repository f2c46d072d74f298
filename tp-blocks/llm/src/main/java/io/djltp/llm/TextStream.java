package io.djltp.llm;

import ai.djl.huggingface.tokenizers.HuggingFaceTokenizer;

import org.jspecify.annotations.Nullable;

import java.util.Arrays;
import java.util.List;

/**
 * The text of tokens that come one by one. What may be half of a character, or the beginning of a
 * stop string, is held back.
 */
final class TextStream {

    private static final char INCOMPLETE = '\uFFFD';

    private final @Nullable HuggingFaceTokenizer tokenizer;
    private final List<String> stopStrings;
    private long[] ids = new long[16];
    private int count;
    private int prefix; // text is decoded from here, because spaces depend on what is before
    private int read; // and is out up to here
    private final StringBuilder text = new StringBuilder();
    private int given;
    private boolean stopped;

    TextStream(@Nullable HuggingFaceTokenizer tokenizer, List<String> stopStrings) {
        this.tokenizer = tokenizer;
        this.stopStrings = stopStrings;
    }

    /** Adds a token, and returns the text that is certain now. */
    String add(int id) {
        if (tokenizer == null) {
            return "";
        }
        if (count == ids.length) {
            ids = Arrays.copyOf(ids, 2 * count);
        }
        ids[count++] = id;
        String before = decode(read);
        String now = decode(count);
        if (now.length() > before.length() && now.charAt(now.length() - 1) != INCOMPLETE) {
            append(now.substring(before.length()));
            prefix = read;
            read = count;
        }
        return take(stopped ? text.length() : text.length() - heldBack());
    }

    private String decode(int to) {
        return prefix == to || tokenizer == null
                ? ""
                : tokenizer.decode(Arrays.copyOfRange(ids, prefix, to), true);
    }

    private void append(String piece) {
        int from = text.length();
        text.append(piece);
        int end = text.length();
        for (String stop : stopStrings) {
            int at = text.indexOf(stop, Math.max(given, from - stop.length() + 1));
            if (at >= 0 && at < end) {
                end = at;
                stopped = true;
            }
        }
        if (stopped) {
            text.setLength(end);
        }
    }

    /** Returns how many of the last characters may be the beginning of a stop string. */
    private int heldBack() {
        int most = 0;
        for (String stop : stopStrings) {
            int length = Math.min(stop.length() - 1, text.length() - given);
            while (length > most && !stop.startsWith(text.substring(text.length() - length))) {
                length--;
            }
            most = Math.max(most, length);
        }
        return most;
    }

    private String take(int end) {
        String piece = text.substring(given, Math.max(given, end));
        given = Math.max(given, end);
        return piece;
    }

    /** Returns what was held back of whole characters, at the end of a text. */
    String finish() {
        return take(text.length());
    }

    /** Returns whether a stop string has come. */
    boolean isStopped() {
        return stopped;
    }

    /** Returns the text that was returned so far. */
    String getText() {
        return text.substring(0, given);
    }
}

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
    private long[] ids = {}; // that are not out, and before them some on which spaces depend
    private int read; // of them are out
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
        ids = Arrays.copyOf(ids, ids.length + 1);
        ids[ids.length - 1] = id;
        String before = read == 0 ? "" : tokenizer.decode(Arrays.copyOf(ids, read), true);
        String now = tokenizer.decode(ids, true);
        if (now.length() > before.length() && now.charAt(now.length() - 1) != INCOMPLETE) {
            append(now.substring(before.length()));
            ids = Arrays.copyOfRange(ids, read, ids.length);
            read = ids.length;
        }
        return take(stopped ? text.length() : text.length() - heldBack());
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

package io.djltp.plan;

import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.regex.Pattern;

/**
 * A glob for the path of a block, such as {@code encoder.*.query}: segments with a dot between.
 *
 * <ul>
 *   <li>{@code *} stands for any characters of one segment, {@code ?} for one character
 *   <li>{@code [0-3]} and {@code [ab]} stand for one of some characters, {@code [!0-3]} for another
 *   <li>{@code **} as a segment stands for any number of segments, none included
 * </ul>
 *
 * <p>It is matched on the way down a network: a set has a bit for each number of segments of the
 * pattern that the path so far may stand for.
 */
final class PathPattern {

    private final String text;
    private final List<Pattern> segments; // null: any number of segments

    PathPattern(String text) {
        this.text = text;
        if (text.isEmpty()) {
            segments = List.of(); // the root
            return;
        }
        segments = Arrays.asList(new Pattern[text.split("\\.", -1).length]);
        String[] parts = text.split("\\.", -1);
        for (int i = 0; i < parts.length; i++) {
            if (parts[i].isEmpty() || parts[i].contains("**") && !parts[i].equals("**")) {
                throw new IllegalArgumentException(
                        "The pattern \""
                                + text
                                + "\" has the segment \""
                                + parts[i]
                                + "\": between two dots is a name with *, ? and [0-3] in it, or **"
                                + " alone");
            }
            segments.set(i, parts[i].equals("**") ? null : Pattern.compile(regex(parts[i])));
        }
    }

    private String regex(String segment) {
        StringBuilder regex = new StringBuilder();
        for (int i = 0; i < segment.length(); i++) {
            char c = segment.charAt(i);
            if (c == '*') {
                regex.append(".*");
            } else if (c == '?') {
                regex.append('.');
            } else if (c == '[') {
                int end = segment.indexOf(']', i);
                String inside = end < 0 ? "" : segment.substring(i + 1, end);
                boolean others = inside.startsWith("!");
                String characters = others ? inside.substring(1) : inside;
                if (!characters.matches("(\\w-\\w|\\w)+")) {
                    throw new IllegalArgumentException(
                            "The pattern \""
                                    + text
                                    + "\" has a [ that is not one of some characters, such as"
                                    + " [0-3], [ab] or [!0-3]");
                }
                regex.append(others ? "[^" : "[").append(characters).append(']');
                i = end;
            } else {
                regex.append(Pattern.quote(String.valueOf(c)));
            }
        }
        return regex.toString();
    }

    /** Returns the state before the first segment of a path. */
    BitSet start() {
        BitSet start = new BitSet();
        addClosed(start, 0);
        return start;
    }

    /** Returns the state after some more segments of a path. */
    BitSet after(BitSet state, List<String> names) {
        BitSet current = state;
        for (String name : names) {
            BitSet next = new BitSet();
            for (int at = current.nextSetBit(0); at >= 0; at = current.nextSetBit(at + 1)) {
                if (at == segments.size()) {
                    continue;
                }
                Pattern segment = segments.get(at);
                if (segment == null) {
                    addClosed(next, at);
                } else if (segment.matcher(name).matches()) {
                    addClosed(next, at + 1);
                }
            }
            current = next;
        }
        return current;
    }

    /** Adds a state, and those that follow without a segment. */
    private void addClosed(BitSet states, int at) {
        states.set(at);
        if (at < segments.size() && segments.get(at) == null) {
            addClosed(states, at + 1);
        }
    }

    /** Returns whether the path ends where the pattern does. */
    boolean isMatched(BitSet state) {
        return state.get(segments.size());
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return text;
    }
}

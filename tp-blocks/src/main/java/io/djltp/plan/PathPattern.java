package io.djltp.plan;

import io.djltp.internal.Errors;
import io.djltp.plan.BlockTree.Node;

import org.jspecify.annotations.Nullable;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
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
 * <p>It is matched on the way down a network.
 */
final class PathPattern {

    private final String text;
    private final List<@Nullable Pattern> segments =
            new ArrayList<>(); // null: any number; none: the root

    PathPattern(String text) {
        this.text = text;
        for (String part : text.isEmpty() ? new String[0] : text.split("\\.", -1)) {
            if (part.isEmpty() || part.contains("**") && !part.equals("**")) {
                throw new IllegalArgumentException(
                        ("The pattern \"%s\" has the segment \"%s\": between two dots is a name"
                                        + " with *, ? and [0-3] in it, or ** alone")
                                .formatted(text, part));
            }
            segments.add(part.equals("**") ? null : Pattern.compile(regex(part)));
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
                Errors.check(
                        characters.matches("(\\w-\\w|\\w)+"),
                        "The pattern \"%s\" has a [ that is not one of some characters, such as"
                                + " [0-3], [ab] or [!0-3]",
                        text);
                regex.append(others ? "[^" : "[").append(characters).append(']');
                i = end;
            } else {
                regex.append(Pattern.quote(String.valueOf(c)));
            }
        }
        return regex.toString();
    }

    /** Returns the blocks whose paths it matches. */
    Set<Node> match(BlockTree tree) {
        Set<Node> matched = new LinkedHashSet<>();
        match(tree.root(), List.of(), 0, matched, new HashSet<>());
        return matched;
    }

    /**
     * Goes on at a block, to whose names the segments from one on have still to be found.
     *
     * @param seen where this has been
     */
    private void match(
            Node node, List<String> names, int at, Set<Node> matched, Set<List<Object>> seen) {
        boolean named = !names.isEmpty();
        if (!seen.add(List.of(node, names, at))) {
            return;
        }
        if (at == segments.size()) {
            if (!named) {
                matched.add(node);
            }
            return;
        }
        Pattern segment = segments.get(at);
        if (segment == null) {
            match(node, names, at + 1, matched, seen); // stands for nothing, or nothing more
        }
        if (!named) {
            node.below()
                    .forEach(
                            (child, all) ->
                                    all.forEach(each -> match(child, each, at, matched, seen)));
        } else if (segment == null || segment.matcher(names.get(0)).matches()) {
            List<String> rest = names.subList(1, names.size());
            match(node, rest, segment == null ? at : at + 1, matched, seen);
        }
    }

    /** {@inheritDoc} */
    @Override
    public String toString() {
        return text;
    }
}

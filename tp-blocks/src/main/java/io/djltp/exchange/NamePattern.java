package io.djltp.exchange;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A name with places for what differs: {@code {n}} for a number, {@code {path}} for any number of
 * blocks with their dots, also none, {@code *} for any letters within one block's name.
 */
final class NamePattern {

    private static final Pattern PLACE = Pattern.compile("\\{(\\w+)\\}(\\.?)|\\*");
    private static final String NUMBER = "n";

    private final String text;
    private final Pattern pattern;

    NamePattern(String text) {
        this.text = text;
        StringBuilder regex = new StringBuilder();
        Matcher place = PLACE.matcher(text);
        int at = 0;
        while (place.find()) {
            regex.append(Pattern.quote(text.substring(at, place.start())));
            String name = place.group(1);
            if (name == null) {
                regex.append("[^.]*");
            } else if (name.equals(NUMBER)) {
                // of one layer alone the name of the block has no number
                regex.append("(?<").append(name).append(">\\d*)").append(quoted(place.group(2)));
            } else if (place.group(2).isEmpty()) {
                regex.append("(?<").append(name).append(">.*)");
            } else {
                regex.append("(?:(?<").append(name).append(">.+)\\.)?");
            }
            at = place.end();
        }
        pattern = Pattern.compile(regex.append(Pattern.quote(text.substring(at))).toString());
    }

    /** Returns the name with a word before it. */
    NamePattern withPrefix(String prefix) {
        return new NamePattern(prefix + text);
    }

    private static String quoted(String dot) {
        return dot.isEmpty() ? "" : "\\.";
    }

    /**
     * Compares a name.
     *
     * @return what stands in the places, or {@code null} if it is another name
     */
    Map<String, String> match(String name) {
        Matcher matcher = pattern.matcher(name);
        if (!matcher.matches()) {
            return null;
        }
        Map<String, String> places = new LinkedHashMap<>();
        Matcher place = PLACE.matcher(text);
        while (place.find()) {
            if (place.group(1) != null) {
                String value = matcher.group(place.group(1));
                places.put(place.group(1), value == null ? "" : value);
            }
        }
        return places;
    }

    /** Returns the name with these in its places, as a block's: one layer alone has no number. */
    String blockName(Map<String, String> places) {
        return fill(places, places.getOrDefault(NUMBER, ""));
    }

    /** Returns the name with these in its places, as a tensor's. */
    String tensorName(Map<String, String> places) {
        String number = places.getOrDefault(NUMBER, "");
        return fill(places, number.isEmpty() ? "0" : number);
    }

    private String fill(Map<String, String> places, String number) {
        Matcher place = PLACE.matcher(text);
        StringBuilder name = new StringBuilder();
        while (place.find()) {
            String value = places.getOrDefault(place.group(1), "");
            if (NUMBER.equals(place.group(1))) {
                value = number + place.group(2);
            } else if (!value.isEmpty()) {
                value += place.group(2);
            }
            place.appendReplacement(name, Matcher.quoteReplacement(value));
        }
        return place.appendTail(name).toString();
    }

    @Override
    public String toString() {
        return text;
    }
}

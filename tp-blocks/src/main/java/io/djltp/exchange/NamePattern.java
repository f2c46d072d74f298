package io.djltp.exchange;

import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A name with places for what differs: {@code {n}} for a number, {@code {path}} or another word for
 * any number of blocks with their dots, also none, {@code *} for any letters of one block's name.
 */
final class NamePattern {

    private static final Pattern PLACE = Pattern.compile("(\\{(\\w+)\\}|\\*)(\\.?)");
    private static final String NUMBER = "n";
    private static final String LETTERS = "letters";

    private final String text;
    private final Pattern pattern;

    NamePattern(String text) {
        this.text = text;
        check(text);
        StringBuilder regex = new StringBuilder();
        Matcher place = PLACE.matcher(text);
        int at = 0;
        while (place.find()) {
            regex.append(Pattern.quote(text.substring(at, place.start())));
            String key = key(place);
            String dot = place.group(3).isEmpty() ? "" : "\\.";
            if (key.equals(LETTERS)) {
                regex.append("([^.]*)").append(dot);
            } else if (key.equals(NUMBER)) {
                // of one layer alone the name of the block has no number
                regex.append("(\\d*)").append(dot);
            } else if (dot.isEmpty()) {
                regex.append("(.*)");
            } else {
                regex.append("(?:(.+)\\.)?");
            }
            at = place.end();
        }
        pattern = Pattern.compile(regex.append(Pattern.quote(text.substring(at))).toString());
    }

    /** A place has one value: two of the same name cannot be told apart. */
    private static void check(String text) {
        Set<String> keys = new HashSet<>();
        Matcher place = PLACE.matcher(text);
        while (place.find()) {
            if (!keys.add(key(place))) {
                throw new IllegalArgumentException(
                        "The name "
                                + text
                                + " has the place "
                                + place.group(1)
                                + " twice: a place is a number {n}, once, letters *, once, and any"
                                + " blocks {path}, or {word} for others");
            }
        }
        if (!PLACE.matcher(text).replaceAll("").matches("[^{}]*")) {
            throw new IllegalArgumentException(
                    "The name "
                            + text
                            + " has a brace that does not belong to a place: {n}, {path}");
        }
    }

    private static String key(Matcher place) {
        return place.group(2) == null ? LETTERS : place.group(2);
    }

    /** Returns the places. */
    Set<String> places() {
        Set<String> places = new HashSet<>();
        Matcher place = PLACE.matcher(text);
        while (place.find()) {
            places.add(key(place));
        }
        return places;
    }

    /** Returns the name with a word before it. */
    NamePattern withPrefix(String prefix) {
        return new NamePattern(prefix + text);
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
        for (int i = 1; place.find(); i++) { // a group for each place
            String value = matcher.group(i);
            places.put(key(place), value == null ? "" : value);
        }
        return places;
    }

    /** Returns the name with these in its places, as a block's: one layer alone has no number. */
    String blockName(Map<String, String> places) {
        return fill(places, places.get(NUMBER));
    }

    /** Returns the name with these in its places, as a tensor's. */
    String tensorName(Map<String, String> places) {
        String number = places.get(NUMBER);
        return fill(places, "".equals(number) ? "0" : number);
    }

    private String fill(Map<String, String> places, String number) {
        Matcher place = PLACE.matcher(text);
        StringBuilder name = new StringBuilder();
        while (place.find()) {
            String key = key(place);
            String value = key.equals(NUMBER) ? number : places.get(key);
            boolean none = value.isEmpty() && !key.equals(NUMBER) && !key.equals(LETTERS);
            String filled = none ? "" : value + place.group(3);
            place.appendReplacement(name, Matcher.quoteReplacement(filled));
        }
        return place.appendTail(name).toString();
    }

    @Override
    public String toString() {
        return text;
    }
}

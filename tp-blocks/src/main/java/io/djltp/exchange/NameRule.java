package io.djltp.exchange;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

/**
 * A line of a {@link NameMapping}: parameters that, one below the other along axis 0, are the same
 * rows as tensors one below the other.
 *
 * @param parameters the parameters
 * @param tensors the tensors
 * @param transposed whether a tensor has the axes of the parameter exchanged
 * @param padded whether the tensor may have more or fewer rows, which do not count
 */
record NameRule(
        List<NamePattern> parameters, List<Part> tensors, boolean transposed, boolean padded) {

    /**
     * A tensor of a rule.
     *
     * @param name its name
     * @param share how many parts of the rows it has, beside the shares of the others
     */
    record Part(NamePattern name, int share) {

        @Override
        public String toString() {
            return name + (share > 1 ? " * " + share : "");
        }
    }

    /** Reads a line, {@code parameter + parameter = tensor * share + tensor : flags}. */
    static NameRule parse(String line) {
        Set<String> flags = new HashSet<>();
        String rule = line;
        int colon = line.lastIndexOf(" : ");
        if (colon >= 0) {
            flags.addAll(List.of(line.substring(colon + 3).trim().split("\\s+")));
            rule = line.substring(0, colon);
        }
        String[] sides = rule.split(" = ");
        if (sides.length != 2) {
            throw error(line, "it is not of the form parameter = tensor");
        }
        List<NamePattern> parameters = new ArrayList<>();
        for (String name : sides[0].split(" \\+ ")) {
            parameters.add(name(line, name.trim()));
        }
        List<Part> tensors = new ArrayList<>();
        for (String part : sides[1].split(" \\+ ")) {
            String[] words = part.trim().split(" \\* ");
            int share = words.length == 1 ? 1 : share(line, words[1].trim());
            tensors.add(new Part(name(line, words[0].trim()), share));
        }
        boolean transposed = flags.remove("transposed");
        boolean padded = flags.remove("padded");
        if (!flags.isEmpty()) {
            throw error(line, "there are the flags transposed and padded, and no " + flags);
        }
        if ((padded || transposed) && parameters.size() + tensors.size() > 2) {
            throw error(line, "what is padded or transposed is one parameter and one tensor");
        }
        return checked(
                line,
                new NameRule(List.copyOf(parameters), List.copyOf(tensors), transposed, padded));
    }

    /** What stands in the places of a tensor's name must be known from the parameters'. */
    private static NameRule checked(String line, NameRule rule) {
        Set<String> known = new HashSet<>(rule.parameters.get(0).places());
        for (NamePattern other : rule.parameters) {
            if (!other.places().equals(known)) {
                throw error(line, "its parameters have different places");
            }
        }
        for (Part part : rule.tensors) {
            if (!known.containsAll(part.name().places())) {
                throw error(line, part.name() + " has places that the parameters do not have");
            }
        }
        return rule;
    }

    /** Returns the rule for tensors with a word before their names. */
    NameRule withPrefix(String prefix) {
        List<Part> parts =
                tensors.stream()
                        .map(part -> new Part(part.name().withPrefix(prefix), part.share()))
                        .toList();
        return new NameRule(parameters, parts, transposed, padded);
    }

    /** Returns a name, which has no blanks: they stand around what is between names. */
    static NamePattern name(String line, String text) {
        NamePattern name = new NamePattern(text);
        if (!text.matches("[^\\s+]\\S*")) {
            throw error(line, "'" + text + "' is no name");
        }
        return name;
    }

    /** Returns the rule as a line of a table. */
    @Override
    public String toString() {
        return String.join(" + ", parameters.stream().map(NamePattern::toString).toList())
                + " = "
                + String.join(" + ", tensors.stream().map(Part::toString).toList())
                + (transposed || padded ? " :" : "")
                + (transposed ? " transposed" : "")
                + (padded ? " padded" : "");
    }

    private static int share(String line, String text) {
        if (!text.matches("[1-9]\\d{0,8}")) {
            throw error(line, text + " is no share: a number above 0");
        }
        return Integer.parseInt(text);
    }

    private static IllegalArgumentException error(String line, String reason) {
        return new IllegalArgumentException(
                String.format(
                        Locale.ROOT, "The mapping of names has the line '%s': %s", line, reason));
    }
}

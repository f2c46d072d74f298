package io.djltp.examples.verify;

import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;

/** What the comparison of one form has found. */
final class FormResult {

    String form;
    boolean equal = true;

    /** Shapes over all ranks and of each rank's part, by name. */
    Map<String, String> shapes = new LinkedHashMap<>();

    /** Largest differences, relative to the largest value, by name. */
    Map<String, Double> differences = new LinkedHashMap<>();

    String collectivesForward;
    String collectivesBackward;

    void add(String name, double difference) {
        differences.merge(name, difference, Math::max);
        equal &= difference <= VerifyCommand.TOLERANCE;
    }

    void print(PrintStream out) {
        out.printf("%n%s%n", form);
        shapes.forEach((name, shape) -> out.printf("  %-22s %s%n", name, shape));
        differences.forEach(
                (name, value) ->
                        out.printf(Locale.ROOT, "  %-22s differs by at most %.1e%n", name, value));
        out.printf("  %-22s %s%n", "collectives forward", collectivesForward);
        out.printf("  %-22s %s%n", "collectives backward", collectivesBackward);
    }
}

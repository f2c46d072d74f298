package io.djltp.examples.plan;

import ai.djl.ndarray.types.Shape;

import java.util.Arrays;
import java.util.Locale;
import java.util.stream.Collectors;

/** Numbers for people. */
final class Sizes {

    private static final String[] UNITS = {"B", "KB", "MB", "GB", "TB"};

    private Sizes() {}

    /** Returns bytes in decimal units, such as {@code 15.4 MB}. */
    static String bytes(long bytes) {
        double value = bytes;
        int unit = 0;
        while (value >= 999.5 && unit < UNITS.length - 1) {
            value /= 1000;
            unit++;
        }
        return String.format(Locale.ROOT, unit == 0 ? "%.0f %s" : "%.3g %s", value, UNITS[unit]);
    }

    /** Returns a number, such as {@code 120,658}. */
    static String number(long number) {
        return String.format(Locale.ROOT, "%,d", number);
    }

    /** Returns a shape, such as {@code 120,658 × 64}. */
    static String shape(Shape shape) {
        return shape.dimension() == 0
                ? "1"
                : Arrays.stream(shape.getShape())
                        .mapToObj(Sizes::number)
                        .collect(Collectors.joining(" × "));
    }
}

package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.torch.ElementPosition;
import io.djltp.torch.HostReads;

import java.util.Arrays;
import java.util.Map;

/**
 * The labels of a batch as numbers of classes, read once and checked. DJL's own losses cut 1.5 down
 * to the class 1 without a word; here it is refused.
 */
public final class ClassLabels {

    /** From which number on a type does not hold every whole number. */
    private static final Map<DataType, Long> FIRST_GAP =
            Map.of(
                    DataType.FLOAT64, 1L << 53,
                    DataType.FLOAT32, 1L << 24,
                    DataType.FLOAT16, 1L << 11,
                    DataType.BFLOAT16, 1L << 8);

    private final NDArray labels;
    private final long classes;
    private final long ignoreIndex;

    private ClassLabels(NDArray labels, long classes, long ignoreIndex) {
        this.labels = labels;
        this.classes = classes;
        this.ignoreIndex = ignoreIndex;
    }

    /**
     * Reads labels.
     *
     * @param labels the labels, [x1, ..., xn], of any numeric type
     * @param classes the number of classes of all ranks
     * @param ignoreIndex the label of rows that do not count
     * @return the labels, [x1 * ... * xn]
     * @throws IllegalArgumentException if one of the others is no class, no whole number, or so
     *     large that its floating-point type does not tell it from the next class
     */
    public static long[] read(NDArray labels, long classes, long ignoreIndex) {
        ClassLabels checked = new ClassLabels(labels, classes, ignoreIndex);
        return labels.getDataType().isFloating() ? checked.wholeNumbers() : checked.integers();
    }

    private long[] integers() {
        long[] numbers = longs();
        for (int i = 0; i < numbers.length; i++) {
            if (isNoClass(numbers[i])) {
                throw notAClass(i, numbers[i]);
            }
        }
        return numbers;
    }

    private long[] longs() {
        if (labels.getDataType() == DataType.INT64) {
            return HostReads.longs(labels);
        }
        try (NDArray copy = labels.toType(DataType.INT64, true)) {
            return HostReads.longs(copy);
        }
    }

    private long[] wholeNumbers() {
        double[] values;
        try (NDArray copy = labels.toType(DataType.FLOAT64, true)) {
            values = HostReads.doubles(copy);
        }
        DataType type = labels.getDataType();
        long gap = FIRST_GAP.get(type);
        for (int i = 0; i < values.length; i++) {
            if (values[i] != Math.rint(values[i]) || Double.isInfinite(values[i])) {
                throw notAClass(i, values[i]);
            }
            long number = (long) values[i];
            if (isNoClass(number)) {
                throw notAClass(i, number);
            }
            if (number >= gap) {
                String why = "and " + type + " does not hold every whole number from " + gap;
                throw refused(i, number, why + " on: give the labels as INT64");
            }
        }
        return Arrays.stream(values).mapToLong(value -> (long) value).toArray();
    }

    private boolean isNoClass(long label) {
        return label != ignoreIndex && (label < 0 || label >= classes);
    }

    private IllegalArgumentException notAClass(int place, Object label) {
        return refused(
                place,
                label,
                ("but the labels of %s classes are the whole numbers 0 to %s (or %s"
                                + " for a row that does not count): correct the label, or give the"
                                + " last layer more classes")
                        .formatted(classes, classes - 1, ignoreIndex));
    }

    private IllegalArgumentException refused(int place, Object label, String why) {
        Shape shape = labels.getShape();
        return new IllegalArgumentException(
                "The label of "
                        + (shape.dimension() == 1
                                ? "row " + place
                                : "the position " + ElementPosition.of(place, shape))
                        + " is "
                        + label
                        + ", "
                        + why);
    }
}

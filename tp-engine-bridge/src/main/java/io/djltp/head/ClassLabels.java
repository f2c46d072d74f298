package io.djltp.head;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.internal.torch.HostReads;
import io.djltp.internal.torch.TensorView;

import java.util.Map;
import java.util.stream.DoubleStream;

/**
 * The labels of a batch as numbers of classes, read once and checked. DJL's own losses cut 1.5 down
 * to the class 1 without a word; here it is an error.
 */
public final class ClassLabels {

    /** From which number on a type does not hold every whole number. */
    private static final Map<DataType, Long> FIRST_GAP =
            Map.of(
                    DataType.FLOAT64, 1L << 53,
                    DataType.FLOAT32, 1L << 24,
                    DataType.FLOAT16, 1L << 11,
                    DataType.BFLOAT16, 1L << 8);

    private ClassLabels() {}

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
        DataType type = labels.getDataType();
        double[] values = type.isFloating() ? doubles(labels) : null;
        long[] numbers =
                values == null
                        ? longs(labels)
                        : DoubleStream.of(values).mapToLong(value -> (long) value).toArray();
        for (int i = 0; i < numbers.length; i++) {
            boolean whole = values == null || values[i] == numbers[i];
            boolean known = numbers[i] >= 0 && numbers[i] < classes || numbers[i] == ignoreIndex;
            if (!whole || !known) {
                String why =
                        ("but the labels of %s classes are the whole numbers 0 to %s (or %s for a"
                                        + " row that does not count): correct the label, or give"
                                        + " the last layer more classes")
                                .formatted(classes, classes - 1, ignoreIndex);
                throw refused(labels, i, whole ? numbers[i] : (Object) values[i], why);
            }
            if (values != null && numbers[i] >= FIRST_GAP.get(type)) {
                String why =
                        ("and %s does not hold every whole number from %s on: give the labels as"
                                        + " INT64")
                                .formatted(type, FIRST_GAP.get(type));
                throw refused(labels, i, numbers[i], why);
            }
        }
        return numbers;
    }

    private static double[] doubles(NDArray labels) {
        try (NDArray copy = labels.toType(DataType.FLOAT64, true)) {
            return HostReads.doubles(copy);
        }
    }

    private static long[] longs(NDArray labels) {
        if (labels.getDataType() == DataType.INT64) {
            return HostReads.longs(labels);
        }
        try (NDArray copy = labels.toType(DataType.INT64, true)) {
            return HostReads.longs(copy);
        }
    }

    private static IllegalArgumentException refused(
            NDArray labels, int place, Object label, String why) {
        Shape shape = labels.getShape();
        String where =
                shape.dimension() == 1
                        ? "row " + place
                        : "the position " + TensorView.position(place, shape);
        return new IllegalArgumentException(
                "The label of %s is %s, %s".formatted(where, label, why));
    }
}

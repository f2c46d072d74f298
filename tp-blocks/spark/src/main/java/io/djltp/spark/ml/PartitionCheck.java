package io.djltp.spark.ml;

import org.apache.spark.sql.Row;

import java.io.Serializable;
import java.util.Iterator;

/** Reads the rows of one partition up to the first one that cannot be trained with. */
final class PartitionCheck {

    private static final int SHOWN = 300; // characters of a row

    private final Columns columns;
    private final int classes; // or 0: one more than the largest label
    private final RowChecksum sum = new RowChecksum();
    private long count;
    private int width = -1; // that of the first row
    private int[] bits; // of the features of a row
    private double largest = -1;

    PartitionCheck(Columns columns, int classes) {
        this.columns = columns;
        this.classes = classes;
    }

    /**
     * What is known of a partition.
     *
     * @param rows the number of its rows
     * @param width the length of the features
     * @param largest the largest label
     * @param checksum tells its rows from others
     * @param problem what is wrong with its first bad row, or {@code null}
     */
    record AgreedSettings(long rows, int width, double largest, long checksum, String problem)
            implements Serializable {}

    /** Reads the rows. */
    AgreedSettings of(Iterator<Row> rows, int partition) {
        String problem = null;
        while (problem == null && rows.hasNext()) {
            Row row = rows.next();
            String wrong = problem(row);
            if (wrong == null) {
                add(columns.label(row));
            } else {
                problem =
                        "Row %d of partition %d %s: %s"
                                .formatted(count, partition, wrong, shown(row));
            }
        }
        return new AgreedSettings(count, width, largest, sum.value(), problem);
    }

    /** Adds the row whose features were read last. */
    private void add(double label) {
        largest = Math.max(largest, label);
        sum.add(bits, label);
        count++;
    }

    /** Reads the features of a row, and returns what is wrong with it, or {@code null}. */
    private String problem(Row row) {
        int own = columns.width(row);
        if (own < 0) {
            return "has no features";
        }
        if (own == 0) {
            return "has features of length 0: they need 1 value or more (setFeaturesCol)";
        }
        if (width < 0) {
            width = own;
            bits = new int[width];
        }
        if (own != width) {
            return "has " + own + " features, those before it " + width;
        }
        String wrong = columns.read(row, bits);
        return wrong == null ? problem(columns.label(row)) : "is bad: " + wrong;
    }

    private String problem(double label) {
        if (Double.isNaN(label)) {
            return "has no label";
        }
        int most = classes > 0 ? classes : Integer.MAX_VALUE - 1;
        if (label == Math.rint(label) && label >= 0 && label < most) {
            return null;
        }
        return "has the label "
                + label
                + ", which is no class: there are "
                + (classes > 0 ? classes + ", from 0 to " + (classes - 1) : "those from 0 on")
                + " (setNumClasses)";
    }

    private static String shown(Row row) {
        String text = row.toString();
        return text.length() > SHOWN ? text.substring(0, SHOWN) + "..." : text;
    }
}

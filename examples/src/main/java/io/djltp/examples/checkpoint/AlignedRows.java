package io.djltp.examples.checkpoint;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Rows of text whose columns are as wide as the longest of their texts. */
final class AlignedRows {

    private final List<String[]> rows = new ArrayList<>();

    /**
     * Adds a row.
     *
     * @param columns its texts, as many as the other rows have
     */
    void add(String... columns) {
        rows.add(columns);
    }

    void print(PrintStream out) {
        int[] widths = new int[rows.isEmpty() ? 0 : rows.get(0).length];
        for (String[] row : rows) {
            Arrays.setAll(widths, i -> Math.max(widths[i], row[i].length()));
        }
        for (String[] row : rows) {
            StringBuilder line = new StringBuilder();
            for (int i = 0; i < row.length; i++) {
                line.append(row[i]).append(" ".repeat(widths[i] - row[i].length() + 2));
            }
            out.println(line.toString().stripTrailing());
        }
    }
}

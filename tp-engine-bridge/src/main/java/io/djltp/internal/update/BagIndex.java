package io.djltp.internal.update;

import java.util.Arrays;

/**
 * Which rows of a table are in which bag: the sums of an embedding bag are over the rows of each
 * bag, and its gradient is over the bags of each row.
 */
public final class BagIndex {

    final long[] offsets; // where a bag begins, [bags]
    final long[] rows; // of one bag after the other

    private BagIndex(long[] offsets, long[] rows) {
        this.offsets = offsets;
        this.rows = rows;
    }

    /**
     * Reads bags of a fixed width, which zeros fill up.
     *
     * @param ids the rows of one bag after the other
     * @param width the places of a bag
     * @param tableRows the rows of the table
     * @return the index
     * @throws IllegalArgumentException if a row is not in the table
     */
    public static BagIndex of(int[] ids, int width, long tableRows) {
        int bags = width == 0 ? 0 : ids.length / width;
        long[] offsets = new long[bags];
        long[] rows = new long[ids.length];
        int count = 0;
        for (int bag = 0; bag < bags; bag++) {
            offsets[bag] = count;
            for (int i = bag * width; i < (bag + 1) * width; i++) {
                if (ids[i] < 0 || ids[i] >= tableRows) {
                    throw new IllegalArgumentException(
                            ("A row of an embedding bag is %s, but the table has the rows 1 to"
                                            + " %s (or 0 for none)")
                                    .formatted(ids[i], tableRows - 1));
                }
                if (ids[i] != 0) {
                    rows[count++] = ids[i];
                }
            }
        }
        return new BagIndex(offsets, Arrays.copyOf(rows, count));
    }

    /**
     * The same the other way round: the bags that each row is in, as often as it is.
     *
     * @param rows the rows that are in any bag, ascending
     * @param offsets where the bags of a row begin
     * @param bags the bags of one row after the other
     */
    record Transposed(long[] rows, long[] offsets, long[] bags) {}

    /** Returns the bags by row. */
    Transposed transposed() {
        long[] pairs = new long[rows.length]; // of a row, and below it a bag: both are from 32 bits
        for (int bag = 0; bag < offsets.length; bag++) {
            long end = bag + 1 < offsets.length ? offsets[bag + 1] : rows.length;
            for (int i = (int) offsets[bag]; i < end; i++) {
                pairs[i] = rows[i] << Integer.SIZE | bag;
            }
        }
        Arrays.sort(pairs);
        long[] usedRows = new long[pairs.length];
        long[] begins = new long[pairs.length];
        long[] bags = new long[pairs.length];
        int used = 0;
        for (int i = 0; i < pairs.length; i++) {
            long row = pairs[i] >>> Integer.SIZE;
            bags[i] = (int) pairs[i];
            if (used == 0 || usedRows[used - 1] != row) {
                usedRows[used] = row;
                begins[used++] = i;
            }
        }
        return new Transposed(Arrays.copyOf(usedRows, used), Arrays.copyOf(begins, used), bags);
    }
}

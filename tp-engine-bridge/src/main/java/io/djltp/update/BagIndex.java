package io.djltp.update;

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
                            "A row of an embedding bag is "
                                    + ids[i]
                                    + ", but the table has the rows 1 to "
                                    + (tableRows - 1)
                                    + " (or 0 for none)");
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

    /** Returns the bags by row: in the time that the rows in bags take, however long the table. */
    Transposed transposed() {
        int bits = Long.SIZE - Long.numberOfLeadingZeros(rows.length);
        long[] keys = new long[rows.length]; // a row, and behind it its place among the rows
        int bag = 0;
        long[] bagOf = new long[rows.length];
        for (int i = 0; i < keys.length; i++) {
            while (bag + 1 < offsets.length && offsets[bag + 1] <= i) {
                bag++;
            }
            bagOf[i] = bag;
            keys[i] = Math.multiplyExact(rows[i], 1L << bits) + i;
        }
        Arrays.sort(keys);
        int used = 0;
        long[] usedRows = new long[keys.length];
        long[] begins = new long[keys.length];
        long[] bagsOfRows = new long[keys.length];
        for (int i = 0; i < keys.length; i++) {
            long row = keys[i] >> bits;
            if (used == 0 || usedRows[used - 1] != row) {
                usedRows[used] = row;
                begins[used++] = i;
            }
            bagsOfRows[i] = bagOf[(int) (keys[i] - (row << bits))];
        }
        return new Transposed(
                Arrays.copyOf(usedRows, used), Arrays.copyOf(begins, used), bagsOfRows);
    }
}

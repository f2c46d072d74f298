package io.djltp.classes;

import java.util.Arrays;

/** Where blocks of rows begin in each file, and which rows are left out. */
final class RowIndex {

    private long rows;
    private int blocks;
    private long[] firstRows = new long[16];
    private final long[][] offsets;
    private long[] bad = new long[1]; // offsets in the first file
    private int badCount;

    RowIndex(int files) {
        offsets = new long[files][16];
    }

    /** Begins a block with the next row. */
    void addBlock(RowFile.Cursor[] cursors) {
        if (blocks == firstRows.length) {
            firstRows = Arrays.copyOf(firstRows, 2 * blocks);
        }
        firstRows[blocks] = rows;
        for (int i = 0; i < offsets.length; i++) {
            if (blocks == offsets[i].length) {
                offsets[i] = Arrays.copyOf(offsets[i], 2 * blocks);
            }
            offsets[i][blocks] = cursors[i].offset();
        }
        blocks++;
    }

    void addRow() {
        rows++;
    }

    void addBad(long offset) {
        if (badCount == bad.length) {
            bad = Arrays.copyOf(bad, 2 * badCount);
        }
        bad[badCount++] = offset;
    }

    boolean isBad(long offset) {
        return badCount > 0 && Arrays.binarySearch(bad, 0, badCount, offset) >= 0;
    }

    int getBad() {
        return badCount;
    }

    long getRows() {
        return rows;
    }

    int getBlocks() {
        return blocks;
    }

    long firstRow(int block) {
        return block == blocks ? rows : firstRows[block];
    }

    int rowsOf(int block) {
        return (int) (firstRow(block + 1) - firstRow(block));
    }

    long offset(int file, int block) {
        return offsets[file][block];
    }

    /** Returns the bytes of a block of a file whose rows end at a place. */
    int bytesOf(int file, int block, long end) {
        long next = block + 1 == blocks ? end : offsets[file][block + 1];
        return (int) (next - offsets[file][block]);
    }
}
